"""`execution="auto"` on a CPU: compiled or eager, by measurement where the run is long enough, and nothing is left."""

import json
import os
import random
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn, optim

from tests.execution.quick_compiler import quick_compiler
from tests.execution.taped import data, model, same_state, times_in_tries
from tests.interrupting import CutAt, CutError, starts_of
from treadle import Trainer
from treadle.execution import AutoExecution, Choice, Execution
from treadle.execution.choice import FILE

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning"),  # torch's own, where it loads its compiler
    pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning"),  # torch's own, where it looks at its inputs
]
CHOSEN_AT = 3
GLOBAL = np.random.default_rng(5)
"""A generator as a program keeps one beside its classes."""


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """What each way takes, in seconds; a try and the compiler cost nothing."""
    return times_in_tries(monkeypatch, {"eager": 2.0, "compile": 1.0}, runs=4)


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    with quick_compiler():
        yield


def train(kind: type[Trainer] = Trainer, callbacks: Any = (), network: nn.Module | None = None, **given: Any) -> Any:
    """Train a small network and return the trainer."""
    built = {
        name: given.pop(name) for name in ("execution", "deterministic", "run_dir", "checkpoints") if name in given
    }
    network = network or model(dropout=0.3)
    optimizer = optim.SGD(network.parameters(), lr=0.125, momentum=0.5)
    trainer = kind(network, nn.CrossEntropyLoss(), optimizer, callbacks=callbacks, seed=3, device="cpu", **built)
    trainer.train(data(), **{"num_epochs": 3, "per_device_batch_size": 8, **given})
    return trainer


def chosen_by(trainer: Any) -> Choice:
    choice: Choice = trainer.tracked._objects["execution"].choice
    return choice


# What is chosen -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["eager", "compile"])
def test_a_long_run_takes_what_was_measured_to_be_the_fastest(
    way: str, times: dict[str, float], capsys: pytest.CaptureFixture[str]
) -> None:
    times[way] = 0.5
    auto = train()
    choice = chosen_by(auto)
    assert (choice.chosen, choice.step) == (way, CHOSEN_AT)
    assert [trial.name for trial in choice.trials] == ["eager", "compile"]
    assert f"execution='auto' is {way} from step 4 on: eager " in capsys.readouterr().out
    assert auto.is_compiled == (way == "compile")
    assert type(auto.this_run.execution) is Execution
    same_state(auto, train(execution=choice))
    if way == "eager":
        same_state(auto, train(execution="eager"))


def test_a_short_run_is_eager_without_a_word_and_keeps_that_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = train(run_dir=tmp_path)
    choice = Choice.read(tmp_path)
    assert choice == chosen_by(trainer)
    assert (choice.chosen, choice.step, choice.trials) == ("eager", CHOSEN_AT, ())
    assert choice.reason.startswith("about 25 s to compile, and 0 s are left")
    assert "execution=" not in capsys.readouterr().out
    assert not (tmp_path / "panels" / FILE).exists()


