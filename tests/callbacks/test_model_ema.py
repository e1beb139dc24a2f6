from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from tests.interrupting import Updates
from treadle.callback import TrainerCallback
from treadle.callbacks import ModelEma, ModelEmaCallback, SaveTrainingStateCallback
from treadle.checkpoint import read_file
from treadle.errors import ConfigError, StopTrainingError


class Reference(TrainerCallback):
    """Averages the weights by hand, at every update or every epoch."""

    def __init__(self, decay: float, unit: str = "update") -> None:
        self._decay, self._unit = decay, unit
        self.weight: torch.Tensor | None = None
        self.moves = 0

    def on_training_run_start(self, trainer: Any, **kwargs: Any) -> None:
        self.weight = trainer.model.weight.detach().clone()

    def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
        self._move(trainer, "update")

    def on_train_epoch_end(self, trainer: Any, **kwargs: Any) -> None:
        self._move(trainer, "epoch")

    def _move(self, trainer: Any, unit: str) -> None:
        if unit == self._unit:
            self.moves += 1
            self.weight = self._decay * self.weight + (1 - self._decay) * trainer.model.weight.detach()


@pytest.mark.parametrize(("unit", "update_every", "moves"), [("update", None, 8), ("epoch", "1 epoch", 2)])
def test_the_average_moves_at_every_update_or_as_told(
    make_trainer: Any, data: TensorDataset, tmp_path: Path, unit: str, update_every: str | None, moves: int
) -> None:
    ema = ModelEmaCallback(decay=0.75, save_path=tmp_path / "ema.pt", update_every=update_every)
    reference = Reference(0.75, unit)
    make_trainer(ema, reference).train(data, num_epochs=2)
    assert reference.moves == moves
    torch.testing.assert_close(ema.ema_model.module.weight, reference.weight)


def test_the_average_is_evaluated_under_its_prefix_and_the_model_stays(
    make_trainer: Any, data: TensorDataset, tmp_path: Path
) -> None:
    ema = ModelEmaCallback(decay=0.9, save_path=tmp_path / "ema.pt")
    trainer = make_trainer(ema)
    model = trainer.model
    result = trainer.train(data, num_epochs=2, eval_dataset=data)
    inputs, targets = data.tensors
    own = nn.functional.mse_loss(model(inputs), targets).item()
    averaged = nn.functional.mse_loss(ema.ema_model.module(inputs), targets).item()
    assert result.history["eval_loss_epoch"][-1] == pytest.approx(own)
    assert result.history["ema_model_eval_loss_epoch"][-1] == pytest.approx(averaged)
    assert own != pytest.approx(averaged)
    assert trainer.model is model
    assert trainer.run_history.metric_name_prefix == ""
    assert list(trainer.callback_handler) == [ema]


def test_training_goes_on_as_without_the_average(make_trainer: Any, data: TensorDataset, tmp_path: Path) -> None:
    with_average = make_trainer(ModelEmaCallback(save_path=tmp_path / "ema.pt"))
    without = make_trainer()
    for trainer in (with_average, without):
        trainer.train(data, num_epochs=2, eval_dataset=data)
    assert torch.equal(with_average.model.weight, without.model.weight)


def test_the_best_average_is_saved_with_its_metric_and_nothing_else(
    make_trainer: Any, data: TensorDataset, tmp_path: Path
) -> None:
    ema = ModelEmaCallback(save_path=tmp_path / "ema.pt", watch_metric="ema_model_score")
    copies: list[torch.Tensor] = []

    class Copying(TrainerCallback):
        def on_training_run_epoch_end(self, trainer: Any, **kwargs: Any) -> None:
            copies.append(ema.ema_model.module.weight.clone())

    # The model and its average report a score in turn: the average has 3, 1 and 2.
    trainer = make_trainer(ema, Copying, scores=[0.0, 3.0, 0.0, 1.0, 0.0, 2.0])
    trainer.train(data, num_epochs=3, eval_dataset=data)
    saved = read_file(tmp_path / "ema.pt")
    assert sorted(saved) == ["ema_model_score", "model_state_dict"]
    assert saved["ema_model_score"] == 1.0
    assert torch.equal(saved["model_state_dict"]["weight"], copies[1])


def test_evaluations_by_step_evaluate_the_average_too(make_trainer: Any, data: TensorDataset, tmp_path: Path) -> None:
    ema = ModelEmaCallback(save_path=tmp_path / "ema.pt")
    result = make_trainer(ema).train(data, num_epochs=2, eval_dataset=data, eval_every=2)
    assert len(result.history["ema_model_eval_loss_epoch"]) == 4
    assert ema.best_metric == min(result.history["ema_model_eval_loss_epoch"])


