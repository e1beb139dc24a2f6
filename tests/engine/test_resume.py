"""Going on with a run: exactly, from whatever was saved last, and with what a config may change in between."""

import contextlib
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.engine.parts import Classifier, Points, iterations_of, make_config
from tests.forking.starting import run
from tests.interrupting import metric_lines
from treadle.checkpoint import CheckpointStore, write_file
from treadle.config import LazyCall
from treadle.engine import Checkpointer, DefaultTrainer, HookBase, hooks
from treadle.engine.evaluation import DatasetEvaluator
from treadle.errors import CheckpointError, ConfigError, UnknownMetricError
from treadle.precision import LossScaling
from treadle.runs.preemption import PreemptedExit
from treadle.runs.status import read_status


class Interrupted(Exception):  # noqa: N818 - it is no error
    """Stands for whatever ends a process."""


class Stopping(DefaultTrainer):
    """Dies after an iteration, right after the checkpoint or after every hook."""

    die_after = -1
    die_first = False

    def build_hooks(self) -> list[HookBase | None]:
        def die(trainer: Any) -> None:
            if trainer.iter + 1 == self.die_after:
                raise Interrupted

        death = hooks.CallbackHook(after_step=die)
        found = super().build_hooks()
        # Where in the list it stands decides which hooks have still to act in the iteration.
        return [*found[:4], death, *found[4:]] if self.die_first else [*found, death]


def config(folder: Path, **train: Any) -> Any:
    settings = {"evaluation": {"enabled": True, "eval_period": 2}, "checkpointer": {"period": 4}, **train}
    made = make_config(folder, **settings)
    made.model = LazyCall(Classifier)(dropout=0.5)
    made.dataloader.train = LazyCall(Points)(count=36)
    return made


def interrupted(folder: Path, after: int, *, first: bool = False, **train: Any) -> None:
    kind: Any = type("Dying", (Stopping,), {"die_after": after, "die_first": first})
    with pytest.raises(Interrupted):
        kind(config(folder, **train)).train()


def weights(trainer: DefaultTrainer) -> list[torch.Tensor]:
    return [value.clone() for value in trainer.model.state_dict().values()]


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("after", [4, 6, 8])
def test_b17_b18_a_resumed_run_ends_in_the_same_bits_and_the_same_metrics(
    tmp_path: Path, after: int, first: bool
) -> None:
    whole = DefaultTrainer(config(tmp_path / "whole"))
    whole.train()
    interrupted(tmp_path / "part", after, first=first)
    resumed = DefaultTrainer(config(tmp_path / "part", resume=True))
    assert 4 <= resumed.start_iter <= after
    made = iterations_of(resumed)
    results = resumed.train()
    assert made == list(range(resumed.start_iter, 10))
    for own, other in zip(weights(resumed), weights(whole), strict=True):
        assert torch.equal(own, other)
    assert metric_lines(tmp_path / "part", "metrics.json") == metric_lines(tmp_path / "whole", "metrics.json")
    assert results == whole._last_eval_results
    best, own_best = (
        next(hook for hook in trainer._hooks if isinstance(hook, hooks.BestCheckpointer))
        for trainer in (whole, resumed)
    )
    assert (own_best.best_metric, own_best.best_iter) == (best.best_metric, best.best_iter)
    assert resumed.checkpointer.store.pointer("best") == whole.checkpointer.store.pointer("best")


