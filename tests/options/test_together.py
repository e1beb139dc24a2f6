"""What does not go together is refused, as the page of options says, and options that a door has not are told why."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import open_dict
from torch import nn
from torch.optim.lr_scheduler import LinearLR

from benchmarks.docs.options_page import CONFLICTS, Conflict
from tests.engine.parts import make_config
from tests.execution.taped import Recorded, train
from tests.nas.small import make as make_search
from tests.options.doors import network, points, sgd
from treadle import Trainer, nas
from treadle.engine import DefaultTrainer
from treadle.engine.config import keys as of_engine
from treadle.errors import TreadleError
from treadle.execution import Compile, check_execution
from treadle.execution.cuda_graph.capture_checks import refuse_run
from treadle.lightning import StepTrainer
from treadle.lightning import trainer as of_steps
from treadle.memory.offload import check_offload
from treadle.nas.oneshot import trainer as of_search
from treadle.optim.lr_scaling import LRScaling
from treadle.parallel import Plan, processes
from treadle.parallel.factory import check_trainer
from treadle.spec import Refused

Provoke = Callable[[Path, pytest.MonkeyPatch], Any]
PROVOKED: dict[tuple[str, str], Provoke] = {}


def built(kind: Any = Trainer, **options: Any) -> Trainer:
    model = network()
    optimizer = options.pop("optimizer", None) or sgd(model.parameters())
    made: Trainer = kind(model, nn.MSELoss(), optimizer, callbacks=(), device="cpu", **options)
    return made


def provokes(first: str, second: str) -> Callable[[Provoke], Provoke]:
    """Name the options of which a function asks for both."""

    def register(provoke: Provoke) -> Provoke:
        PROVOKED[first, second] = provoke
        return provoke

    return register


def asked(first: str, second: str, trainer: dict[str, Any], **train: Any) -> None:
    """Note what a trainer is built with, and asked for, to have it refused."""
    PROVOKED[first, second] = lambda folder, patch: built(**trainer).train(points(), **train)


asked("num_epochs=None", "max_steps=None", {})
asked("max_steps", "max_num_train_steps with another number", {}, max_steps=2, max_num_train_steps=3)
asked("save_every", "run_dir=None", {}, num_epochs=1, save_every=2)
asked('resume="auto"', "run_dir=None", {}, num_epochs=1, resume="auto")
asked('on_nonfinite="rollback"', "run_dir=None", {"on_nonfinite": "rollback"}, num_epochs=1)
asked('execution="graph"', 'device="cpu"', {"execution": "graph"}, num_epochs=1)


class OwnRun(Trainer):
    """Runs its epochs by itself."""

    def _run_training(self) -> None:
        raise NotImplementedError


class OwnLoop(Trainer):
    """Has an epoch of its own."""

    def _run_train_epoch(self, train_dl: Any) -> None:
        raise NotImplementedError


@provokes('on_nonfinite="rollback"', "a `_run_training` of your own")
def rolls_back_in_a_run_of_ones_own(folder: Path, patch: Any) -> None:
    built(OwnRun, on_nonfinite="rollback", run_dir=folder / "run").train(points(), num_epochs=1)


@provokes("timeout", "one that processes have joined with")
def another_timeout(folder: Path, patch: Any) -> None:
    patch.setattr(processes, "_joined_with", [30.0])
    built(timeout=20.0)


@provokes('execution="graph"', 'compile="reduce-overhead"')
def records_twice(folder: Path, patch: Any) -> None:
    check_execution("graph", torch.device("cuda"), Compile(mode="reduce-overhead"))


PROVOKED['execution="graph"', "offload_optimizer=True"] = lambda *_: check_offload(True, [], "graph")
PROVOKED['execution="graph"', 'microbatch="auto"'] = lambda *_: train(Recorded, trainer={"microbatch": "auto"})
PROVOKED['execution="graph"', "several processes"] = lambda *_: refuse_run(
    SimpleNamespace(callback_handler=SimpleNamespace(active=[]), processes=SimpleNamespace(distributed=True))  # type: ignore[arg-type]
)


@provokes("offload_optimizer=True", "an optimizer that mixes weights")
def offloads_adafactor(folder: Path, patch: Any) -> None:
    model = network()
    built(optimizer=torch.optim.Adafactor(model.parameters()), offload_optimizer=True)


def two_optimizers() -> dict[str, Any]:
    first, second = (torch.optim.SGD([one], lr=0.1) for one in list(network().parameters())[:2])
    return {"a": first, "b": second}


class Turns(Trainer):
    """Says by itself which optimizer acts when."""

    def phases(self, epoch: int) -> Any:
        return ()


@provokes("create_scheduler_fn", "optimizers that take turns")
def one_schedule_for_two(folder: Path, patch: Any) -> None:
    made = built(Turns)
    made.optimizer = {str(place): torch.optim.SGD([one], lr=0.1) for place, one in enumerate(made.model.parameters())}
    made.train(points(), num_epochs=1, create_scheduler_fn=LinearLR)


@provokes("lr_scaling", "batches of unknown size")
def rates_by_no_size(folder: Path, patch: Any) -> None:
    batches = ((torch.ones(size, 2), torch.ones(size, 1)) for size in (2, 3))
    built().train(batches, num_epochs=1, lr_scaling=LRScaling("linear", reference_batch_size=4))


@provokes("extend=None", "a schedule by the length of a run that became longer")
def longer_than_its_schedule(folder: Path, patch: Any) -> None:
    for steps in (2, 4):
        schedule = partial(LinearLR, total_iters=steps)
        built(run_dir=folder / "run").train(points(), max_steps=steps, create_scheduler_fn=schedule, resume="auto")


def check(kind: Any = Trainer, *, stages: bool = False, **options: Any) -> None:
    """Check a trainer as one that is spread over several processes."""
    trainer = built(kind, **options)
    spread = SimpleNamespace(is_sharded=True, is_pipeline=stages, as_argument=lambda: "Plan(...)")
    trainer.parallel = spread  # type: ignore[assignment]
    check_trainer(trainer, Trainer)


@provokes('execution="graph"', "parallel=Plan(shard=...)")
def records_what_ranks_share(folder: Path, patch: Any) -> None:
    patch.setattr("treadle.trainer.check_execution", lambda *_: None)
    check(execution="graph")


SHARDED, STAGES = "parallel=Plan(shard=...)", "parallel=Plan(pipeline=...)"
PROVOKED[SHARDED, "a loop of your own"] = lambda *_: check(OwnLoop)
PROVOKED[SHARDED, "optimizers that take turns"] = lambda *_: check(Turns, optimizer=two_optimizers())
PROVOKED[STAGES, 'loss_reduction="sum"'] = lambda *_: check(stages=True, loss_reduction="sum")
PROVOKED[STAGES, "compile=True"] = lambda *_: check(stages=True, compile=True)
PROVOKED[STAGES, 'microbatch="auto"'] = lambda *_: check(stages=True, microbatch="auto")
PROVOKED[STAGES, "`cpu_offload` or `forward_methods`"] = lambda *_: Plan(pipeline=2, shard=2, cpu_offload=True)


@pytest.mark.parametrize("one", CONFLICTS, ids=lambda one: f"{one.first} with {one.second}")
def test_what_does_not_go_together_is_refused(one: Conflict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TreadleError) as caught:
        PROVOKED[one.first, one.second](tmp_path, monkeypatch)
    assert one.message in str(caught.value)


def test_each_refusal_is_on_the_page() -> None:
    assert set(PROVOKED) == {(one.first, one.second) for one in CONFLICTS}


# Options that a door has not -----------------------------------------------------------------------------------------


def refused_by(table: Any) -> dict[str, str]:
    return {name: own.reason for name, own in table.items() if isinstance(own, Refused)}


@pytest.mark.parametrize("option", refused_by(of_engine.NAMES))
def test_a_config_is_told_why_an_option_has_no_key(option: str, tmp_path: Path) -> None:
    made = make_config(tmp_path)
    with open_dict(made.train):
        made.train[option] = "hold"
    with pytest.raises(TreadleError) as caught:
        DefaultTrainer(made)
    assert f"unknown key 'train.{option}'" in str(caught.value)
    assert str(caught.value).endswith(refused_by(of_engine.NAMES)[option])


@pytest.mark.parametrize("option", refused_by({**of_steps.NAMES, **of_steps.PARTS}))
def test_a_trainer_of_steps_is_told_why_it_has_no_such_argument(option: str) -> None:
    with pytest.raises(TreadleError) as caught:
        StepTrainer(**{option: "step"})
    assert (
        str(caught.value) == f"StepTrainer takes no {option!r}: {refused_by(of_steps.NAMES | of_steps.PARTS)[option]}"
    )


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("clip_norm", "give it to the trainer: DartsTrainer(..., grad_clip=...)"),
        ("per_device_batch_size", "give it to the trainer: DartsTrainer(..., batch_size=...)"),
        ("gradient_accumulation_steps", "DartsTrainer(..., gradient_accumulation_steps=...)"),
        ("create_scheduler_fn", "DartsTrainer(..., scheduler=...)"),
        ("collate_fn", "both data have one loader each"),
        ("save_evry", "did you mean 'save_every'?"),
    ],
)
def test_a_search_is_told_where_an_argument_belongs(option: str, told: str) -> None:
    assert option not in of_search.OPTION_NAMES or of_search.NAMES[option] in told
    with pytest.raises(TreadleError) as caught:
        make_search(nas.DartsTrainer).fit(**{option: 1})
    assert str(caught.value).startswith(f"DartsTrainer.fit takes no {option!r}")
    assert told in str(caught.value)