def test_without_evaluation_data_it_only_averages_and_saves_the_last(
    make_trainer: Any, data: TensorDataset, tmp_path: Path
) -> None:
    ema = ModelEmaCallback(save_path=tmp_path / "ema.pt")
    result = make_trainer(ema).train(data, num_epochs=2)
    assert sorted(result.history) == ["train_loss_epoch"]
    saved = read_file(tmp_path / "ema.pt")["model_state_dict"]["weight"]
    assert torch.equal(saved, ema.ema_model.module.weight)


def test_evaluations_of_the_average_can_be_left_out(make_trainer: Any, data: TensorDataset, tmp_path: Path) -> None:
    ema = ModelEmaCallback(save_path=tmp_path / "ema.pt", evaluate_during_training=False)
    result = make_trainer(ema).train(data, num_epochs=1, eval_dataset=data)
    assert sorted(result.history) == ["eval_loss_epoch", "train_loss_epoch"]


class Life(TrainerCallback):
    """Takes note of the events that reach it."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def on_training_run_start(self, trainer: Any, **kwargs: Any) -> None:
        self.events.append("start")

    def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
        self.events.append("update")

    def on_eval_step_end(self, trainer: Any, **kwargs: Any) -> None:
        self.events.append("batch")

    def on_eval_epoch_end(self, trainer: Any, **kwargs: Any) -> None:
        self.events.append("evaluated")

    def on_training_run_end(self, trainer: Any, **kwargs: Any) -> None:
        self.events.append("end")

    def close(self) -> None:
        self.events.append("close")


def test_its_own_callbacks_see_the_evaluations_of_the_average_and_the_run_around_them(
    make_trainer: Any, data: TensorDataset, tmp_path: Path
) -> None:
    life = Life()
    ema = ModelEmaCallback(save_path=tmp_path / "ema.pt", callbacks=[life])
    make_trainer(ema).train(data, num_epochs=1, eval_dataset=data, per_device_batch_size=16)
    assert life.events == ["start", "batch", "batch", "evaluated", "end", "close"]


@pytest.mark.parametrize("error", [StopTrainingError, RuntimeError])
def test_whatever_happens_in_its_evaluation_the_model_is_put_back(
    make_trainer: Any, data: TensorDataset, tmp_path: Path, error: type[Exception]
) -> None:
    class Failing(TrainerCallback):
        def on_eval_step_end(self, trainer: Any, **kwargs: Any) -> None:
            raise error("now")

    trainer = make_trainer(ModelEmaCallback(save_path=tmp_path / "ema.pt", callbacks=[Failing]))
    model, handler = trainer.model, trainer.callback_handler
    if error is StopTrainingError:
        assert trainer.train(data, num_epochs=2, eval_dataset=data).stop_reason == "now"
    else:
        with pytest.raises(RuntimeError, match="now"):
            trainer.train(data, num_epochs=2, eval_dataset=data)
    assert trainer.model is model
    assert trainer.callback_handler is handler
    assert trainer.run_history.metric_name_prefix == ""


def test_a_resumed_run_goes_on_with_the_same_average(make_trainer: Any, data: TensorDataset, tmp_path: Path) -> None:
    updates = Updates()

    def run(**kwargs: Any) -> tuple[ModelEmaCallback, Any]:
        ema = ModelEmaCallback(save_path=tmp_path / "ema.pt")
        saving = SaveTrainingStateCallback(tmp_path, save_every_n_steps=3)
        trainer = make_trainer(ema, saving, updates)
        return ema, trainer.train(data, num_epochs=2, eval_dataset=data, **kwargs)

    whole, result = run()
    resumed, resumed_result = run(resume_from=tmp_path / "step_6")
    assert (updates.began, updates.made) == (6, 2)
    assert torch.equal(resumed.ema_model.module.weight, whole.ema_model.module.weight)
    assert resumed.best_metric == whole.best_metric
    assert resumed_result.history == result.history


def test_an_average_of_ones_own_kind_can_be_given(make_trainer: Any, data: TensorDataset, tmp_path: Path) -> None:
    class Frozen(ModelEma):
        def update(self, model: nn.Module) -> None:
            """Stay."""

    ema = ModelEmaCallback(save_path=tmp_path / "ema.pt", model_ema=Frozen)
    trainer = make_trainer(ema)
    before = trainer.model.weight.detach().clone()
    trainer.train(data, num_epochs=1)
    assert torch.equal(ema.ema_model.module.weight, before)


def test_a_cadence_that_cannot_be_meant_is_refused_when_it_is_built() -> None:
    with pytest.raises(ConfigError, match="update_every='often' is not a valid interval"):
        ModelEmaCallback(update_every="often")