def test_b17_the_next_batch_rate_and_random_numbers_are_those_of_the_uninterrupted_run(tmp_path: Path) -> None:
    seen: dict[str, list[Any]] = {}

    class Noting(Stopping):
        name = ""

        def build_hooks(self) -> list[HookBase | None]:
            note = hooks.CallbackHook(before_step=lambda own: self.note(own.optimizer.param_groups[0]["lr"]))
            return [*super().build_hooks(), note]

        def note(self, value: Any) -> None:
            seen.setdefault(self.name, []).append((self.iter, value))

        def get_batch(self, data: Any) -> Any:  # type: ignore[override]
            self.note((data["inputs"].tolist(), torch.rand(()).item()))
            return data

    def run(name: str, folder: Path, after: int = -1, **train: Any) -> None:
        kind: Any = type("Noting", (Noting,), {"name": name, "die_after": after})
        trainer = kind(config(folder, evaluation={"enabled": False}, **train))
        with contextlib.suppress(Interrupted):
            trainer.train()

    run("whole", tmp_path / "whole")
    run("before", tmp_path / "part", after=6)
    run("after", tmp_path / "part", resume="auto")
    assert seen["after"][0][0] == 4
    assert seen["after"] == [entry for entry in seen["whole"] if entry[0] >= 4]


def test_b17_the_scale_of_the_loss_is_resumed(tmp_path: Path) -> None:
    def made(**train: Any) -> Any:
        built = config(tmp_path, evaluation={"enabled": False}, **train)
        built.train.amp = {"enabled": True, "dtype": "fp16"}
        return built

    growing = LossScaling(growth_interval=2)
    trainer = DefaultTrainer(made(train_iter=4))
    trainer.register_hooks(
        [hooks.CallbackHook(before_train=lambda own: setattr(own.core.precision.scaler, "policy", growing))]
    )
    trainer.train()
    scale = trainer.core.precision.scaler.get_scale()
    assert scale != 65536.0
    resumed = DefaultTrainer(made(train_iter=5, resume=True))
    scales: list[float] = []
    note = hooks.CallbackHook(before_step=lambda own: scales.append(own.core.precision.scaler.get_scale()))
    resumed.register_hooks([note])
    resumed.train()
    assert scales == [scale]


@pytest.mark.parametrize("resume", [True, "auto"])
def test_b19_resume_on_an_empty_folder_begins_afresh(tmp_path: Path, resume: Any) -> None:
    trainer = DefaultTrainer(make_config(tmp_path, resume=resume))
    assert trainer.start_iter == 0
    trainer.train()
    assert trainer.iter == 10


def test_b19_a_finished_run_goes_on_when_more_iterations_are_asked_for(tmp_path: Path) -> None:
    DefaultTrainer(config(tmp_path / "longer", train_iter=6, scheduler=None)).train()
    longer = DefaultTrainer(config(tmp_path / "longer", train_iter=10, scheduler=None, resume="auto"))
    assert (longer.start_iter, longer.cfg.train.start_iter) == (6, 6)
    made = iterations_of(longer)
    longer.train()
    assert made == [6, 7, 8, 9]
    whole = DefaultTrainer(config(tmp_path / "whole", train_iter=10, scheduler=None))
    whole.train()
    for own, other in zip(weights(longer), weights(whole), strict=True):
        assert torch.equal(own, other)
    iterations = [line["iteration"] for line in metric_lines(tmp_path / "longer", "metrics.json")]
    assert iterations == list(range(11))


def test_b19_a_longer_run_follows_the_longer_schedule(tmp_path: Path) -> None:
    def made(iterations: int, **train: Any) -> Any:
        scheduler = LazyCall(torch.optim.lr_scheduler.CosineAnnealingLR)(T_max=iterations)
        return config(tmp_path, train_iter=iterations, scheduler=scheduler, evaluation={"enabled": False}, **train)

    DefaultTrainer(made(4)).train()
    longer = DefaultTrainer(made(8, resume=True))
    longer.train()
    rates = [line["lr"] for line in metric_lines(tmp_path, "metrics.json")[4:] if "lr" in line]
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=8)
    expected = []
    for _ in range(8):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates == pytest.approx(expected[4:])


