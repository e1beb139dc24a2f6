"""Going back to the last good checkpoint, past data that made the numbers go wrong."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR
from torch.utils.data import TensorDataset

from tests.interrupting import (
    CutAt,
    CutError,
    Rates,
    assert_same_bits,
    assert_same_run,
    checkpoint_steps,
    make_trainer,
    metric_lines,
    momentum,
    samples,
    starts_of,
    state_of,
    updates_of,
)
from tests.spoiling import IN_ORDER, BadGradient, seeded, spoilt, with_bad_gradient, without
from treadle import TrainerCallback
from treadle.callbacks import GradientNormMonitor, ModelEmaCallback
from treadle.checkpoint import CheckpointStore, Policy
from treadle.errors import ConfigError, NonFiniteError, StopTrainingError


def train(run_dir: Path | None, data: TensorDataset, *callbacks: Any, **kwargs: Any) -> Any:
    built = {name: kwargs.pop(name) for name in list(kwargs) if name in ("build", "optimizer", "max_rollbacks")}
    trainer = make_trainer(run_dir, *callbacks, on_nonfinite="rollback", **built)
    trainer.train(data, **{"num_epochs": 1, "save_every": 2, "log_every": 1, "resume": "auto", **IN_ORDER, **kwargs})
    return trainer


@pytest.mark.parametrize("bad", [3, 4, 5, 6])
@pytest.mark.parametrize("log_every", [1, 4, 50])
def test_after_going_back_the_run_is_as_if_the_window_had_never_come(tmp_path: Path, bad: int, log_every: int) -> None:
    rolled = train(tmp_path / "rolled", spoilt(bad), log_every=log_every)
    # Dropout draws, and so do the steps of the reference: nothing of the bad one is left in any generator.
    reference = make_trainer(None)
    reference.train(without(bad), 1, **IN_ORDER)
    assert_same_bits(state_of(rolled), state_of(reference))
    assert (rolled.progress.step, rolled.progress.epoch) == (6, 1)


def test_several_windows_may_be_bad(tmp_path: Path) -> None:
    rolled = train(tmp_path, spoilt(3, 4, 6))
    reference = make_trainer(None)
    reference.train(without(3, 4, 6), 1, **IN_ORDER)
    assert_same_bits(state_of(rolled), state_of(reference))


def test_a_bad_first_step_of_an_epoch_goes_back_to_the_end_of_the_one_before(tmp_path: Path) -> None:
    class BadOnce(TrainerCallback):
        """Spoils the weights of step 7, once in the life of the process."""

        done = False

        def on_train_step_start(self, trainer: Any, batch: Any = None, **kwargs: Any) -> None:
            if trainer.progress.step == 6 and not self.done:
                self.done = True
                batch[1].fill_(math.nan)

    shuffled = {"train_dataloader_kwargs": {}, "num_epochs": 2, "save_every": "1 epoch"}
    rolled = train(tmp_path, samples(), BadOnce(), **shuffled)
    assert (rolled.progress.step, rolled.progress.epoch) == (12, 2)
    assert len(rolled.run_history.get_metric_values("train_loss_epoch")) == 2
    assert all(state["step"] == 11 for state in rolled.optimizer.state.values())


def test_going_back_is_said_and_logged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path, spoilt(4))
    said = "loss is nan at step 4: back to step 2, and the data of step 4 is skipped"
    assert said in capsys.readouterr().out
    assert said in (tmp_path / "log.txt").read_text()


@pytest.mark.parametrize("log_every", [1, 2, 3, 4])
def test_no_line_of_the_metrics_is_missing_twice_or_bad(tmp_path: Path, log_every: int) -> None:
    train(tmp_path, spoilt(4), log_every=log_every)
    rows = metric_lines(tmp_path)
    losses = {row["step"]: row.get("train_loss") for row in rows}
    assert list(losses) == sorted({*range(log_every, 7, log_every), 6})
    assert "nan" not in losses.values()


def test_cadences_go_on_after_going_back(tmp_path: Path) -> None:
    logged: list[int] = []

    class Logs(TrainerCallback):
        def on_log(self, trainer: Any, **kwargs: Any) -> None:
            logged.append(trainer.progress.step)

    train(tmp_path, spoilt(3), Logs, log_every=4, save_every=2, eval_every="2 steps", eval_dataset=samples(8))
    assert logged == [4, 6]
    assert checkpoint_steps(tmp_path) == [2, 4, 6]
    evaluations = [row["step"] for row in metric_lines(tmp_path) if "eval_loss_epoch" in row]
    assert evaluations == [2, 4, 6]


def test_windows_that_are_left_out_count_as_steps_for_the_schedule(tmp_path: Path) -> None:
    rates = Rates()
    train(tmp_path, spoilt(4), rates, create_scheduler_fn=partial(ExponentialLR, gamma=0.5), optimizer=momentum)
    assert rates.used == {step: 0.05 * 0.5 ** (step - 1) for step in range(1, 7)}


def test_an_average_does_not_move_with_a_window_that_is_left_out(tmp_path: Path) -> None:
    average = ModelEmaCallback(decay=0.5, save_path=tmp_path / "average.pt")
    train(tmp_path / "run", spoilt(4), average)
    reference = ModelEmaCallback(decay=0.5, save_path=tmp_path / "average.pt")
    make_trainer(None, reference).train(without(4), 1, **IN_ORDER)
    for name, tensor in reference.ema_model.module.state_dict().items():
        torch.testing.assert_close(average.ema_model.module.state_dict()[name], tensor, rtol=1e-6, atol=0)


def test_a_bad_gradient_goes_back_to_weights_that_are_good(tmp_path: Path) -> None:
    build = partial(seeded, BadGradient)
    rolled = train(tmp_path, with_bad_gradient(3), build=build, save_every=1)
    reference = make_trainer(None, build=build)
    reference.train(without(3), 1, **IN_ORDER)
    assert_same_bits(state_of(rolled), state_of(reference))


# How often, and where to ----------------------------------------------------------------------------------


def test_a_run_goes_back_only_so_often(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError) as caught:
        train(tmp_path, spoilt(3, 4, 5), max_rollbacks=2)
    assert str(caught.value) == "loss is nan at step 5, after 2 rollbacks; lower the learning rate"
    assert train(tmp_path / "more", spoilt(3, 4, 5), max_rollbacks=3).progress.step == 6


def test_a_run_that_was_cut_still_goes_back_only_so_often(tmp_path: Path) -> None:
    with pytest.raises(CutError):
        train(tmp_path, spoilt(3, 6), CutAt(5), max_rollbacks=1, save_every=1)
    with pytest.raises(NonFiniteError, match="at step 6, after 1 rollback"):
        train(tmp_path, spoilt(3, 6), max_rollbacks=1, save_every=1)
    assert starts_of(tmp_path) == [0, 4]


def test_zero_rollbacks_are_none(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError, match="at step 3, after 0 rollbacks"):
        train(tmp_path, spoilt(3), max_rollbacks=0)


@pytest.mark.parametrize("value", [-1, 1.5, "3"])
def test_a_number_of_rollbacks_that_cannot_be_meant_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"max_rollbacks={value!r}"):
        make_trainer(None, max_rollbacks=value)


@pytest.mark.parametrize("bad", [1, 2])
def test_before_the_first_save_the_run_goes_back_to_its_beginning(tmp_path: Path, bad: int) -> None:
    rolled = train(tmp_path, spoilt(bad))
    reference = make_trainer(None)
    reference.train(without(bad), 1, **IN_ORDER)
    assert_same_bits(state_of(rolled), state_of(reference))


def test_without_a_whole_checkpoint_before_it_there_is_nowhere_to_go_back_to(tmp_path: Path) -> None:
    class Damages(TrainerCallback):
        def on_update_start(self, trainer: Any, **kwargs: Any) -> None:
            trainer.this_run.checkpointer.wait()
            for file in (tmp_path / "checkpoints").glob("*/rank_0.json"):
                file.write_text("{}")

    with pytest.raises(NonFiniteError) as caught:
        train(tmp_path, spoilt(2), Damages)
    message = "loss is nan at step 2, before the first checkpoint; lower the learning rate or save_every"
    assert str(caught.value) == message


def test_without_a_folder_it_cannot_be_meant() -> None:
    with pytest.raises(ConfigError, match=r"on_nonfinite='rollback'.*run_dir"):
        make_trainer(None, on_nonfinite="rollback").train(samples(), 1)


def test_a_damaged_checkpoint_is_passed_over_on_the_way_back(tmp_path: Path) -> None:
    class Damages(TrainerCallback):
        done = False

        def on_update_start(self, trainer: Any, **kwargs: Any) -> None:
            if trainer.progress.step == 3 and not self.done:
                self.done = True
                trainer.this_run.checkpointer.wait()
                (tmp_path / "checkpoints" / "step_00000003" / "rank_0.json").write_text("{}")

    rolled = train(tmp_path, spoilt(4), Damages, save_every=1)
    reference = make_trainer(None)
    reference.train(without(4), 1, **IN_ORDER)
    assert_same_bits(state_of(rolled), state_of(reference))


def test_pointers_name_complete_checkpoints_while_the_run_is_back(tmp_path: Path) -> None:
    seen: list[Any] = []

    class Looks(TrainerCallback):
        def on_train_epoch_start(self, trainer: Any, **kwargs: Any) -> None:
            store = CheckpointStore(tmp_path / "checkpoints", Policy())
            names = [path.read_text().strip() for path in store.folder.glob("last")]
            seen.append((store.steps(), names))

    train(tmp_path, spoilt(5), Looks, log_every=50, save_every=2)
    assert seen[1:] == [([2, 4], ["step_00000004"])]


# Cut, stopped and resumed ---------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [4, 5])
def test_a_run_that_went_back_and_is_cut_goes_on_exactly(tmp_path: Path, cut: int) -> None:
    whole = train(tmp_path / "whole", spoilt(3), num_epochs=1)
    with pytest.raises(CutError):
        train(tmp_path / "cut", spoilt(3), CutAt(cut))
    resumed = train(tmp_path / "cut", spoilt(3))
    # What was saved at step 2 does not know yet that the third window is bad: the run makes that update and goes back.
    assert updates_of(resumed) == ((2, 1 + 4) if cut == 4 else (4, 2))
    assert_same_run(resumed, whole)
    assert metric_lines(tmp_path / "cut") == metric_lines(tmp_path / "whole")


def test_a_stop_right_after_a_bad_step_is_not_an_error_of_ours(tmp_path: Path) -> None:
    class Stops(TrainerCallback):
        def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
            if trainer.progress.step == 4:
                raise StopTrainingError("enough")

    try:
        trainer = train(tmp_path, spoilt(4), Stops, log_every=50)
    except NonFiniteError:
        pass
    else:
        assert all(tensor.isfinite().all() for tensor in trainer.model.state_dict().values())
    store = CheckpointStore(tmp_path / "checkpoints", Policy())
    newest = store.read(store.steps()[-1])["tracked"]["model"]
    assert all(tensor.isfinite().all() for tensor in newest.values())


def test_a_diverging_run_gives_up(tmp_path: Path) -> None:
    def far_too_fast(parameters: Any) -> Any:
        return momentum([{"params": list(parameters), "lr": 1e30}])

    with pytest.raises(NonFiniteError, match="after 3 rollbacks"):
        train(tmp_path, samples(), optimizer=far_too_fast, build=lambda: nn.Linear(2, 1), save_every=1)


def test_a_step_that_is_skipped_has_no_gradient_norm(tmp_path: Path) -> None:
    class Norms(TrainerCallback):
        def __init__(self) -> None:
            self.found: dict[int, bool] = {}

        def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
            self.found[trainer.progress.step] = trainer.gradient_norm is not None

    norms = Norms()
    train(tmp_path, spoilt(4), GradientNormMonitor(every="1 step"), norms)
    assert norms.found == {1: True, 2: True, 3: True, 4: False, 5: True, 6: True}
    assert [line["step"] for line in metric_lines(tmp_path) if "gradient_norm" in line] == [1, 2, 3, 5, 6]
