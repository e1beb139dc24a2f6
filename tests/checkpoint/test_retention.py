"""Which checkpoints of a run stay: the last, the spaced, the best; over restarts too."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.interrupting import CutAt, CutError, assert_same_bits, checkpoint_steps, make_trainer, samples, starts_of
from treadle import TrainerCallback
from treadle.checkpoint import CheckpointStore, Policy
from treadle.checkpoint.checkpointer import RunCheckpointer
from treadle.errors import ConfigError, UnknownMetricError
from treadle.trainer import Trainer


class Scripted(Trainer):
    """A trainer whose evaluations report the given scores, one after the other, by the evaluations done so far."""

    scores: list[float] = []

    def eval_epoch_end(self) -> None:
        done = len(self.run_history.get_metric_values("score"))
        self.run_history.update_metric("score", self.scores[done])


def scripted(run_dir: Path, scores: list[float], *callbacks: Any, **policy: Any) -> Any:
    trainer = make_trainer(
        run_dir, *callbacks, kind=Scripted, checkpoints=Policy(best="score", **{"greater_is_better": False, **policy})
    )
    trainer.scores = scores
    return trainer


def pointer(run_dir: Path, name: str) -> int | None:
    return CheckpointStore(run_dir / "checkpoints", Policy()).pointer(name)


def weights_at(run_dir: Path, step: int) -> Any:
    return CheckpointStore(run_dir / "checkpoints", Policy()).read(step)["tracked"]["model"]


def test_by_default_the_last_three_stay(tmp_path: Path) -> None:
    make_trainer(tmp_path).train(samples(), 5)
    assert checkpoint_steps(tmp_path) == [9, 12, 15]


@pytest.mark.parametrize(("keep", "steps"), [(1, [6]), (2, [5, 6]), (None, [1, 2, 3, 4, 5, 6])])
def test_as_many_stay_as_asked(tmp_path: Path, keep: int | None, steps: list[int]) -> None:
    make_trainer(tmp_path, checkpoints=Policy(keep_last=keep)).train(samples(), 2, save_every=1)
    assert checkpoint_steps(tmp_path) == steps


def test_every_so_many_steps_one_stays_besides(tmp_path: Path) -> None:
    make_trainer(tmp_path, checkpoints=Policy(keep_last=1, keep_every=4)).train(samples(), 4, save_every=1)
    assert checkpoint_steps(tmp_path) == [4, 8, 12]
    make_trainer(tmp_path, checkpoints=Policy(keep_last=1, keep_every=4)).train(
        samples(), 5, save_every=1, resume="auto"
    )
    assert starts_of(tmp_path) == [0, 12]
    assert checkpoint_steps(tmp_path) == [4, 8, 12, 15]


def test_rotation_goes_on_after_a_restart(tmp_path: Path) -> None:
    for cut in (4, 8):
        with pytest.raises(CutError):
            make_trainer(tmp_path, CutAt(cut), checkpoints=Policy(keep_last=2)).train(
                samples(), 4, save_every=1, resume="auto"
            )
    make_trainer(tmp_path, checkpoints=Policy(keep_last=2)).train(samples(), 4, save_every=1, resume="auto")
    assert starts_of(tmp_path) == [0, 3, 7]
    assert checkpoint_steps(tmp_path) == [11, 12]
    assert [path.name for path in (tmp_path / "checkpoints").iterdir() if path.name.startswith(".")] == []


def test_the_end_of_a_run_is_saved_though_no_save_was_due(tmp_path: Path) -> None:
    make_trainer(tmp_path).train(samples(), 2, save_every="5 steps")
    assert checkpoint_steps(tmp_path) == [5, 6]
    assert pointer(tmp_path, "last") == 6


def test_the_best_is_saved_when_it_improves_and_stays(tmp_path: Path) -> None:
    trainer = scripted(tmp_path, [3.0, 1.0, 2.0, 1.0, 5.0], keep_last=1)
    trainer.train(samples(), 5, samples(8), save_every="5 epochs")
    assert (pointer(tmp_path, "best"), pointer(tmp_path, "last")) == (6, 15)
    assert checkpoint_steps(tmp_path) == [6, 15]


def test_a_greater_value_may_be_better(tmp_path: Path) -> None:
    trainer = scripted(tmp_path, [3.0, 5.0, float("nan"), 4.0], keep_last=1, greater_is_better=True)
    trainer.train(samples(), 4, samples(8))
    assert (pointer(tmp_path, "best"), checkpoint_steps(tmp_path)) == (6, [6, 12])


def test_the_best_has_the_weights_that_were_evaluated(tmp_path: Path) -> None:
    evaluated: list[Any] = []

    class Remembering(Scripted):
        def eval_epoch_end(self) -> None:
            super().eval_epoch_end()
            evaluated.append({name: value.clone() for name, value in self.model.state_dict().items()})

    trainer = make_trainer(tmp_path, kind=Remembering, checkpoints=Policy(best="score", greater_is_better=False))
    trainer.scores = [3.0, 1.0, 2.0, 4.0, 5.0, 6.0]
    trainer.train(samples(), 4, samples(8), eval_every="2 steps", save_every="4 epochs")
    assert pointer(tmp_path, "best") == 4
    assert_same_bits(weights_at(tmp_path, 4), evaluated[1])


@pytest.mark.parametrize(("every", "best"), [("2 epochs", 6), ("5 steps", 5)])
def test_the_best_does_not_move_on_to_weights_that_nobody_evaluated(tmp_path: Path, every: str, best: int) -> None:
    trainer = scripted(tmp_path, [1.0, 2.0, 3.0])
    trainer.train(samples(), 5, samples(8), eval_every=every)
    assert pointer(tmp_path, "best") == best


def test_the_best_is_remembered_over_a_restart(tmp_path: Path) -> None:
    with pytest.raises(CutError):
        scripted(tmp_path, [3.0, 1.0, 2.0], CutAt(11), keep_last=1).train(samples(), 5, samples(8))
    scripted(tmp_path, [3.0, 1.0, 2.0, 2.0, 2.0], keep_last=1).train(samples(), 5, samples(8), resume="auto")
    assert starts_of(tmp_path) == [0, 9]
    assert (pointer(tmp_path, "best"), pointer(tmp_path, "last")) == (6, 15)
    assert checkpoint_steps(tmp_path) == [6, 15]


@pytest.mark.parametrize(
    ("metric", "greater"),
    [("accuracy", True), ("valid_ndcg@10", True), ("eval_loss_epoch", False), ("temperature", False), (None, False)],
)
def test_by_default_the_name_of_a_metric_says_which_value_is_best(metric: str | None, greater: bool) -> None:
    assert Policy(best=metric).keeps_greatest is greater
    assert Policy(best=metric, greater_is_better=not greater).keeps_greatest is not greater


def test_the_best_of_a_metric_that_should_rise_is_the_largest(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, kind=Scripted, checkpoints=Policy(best="score"))
    trainer.scores = [1.0, 3.0, 2.0]
    trainer.train(samples(), 3, samples(8))
    assert pointer(tmp_path, "best") == 6


@pytest.mark.parametrize("given", ["max", 1])
def test_a_direction_that_is_no_truth_value_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match=rf"Policy\(greater_is_better={given!r}\): give True, False or None"):
        Policy(best="accuracy", greater_is_better=given)


def test_a_metric_that_is_never_reported_is_named_with_those_that_are(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, checkpoints=Policy(best="acuracy"))
    with pytest.raises(UnknownMetricError, match=r"'acuracy'.*eval_loss_epoch"):
        trainer.train(samples(), 1, samples(8))


def test_the_checkpoint_at_the_end_says_that_the_run_is_finished(tmp_path: Path) -> None:
    make_trainer(tmp_path).train(samples(), 2)
    store = CheckpointStore(tmp_path / "checkpoints", Policy())
    assert [store.manifest(step)["finished"] for step in store.steps()] == [False, True]


def keeping_by(checkpointer: type[RunCheckpointer]) -> type[Trainer]:
    """Return a trainer whose runs are kept by another checkpointer."""

    class Keeping(Trainer):
        def create_checkpointer(self, folder: Path) -> RunCheckpointer:
            return checkpointer(self, self.this_run.state, folder)

    return Keeping


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_checkpoint_has_the_state_of_its_step(tmp_path: Path, asynchronous: bool) -> None:
    seen: dict[int, Any] = {}

    class Remembering(RunCheckpointer):
        def save(self, **kwargs: Any) -> None:
            super().save(**kwargs)
            trainer = self.trainer
            seen.setdefault(
                trainer.progress.step, {name: value.clone() for name, value in trainer.model.state_dict().items()}
            )

    trainer = make_trainer(
        tmp_path, kind=keeping_by(Remembering), checkpoints=Policy(keep_last=None, asynchronous=asynchronous)
    )
    trainer.train(samples(), 3, save_every=1)
    assert checkpoint_steps(tmp_path) == list(range(1, 10))
    for step in range(1, 10):
        assert_same_bits(weights_at(tmp_path, step), seen[step])


def fail_once(monkeypatch: pytest.MonkeyPatch, step: int, until: threading.Event | None = None) -> None:
    """Make the first attempt to write the checkpoint of `step` fail, not before `until` if that is given."""
    write = CheckpointStore._write_part
    due = [step]

    def failing(store: CheckpointStore, part: Path, structure: Any, tensors: dict[str, torch.Tensor]) -> Any:
        if due and part.name.endswith(f"{due[0]:08d}"):
            due.clear()
            assert until is None or until.wait(60)
            raise OSError(28, "No space left on device")
        return write(store, part, structure, tensors)

    monkeypatch.setattr(CheckpointStore, "_write_part", failing)


class AwaitWriting(TrainerCallback):
    """Lets each step begin when nothing is being written any more."""

    def on_update_start(self, trainer: Any, **kwargs: Any) -> None:
        if trainer.this_run.checkpointer._saver._thread is not None:
            trainer.this_run.checkpointer._saver._thread.join()


def test_a_run_told_to_warn_goes_on_without_a_checkpoint_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_once(monkeypatch, step=3)
    result = make_trainer(tmp_path, AwaitWriting, checkpoints=Policy(on_error="warn")).train(samples(), 3)
    assert result.steps == 9
    assert checkpoint_steps(tmp_path) == [6, 9]
    said = "continuing without a checkpoint: cannot write the checkpoint of step 3 into "
    assert said in capsys.readouterr().out


def test_a_failure_that_shows_late_does_not_cost_the_save_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saving = threading.Event()

    class Late(RunCheckpointer):
        def save(self, **kwargs: Any) -> None:
            if self.trainer.progress.step == 6:
                saving.set()
            super().save(**kwargs)

    fail_once(monkeypatch, step=3, until=saving)
    make_trainer(tmp_path, kind=keeping_by(Late), checkpoints=Policy(on_error="warn")).train(samples(), 3)
    assert checkpoint_steps(tmp_path) == [6, 9]


@pytest.mark.parametrize("save_every", ["1 epoch", "3 steps"])
def test_a_run_told_to_warn_still_saves_its_end_if_the_save_just_before_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save_every: str
) -> None:
    fail_once(monkeypatch, step=3)
    make_trainer(tmp_path, checkpoints=Policy(on_error="warn")).train(samples(), 1, save_every=save_every)
    assert checkpoint_steps(tmp_path) == [3]