def test_b19_a_run_that_is_done_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    DefaultTrainer(config(tmp_path)).train()
    before = (tmp_path / "metrics.json").read_bytes()
    again = DefaultTrainer(config(tmp_path, resume="auto"))
    caplog.set_level("INFO", "treadle")
    again.train()
    assert "nothing to do: iteration 10 of 10 is reached" in caplog.text
    assert (tmp_path / "metrics.json").read_bytes() == before


def test_b19_a_run_that_died_in_its_final_evaluation_makes_up_for_it(tmp_path: Path) -> None:
    class Dying(DefaultTrainer):
        @classmethod
        def test(cls, cfg: Any, *args: Any, **kwargs: Any) -> Any:
            raise Interrupted

    made = config(tmp_path / "part", evaluation={"enabled": True, "eval_period": 0})
    with pytest.raises(Interrupted):
        Dying(made).train()
    resumed = DefaultTrainer(config(tmp_path / "part", evaluation={"enabled": True, "eval_period": 0}, resume=True))
    made = iterations_of(resumed)
    results = resumed.train()
    assert made == []
    whole = DefaultTrainer(config(tmp_path / "whole", evaluation={"enabled": True, "eval_period": 0}))
    assert results == whole.train()
    assert metric_lines(tmp_path / "part", "metrics.json") == metric_lines(tmp_path / "whole", "metrics.json")


def test_b20_load_weight_loads_weights_only_and_begins_at_iteration_0(tmp_path: Path) -> None:
    first = DefaultTrainer(make_config(tmp_path / "first"))
    first.train()
    tuned = DefaultTrainer(make_config(tmp_path / "tuned", load_weight=str(tmp_path / "first")))
    assert tuned.start_iter == 0
    assert not tuned.optimizer.state
    for own, other in zip(weights(tuned), weights(first), strict=True):
        assert torch.equal(own, other)
    tuned.train()
    assert tuned.iter == 10


def test_b20_resuming_wins_over_load_weight(tmp_path: Path) -> None:
    first = DefaultTrainer(make_config(tmp_path / "first"))
    first.train()
    run = DefaultTrainer(make_config(tmp_path / "run", train_iter=5))
    run.train()
    resumed = DefaultTrainer(make_config(tmp_path / "run", resume=True, load_weight=str(tmp_path / "first")))
    assert resumed.start_iter == 5
    for own, other in zip(weights(resumed), weights(run), strict=True):
        assert torch.equal(own, other)


def test_b21_what_a_crash_left_half_written_is_not_what_is_resumed(tmp_path: Path) -> None:
    interrupted(tmp_path, 9, evaluation={"enabled": False})
    folder = tmp_path / "checkpoints"
    assert CheckpointStore(folder, None).steps()[-1] == 8  # type: ignore[arg-type]
    shutil.copytree(folder / "step_00000008", folder / ".part_attempt_00000009")
    (folder / "step_00000008" / "rank_0.safetensors").write_bytes(b"cut")
    resumed = DefaultTrainer(config(tmp_path, resume=True, evaluation={"enabled": False}))
    assert resumed.start_iter == 4
    made = iterations_of(resumed)
    resumed.train()
    assert made == [4, 5, 6, 7, 8, 9]
    assert not list(folder.glob(".part_*"))


def test_b23_weights_that_do_not_fit_are_listed_in_groups(tmp_path: Path) -> None:
    write_file(
        tmp_path / "w.safetensors", {"model_state_dict": {"head.weight": torch.zeros(3, 8), "old": torch.zeros(1)}}
    )
    model = Classifier()
    checkpointer = Checkpointer(model, tmp_path)
    message = (
        r"missing: body.0.bias, body.0.weight, head.bias; unexpected: old; "
        r"of another shape: head.weight \(3, 8\) instead of \(2, 8\); strict=False loads the rest"
    )
    with pytest.raises(CheckpointError, match=message):
        checkpointer.load(tmp_path / "w.safetensors")
    write_file(tmp_path / "some.safetensors", {"model_state_dict": {"head.bias": torch.ones(2), "old": torch.ones(1)}})
    checkpointer.load(tmp_path / "some.safetensors", strict=False)
    assert model.head.bias.tolist() == [1.0, 1.0]


