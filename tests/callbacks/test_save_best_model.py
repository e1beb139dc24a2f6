import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import TensorDataset

from treadle.callback import TrainerCallback
from treadle.callbacks import SaveBestModelCallback
from treadle.checkpoint import read_file


class Weights(TrainerCallback):
    """Keeps a copy of the weights at the end of every epoch."""

    def __init__(self) -> None:
        self.copies: list[torch.Tensor] = []

    def on_training_run_epoch_end(self, trainer: Any, **kwargs: Any) -> None:
        self.copies.append(trainer.model.weight.detach().clone())


def run(make_trainer: Any, data: TensorDataset, scores: list[float], **kwargs: Any) -> tuple[Any, Weights]:
    weights = Weights()
    best = SaveBestModelCallback(watch_metric="score", **kwargs)
    trainer = make_trainer(best, weights, scores=scores)
    schedule = partial(StepLR, step_size=4, gamma=0.5)
    trainer.train(data, num_epochs=len(scores), eval_dataset=data, create_scheduler_fn=schedule)
    return trainer, weights


def test_d32_the_best_weights_are_loaded_when_the_run_ends(
    make_trainer: Any, data: TensorDataset, tmp_path: Path
) -> None:
    trainer, weights = run(make_trainer, data, [3.0, 1.0, 2.0], save_path=tmp_path / "best.pt")
    assert torch.equal(trainer.model.weight, weights.copies[1])
    assert trainer.optimizer.param_groups[0]["lr"] == 0.0125
    assert trainer.scheduler.last_epoch == 8


def test_it_is_said_that_the_best_weights_were_loaded(
    make_trainer: Any, data: TensorDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "best.pt"
    run(make_trainer, data, [3.0, 1.0, 2.0], save_path=path)
    smallest = "SaveBestModel takes the smallest score for the best; greater_is_better=True takes the largest\n"
    loaded = f"The model has the best weights of the run again, with score 1, from {path}\n"
    assert capsys.readouterr().out == smallest + loaded
    run(make_trainer, data, [3.0, 1.0], save_path=path, load_saved_checkpoint=False)
    assert capsys.readouterr().out == smallest


def test_d32_the_best_weights_are_not_loaded_if_told_so(make_trainer: Any, data: TensorDataset, tmp_path: Path) -> None:
    path = tmp_path / "best.pt"
    trainer, weights = run(make_trainer, data, [3.0, 1.0, 2.0], save_path=path, load_saved_checkpoint=False)
    assert torch.equal(trainer.model.weight, weights.copies[2])
    assert torch.equal(read_file(path)["model_state_dict"]["weight"], weights.copies[1])


@pytest.mark.parametrize("scores", [[1.0, 2.0], [2.0, 1.0]])
def test_the_metric_is_kept_under_its_own_name_at_every_save(
    make_trainer: Any, data: TensorDataset, tmp_path: Path, scores: list[float]
) -> None:
    run(make_trainer, data, scores, save_path=tmp_path / "best.pt")
    saved = read_file(tmp_path / "best.pt")
    assert saved["score"] == 1.0
    assert "loss" not in saved


@pytest.mark.parametrize("scores", [[1.0, 2.0], [2.0, 1.0]])
def test_what_is_not_to_be_saved_is_not_at_any_save(
    make_trainer: Any, data: TensorDataset, tmp_path: Path, scores: list[float]
) -> None:
    path = tmp_path / "best.pt"
    trainer, weights = run(make_trainer, data, scores, save_path=path, save_optimizer=False, save_scheduler=False)
    assert sorted(read_file(path)) == ["model_state_dict", "score"]
    assert torch.equal(trainer.model.weight, weights.copies[scores.index(1.0)])
    assert trainer.scheduler.last_epoch == 8


def test_greater_may_be_better_and_the_first_of_equals_stays(
    make_trainer: Any, data: TensorDataset, tmp_path: Path
) -> None:
    path = tmp_path / "best.pt"
    trainer, weights = run(make_trainer, data, [1.0, 3.0, 3.0], save_path=path, greater_is_better=True)
    assert torch.equal(trainer.model.weight, weights.copies[1])


def test_nan_is_never_saved(make_trainer: Any, data: TensorDataset, tmp_path: Path) -> None:
    path = tmp_path / "best.pt"
    trainer, weights = run(make_trainer, data, [math.nan, math.nan], save_path=path)
    assert not path.exists()
    assert torch.equal(trainer.model.weight, weights.copies[1])
    trainer, weights = run(make_trainer, data, [math.nan, 2.0, math.nan], save_path=path)
    assert torch.equal(trainer.model.weight, weights.copies[1])


def test_the_loss_of_evaluations_is_watched_by_default(make_trainer: Any, data: TensorDataset, tmp_path: Path) -> None:
    best = SaveBestModelCallback(tmp_path / "best.pt")
    result = make_trainer(best).train(data, num_epochs=3, eval_dataset=data)
    assert best.best_metric == min(result.history["eval_loss_epoch"])
    assert read_file(tmp_path / "best.pt")["eval_loss_epoch"] == best.best_metric


def test_a_resumed_run_still_knows_its_best(make_trainer: Any, data: TensorDataset, tmp_path: Path) -> None:
    def trainer_with(scores: list[float]) -> Any:
        best = SaveBestModelCallback(tmp_path / "best.pt", watch_metric="score")
        return make_trainer(best, scores=scores)

    first = trainer_with([1.0, 5.0])
    first.train(data, num_epochs=2, eval_dataset=data)
    first.save_training_state(tmp_path / "state")
    resumed = trainer_with([4.0])
    resumed.train(data, num_epochs=3, eval_dataset=data, resume_from=tmp_path / "state")
    assert read_file(tmp_path / "best.pt")["score"] == 1.0
    assert torch.equal(resumed.model.weight, first.model.weight)