def test_several_kinds_of_windows_are_compiled_one_by_one(
    times: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A look at the clock is a second: 12 updates of half a second are left, of which a tenth may go to the compiler.
    monkeypatch.setattr("treadle.execution.auto.perf_counter", iter(map(float, range(1000))).__next__)
    monkeypatch.setattr("treadle.execution.auto.seconds_to_compile", lambda trainer: 0.3)
    assert chosen_by(train()).chosen == "compile"
    # Batches of 18, 18 and 4: the fourth of 18 is the fifth, and 11 of a third of a second are left.
    ragged = train(per_device_batch_size=18, num_epochs=5)
    assert chosen_by(ragged).reason == "about 1 s to compile, and 4 s are left"


def test_copies_of_a_state_that_the_memory_is_too_small_for_are_not_made(
    times: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treadle.execution.cuda_graph.replay_check.ON_DEVICE", 0)
    monkeypatch.setattr("treadle.execution.cuda_graph.replay_check.available_host_memory", lambda: 1000)
    assert chosen_by(train()).reason == "copies of the state would take much of the memory that is left"


@pytest.mark.parametrize("options", [{"deterministic": True}, {"execution": "eager"}], ids=str)
def test_where_there_is_no_choice_none_is_kept(options: dict[str, Any], times: dict[str, float]) -> None:
    trainer = train(**options)
    assert type(trainer.this_run.execution) is Execution
    assert "execution" not in trainer.tracked.names()


# What a try leaves behind: nothing ------------------------------------------------------------------------------


class Inner:
    """Kept by an object that the trainer keeps."""

    def __init__(self) -> None:
        self.counts = np.zeros(3)
        self.generator = random.Random(3)


class Meter:
    def __init__(self) -> None:
        self.inner, self.by_name = Inner(), defaultdict(list)  # type: ignore[var-annotated]
        self.nested: list[Any] = [[], {"calls": [0]}]


class Keeping(nn.Module):
    """A model with an object, generators of its own, and a tensor that changes in every fifth step only."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = model(dropout=0.3)
        self.memory = Meter()
        self.generator, self.numbers = torch.Generator().manual_seed(2), np.random.RandomState(4)
        self.seen, self.queue = 0, torch.zeros(2)
        # None of these can be written to, and nothing does.
        self.spread, self.fixed = torch.ones(1).expand(4), np.ones(3)
        self.fixed.setflags(write=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        if self.seen % 5 == 0:
            self.queue[0] += 1
        self.memory.inner.counts[0] += 1
        self.memory.nested[1]["calls"][0] += 1
        noise = torch.rand(1, generator=self.generator) + self.numbers.randn() + self.memory.inner.generator.random()
        output: torch.Tensor = self.layers(inputs + noise + GLOBAL.random())
        return output


class Tracing(Trainer):
    """Leaves a trace of every step in places that are several objects away, and draws from generators of its own."""

    def training_run_start(self) -> None:
        self.meter, self.generator = Meter(), np.random.default_rng(1)

    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        output = super().calculate_train_batch_loss((batch[0] + self.generator.random(), batch[1]))
        self.meter.by_name["loss"].append(len(self.meter.by_name["loss"]))
        self.meter.nested[0].append(1)
        if self.model.seen > 14 and not hasattr(self, "late"):
            self.late = self.model.seen
        return output

    def traces(self) -> Any:
        kept = [self.model.memory, self.meter]
        found = [(one.by_name, one.nested, one.inner.counts.tolist(), one.inner.generator.random()) for one in kept]
        drawn = (
            torch.rand(1, generator=self.model.generator).item(),
            self.model.numbers.randn(),
            self.generator.random(),
        )
        return found, drawn, self.model.seen, self.model.queue.tolist(), self.late, GLOBAL.random()


def test_what_was_tried_leaves_no_trace_however_far_it_is_kept(times: dict[str, float]) -> None:
    times["eager"] = 0.5
    ends = []
    for execution in ("auto", "eager"):
        GLOBAL.bit_generator.state = np.random.default_rng(5).bit_generator.state
        trainer = train(Tracing, network=Keeping(), execution=execution)
        ends.append((trainer, trainer.traces()))
    (auto, mine), (eager, theirs) = ends
    assert len(chosen_by(auto).trials) == 2
    assert mine == theirs
    assert auto.late == 15
    same_state(auto, eager)


class Leaving(Trainer):
    """Has gradients add up over two updates."""

    def optimizer_step(self) -> None:
        if self.progress.step % 2:
            super().optimizer_step()

    def optimizer_zero_grad(self) -> None:
        if self.progress.step % 2:
            super().optimizer_zero_grad()


def test_gradients_that_a_verb_leaves_for_the_next_update_are_there(times: dict[str, float]) -> None:
    times["eager"] = 0.5
    auto = train(Leaving)
    assert chosen_by(auto).step == CHOSEN_AT
    same_state(auto, train(Leaving, execution="eager"))


# Resuming -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["eager", "compile"])
def test_a_run_killed_after_the_choice_resumes_with_it_from_a_checkpoint_before_it(
    way: str, times: dict[str, float], tmp_path: Path
) -> None:
    times[way] = 0.5
    run = {"run_dir": tmp_path / "run", "save_every": "1 epoch", "resume": "auto"}
    with pytest.raises(CutError):
        train(callbacks=(CutAt(4),), **run)
    times[way] = 9.0
    resumed = train(**run)
    assert starts_of(tmp_path / "run") == [0, 0]
    assert (chosen_by(resumed).chosen, chosen_by(resumed).step) == (way, CHOSEN_AT)
    same_state(resumed, train(execution=Choice(chosen=way, step=CHOSEN_AT)))


def test_a_short_run_that_was_eager_stays_so_when_it_is_made_longer(times: dict[str, float], tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("treadle.execution.auto.seconds_to_compile", lambda trainer: 1e9)
        train(run_dir=tmp_path / "run", max_steps=7)
    resumed = train(run_dir=tmp_path / "run", resume="auto")
    assert starts_of(tmp_path / "run") == [0, 7]
    assert chosen_by(resumed).chosen == "eager"
    same_state(resumed, train(execution="eager"))


KILLED = """
import os, signal, sys
from pathlib import Path
import treadle.execution.auto as auto, treadle.execution.candidates as candidates
from tests.execution.test_auto_on_cpu import train
from tests.execution.quick_compiler import quick_compiler
from treadle.checkpoint import Policy
auto.seconds_to_compile, auto.FIXED, auto.TRIES = lambda trainer: 0.0, 0.0, 0
def die(run, trainer):
    run()
    if run.__self__.name == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)
    return 1.0
candidates.timed = die
with quick_compiler():
    # What is written beside the run may not be there yet where it is killed.
    kept = Policy(asynchronous=False)
    train(run_dir=Path(sys.argv[1]), checkpoints=kept, save_every="1 step", resume="auto")
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no SIGKILL")
@pytest.mark.parametrize("during", ["eager", "compile"])
def test_a_run_killed_in_the_middle_of_a_try_resumes_exactly(
    during: str, times: dict[str, float], tmp_path: Path
) -> None:
    program = [sys.executable, "-c", KILLED, str(tmp_path / "run"), during]
    ended = subprocess.run(program, env=os.environ, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert not (tmp_path / "run" / FILE).exists()
    resumed = train(run_dir=tmp_path / "run", resume="auto")
    assert starts_of(tmp_path / "run") == [0, CHOSEN_AT]
    assert (chosen_by(resumed).chosen, chosen_by(resumed).step) == ("compile", 2 * CHOSEN_AT)
    same_state(resumed, train(execution=Choice(chosen="compile", step=2 * CHOSEN_AT)))


def test_the_record_of_a_cpu_makes_a_run_again(times: dict[str, float], tmp_path: Path) -> None:
    auto = train(run_dir=tmp_path / "run")
    assert chosen_by(auto).chosen == "compile"
    same_state(auto, train(execution=tmp_path / "run" / FILE))
    table = json.loads((tmp_path / "run" / "panels" / FILE).read_text())
    assert [row[0] for row in table["rows"]] == ["eager", "compile"]
    assert isinstance(train(max_steps=2).this_run.execution, AutoExecution)