def test_b23_a_run_of_another_model_is_not_resumed(tmp_path: Path) -> None:
    DefaultTrainer(make_config(tmp_path, train_iter=5)).train()
    made = make_config(tmp_path, resume=True)
    made.model = LazyCall(Classifier)(width=4)
    with pytest.raises(CheckpointError, match=r"of another shape: body.0.bias \(8,\) instead of \(4,\)"):
        DefaultTrainer(made)


def steps_of(folder: Path) -> list[int]:
    return CheckpointStore(folder / "checkpoints", None).steps()  # type: ignore[arg-type]


def test_b24_so_many_checkpoints_are_kept_after_restarts_too(tmp_path: Path) -> None:
    keep = {"checkpointer": {"period": 2, "max_to_keep": 2}, "evaluation": {"enabled": False}}
    interrupted(tmp_path, 7, **keep)
    assert steps_of(tmp_path) == [4, 6]
    resumed = DefaultTrainer(config(tmp_path, resume=True, **keep))
    made = iterations_of(resumed)
    resumed.train()
    assert made == [6, 7, 8, 9]
    assert steps_of(tmp_path) == [8, 10]


def test_b24_the_best_and_the_final_checkpoint_are_never_pruned(tmp_path: Path) -> None:
    values = iter([0.9, 0.5, 0.4, 0.3, 0.2])

    class Worse(DefaultTrainer):
        @classmethod
        def test(cls, cfg: Any, *args: Any, **kwargs: Any) -> Any:
            return {"Acc@1": next(values)}

    trainer = Worse(config(tmp_path, checkpointer={"period": 2, "max_to_keep": 1}))
    trainer.train()
    assert steps_of(tmp_path) == [2, 10]
    assert trainer.checkpointer.store.pointer("model_best") == 2
    assert trainer.checkpointer.store.pointer("model_final") == 10
    longer = Worse(config(tmp_path, train_iter=14, resume=True, checkpointer={"period": 2, "max_to_keep": 1}))
    longer.register_hooks([hooks.CallbackHook(after_step=lambda own: own.iter == 12 and 1 / 0)])
    values = iter([0.1, 0.1, 0.1])
    with pytest.raises(ZeroDivisionError):
        longer.train()
    assert steps_of(tmp_path) == [2, 10, 12]


def test_b25_nan_never_wins_and_last_stays_the_newest(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    values = iter([float("nan"), 0.5, float("inf"), 0.4, 0.1])

    class Varying(DefaultTrainer):
        @classmethod
        def test(cls, cfg: Any, *args: Any, **kwargs: Any) -> Any:
            return {"Acc@1": next(values)}

    trainer = Varying(config(tmp_path))
    trainer.train()
    assert "Acc@1 is nan and not taken as the best" in caplog.text
    assert trainer.checkpointer.store.pointer("best") == 4
    assert trainer.checkpointer.store.pointer("last") == 10
    assert DefaultTrainer(config(tmp_path, resume=True)).start_iter == 10


def test_b25_a_metric_that_is_not_reported_is_an_error_with_those_that_are_and_the_nearest(tmp_path: Path) -> None:
    trainer = DefaultTrainer(config(tmp_path, evaluation={"enabled": True, "eval_period": 0, "eval_metric": "acc@1"}))
    told = (
        r"BestCheckpointer watches 'acc@1', but the evaluation reported \['Acc@1', 'Acc@5'\]; set "
        r"train.evaluation.eval_metric to one of these; did you mean 'Acc@1'\?"
    )
    with pytest.raises(UnknownMetricError, match=told):
        trainer.train()


def test_b26_an_error_of_a_checkpoint_in_the_background_surfaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = CheckpointStore.write

    def failing(self: CheckpointStore, step: int, *args: Any) -> None:
        if step == 2:
            raise CheckpointError("the disk is full")
        write(self, step, *args)

    monkeypatch.setattr(CheckpointStore, "write", failing)
    trainer = DefaultTrainer(make_config(tmp_path, checkpointer={"period": 2}))
    with pytest.raises(CheckpointError, match="the disk is full"):
        trainer.train()
    assert trainer.iter <= 3  # before the next save
    assert steps_of(tmp_path) == [0]


def test_a_folder_that_holds_a_run_is_not_written_over(tmp_path: Path) -> None:
    DefaultTrainer(make_config(tmp_path)).train()
    with pytest.raises(CheckpointError, match=r"already holds a run; set train.resume=True \(or pass --resume\)"):
        DefaultTrainer(make_config(tmp_path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"resume": "always"}, "train.resume='always' is unknown; use True, False or 'auto'"),
        ({"load_weight": 5}, "train.load_weight=5 must be text, a path or None"),
    ],
)
def test_settings_of_a_start_that_mean_nothing_are_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        DefaultTrainer(make_config(tmp_path, **change))


def test_a_checkpoint_is_loaded_by_folder_name_or_file(tmp_path: Path) -> None:
    trainer = DefaultTrainer(make_config(tmp_path))
    trainer.train()
    fresh = Checkpointer(Classifier(), tmp_path)
    sources: list[Callable[[], Any]] = [
        lambda: fresh.load(tmp_path),
        lambda: fresh.load(tmp_path / "checkpoints"),
        lambda: fresh.load(trainer.checkpointer.get_checkpoint_file()),
        lambda: fresh.load("model_final"),
    ]
    for load in sources:
        nn.init.zeros_(fresh.model.head.weight)
        assert load()["iteration"] == 9
        assert torch.equal(fresh.model.head.weight, trainer.model.head.weight)
    alone = Checkpointer(trainer.model, tmp_path / "alone")
    alone.save("weights")
    torch.save(trainer.model.state_dict(), tmp_path / "weights.pth")
    for file in (tmp_path / "alone" / "weights.safetensors", tmp_path / "weights.pth"):
        nn.init.zeros_(fresh.model.head.weight)
        fresh.load(file)
        assert torch.equal(fresh.model.head.weight, trainer.model.head.weight)
    with pytest.raises(CheckpointError, match="holds no checkpoint; give the folder of a run"):
        fresh.load(tmp_path / "alone")


@pytest.mark.parametrize("name", ["last", "complete", "step_3", "a/b", ".hidden", ""])
def test_a_name_that_would_be_confused_with_a_file_of_the_run_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"checkpointer.save\(.*\): use letters, digits"):
        Checkpointer(Classifier(), tmp_path).save(name)


def test_a_checkpoint_saved_by_hand_under_a_name_stays(tmp_path: Path) -> None:
    class Saving(DefaultTrainer):
        def build_hooks(self) -> list[HookBase | None]:
            def save(own: Any) -> None:
                if own.iter == 1:
                    own.checkpointer.save("before_the_drop")

            return [*super().build_hooks(), hooks.CallbackHook(after_step=save)]

    trainer = Saving(make_config(tmp_path, checkpointer={"period": 3, "max_to_keep": 1}))
    trainer.train()
    assert trainer.checkpointer.store.pointer("before_the_drop") == 2
    assert steps_of(tmp_path) == [2, 10]


PROGRAM = """
import os, signal, sys
from pathlib import Path
from tests.engine.test_resume import config
from treadle.engine import DefaultTrainer, hooks
folder, kill_at = Path(sys.argv[1]), int(sys.argv[2])
periods = {"log_period": 4, "checkpointer": {"period": 3}} if len(sys.argv) > 3 else {}
made = config(folder, train_iter=12, resume="auto", **periods)
trainer = DefaultTrainer(made)
def kill(own):
    if own.iter == kill_at and own.start_iter < kill_at:
        os.kill(os.getpid(), signal.SIGKILL)
trainer.register_hooks([hooks.CallbackHook(after_step=kill)])
trainer.train()
"""


def status(folder: Path, kill_at: int, *more: str) -> int:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    root = Path(__file__).parents[2]
    return run("-c", PROGRAM, str(folder), str(kill_at), *more, cwd=root, env=environment, timeout=120).returncode


@pytest.mark.slow
def test_kills_leave_no_further_lines_in_the_metrics(tmp_path: Path) -> None:
    assert status(tmp_path / "whole", -1, "apart") == 0
    for kill_at in (4, 10):
        assert status(tmp_path / "killed", kill_at, "apart") == -signal.SIGKILL
    assert status(tmp_path / "killed", -1, "apart") == 0
    found = [
        [json.loads(line)["iteration"] for line in (tmp_path / name / "metrics.json").read_text().splitlines()]
        for name in ("killed", "whole")
    ]
    assert found[0] == found[1]


@pytest.mark.slow
def test_b18_the_same_command_after_kills_ends_as_if_never_killed(tmp_path: Path) -> None:
    assert status(tmp_path / "whole", -1) == 0
    for kill_at in (5, 10):
        assert status(tmp_path / "killed", kill_at) == -signal.SIGKILL
    assert status(tmp_path / "killed", -1) == 0
    assert metric_lines(tmp_path / "killed", "metrics.json") == metric_lines(tmp_path / "whole", "metrics.json")
    models = [Checkpointer(Classifier(), tmp_path / name) for name in ("killed", "whole")]
    for checkpointer in models:
        assert checkpointer.resume_or_load()["iteration"] == 11
    states = [checkpointer.model.state_dict() for checkpointer in models]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


class Signalling(DatasetEvaluator):
    """Asks this process to leave at a batch, once, and counts."""

    at, batches = 0, 0

    def process(self, inputs: Any, outputs: Any) -> None:
        Signalling.batches += 1
        if Signalling.batches == Signalling.at:
            os.kill(os.getpid(), signal.SIGTERM)

    def evaluate(self) -> dict[str, float]:
        return {"seen": 1.0}


def test_a_run_asked_to_leave_in_an_evaluation_breaks_it_off_and_makes_it_when_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_steps: list[int] = []

    def trained(folder: Path, at: int = 0) -> DefaultTrainer:
        made = config(folder, evaluation={"enabled": True, "eval_period": 4}, resume="auto")
        made.train.evaluation.evaluator = LazyCall(Signalling)()
        trainer = DefaultTrainer(made)
        trainer.register_hooks([hooks.CallbackHook(before_step=lambda own: made_steps.append(own.iter))])
        monkeypatch.setattr(Signalling, "at", at)
        monkeypatch.setattr(Signalling, "batches", 0)
        trainer.train()
        return trainer

    whole = trained(tmp_path / "whole")
    in_all, made_steps[:] = list(made_steps), []
    with pytest.raises(PreemptedExit, match="saved step 4"):
        trained(tmp_path / "part", at=1)
    assert Signalling.batches == 1
    resumed = trained(tmp_path / "part")
    assert made_steps == in_all
    for own, other in zip(weights(resumed), weights(whole), strict=True):
        assert torch.equal(own, other)
    assert metric_lines(tmp_path / "part", "metrics.json") == metric_lines(tmp_path / "whole", "metrics.json")


def test_a_run_asked_to_leave_at_its_end_is_over_and_leaves(tmp_path: Path) -> None:
    trainer = DefaultTrainer(config(tmp_path))
    trainer.register_hooks([hooks.CallbackHook(after_train=lambda _: os.kill(os.getpid(), signal.SIGTERM))])
    with pytest.raises(PreemptedExit, match="had come to its end"):
        trainer.train()
    status = read_status(tmp_path)
    assert status is not None
    assert status.state == "finished"
