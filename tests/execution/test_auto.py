"""`execution="auto"`: what is measured leaves no trace, the fastest is taken, and a run goes on with what it chose."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, IterableDataset

from tests.execution.quick_compiler import quick_compiler
from tests.execution.recording import TapeRecorder
from tests.execution.taped import data, model, same_state, times_in_tries
from tests.execution.test_fallback import Counting, OnTheDevice
from tests.interrupting import starts_of
from treadle import Compile, Trainer
from treadle.callbacks import ModelEmaCallback, TrainerCallback
from treadle.errors import ConfigError
from treadle.execution import AutoExecution, Choice, Execution, GraphExecution
from treadle.execution.choice import WAYS, Trial
from treadle.result import TrainResult

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning"),  # torch's own, where it loads its compiler
    pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning"),  # torch's own, where it looks at its inputs
]
CHOSEN_AT = 3
"""After so many updates the choice is made."""


class Meter:
    """Counts in every step, in an object of a user's own."""

    def __init__(self) -> None:
        self.calls, self.seen = 0, []  # type: ignore[var-annotated]


class Taped(Trainer):
    """A trainer that has what it takes to choose, on the CPU."""

    def __init__(self, *args: Any, execution: Any = "auto", **options: Any) -> None:
        super().__init__(*args, **options)
        # Set afterwards: a trainer that is built with it refuses to record on a CPU.
        self.execution = execution

    def create_recorder(self) -> TapeRecorder:
        return TapeRecorder()


class Marked(Taped):
    """Leaves a trace of every step wherever one can."""

    def training_run_start(self) -> None:
        self.calls, self.lines, self.meter = 0, [], Meter()  # type: ignore[var-annotated]
        self.average = torch.zeros(())

    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        inputs, targets = batch
        # In place: what comes after sees it, and nothing else may.
        inputs.mul_(0.5)
        output = super().calculate_train_batch_loss((inputs, targets))
        self.calls += 1
        self.lines.append(self.calls)
        self.meter.calls += 1
        self.meter.seen.append(self.calls)
        self.average.mul_(0.9).add_(output["loss"].detach())
        self.storage.put_scalar("own", output["loss"])
        return output


class Drawing(Taped):
    """Draws from every generator of the host in each step."""

    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        drawn = random.random() + np.random.rand() + torch.rand(1)
        return super().calculate_train_batch_loss((batch[0] + drawn, batch[1]))


class Events(TrainerCallback):
    """Keeps every event of a step."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def on_train_step_end(self, trainer: Trainer, **kwargs: Any) -> None:
        self.names.append("step")

    def on_update_end(self, trainer: Trainer, **kwargs: Any) -> None:
        self.names.append("update")


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """What each way takes, in seconds; whether tries pay is no question."""
    return times_in_tries(monkeypatch, {"eager": 4.0, "graph": 3.0, "compile": 2.0, "graph+compile": 1.0}, runs=2)


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    """The compiler that generates no code."""
    with quick_compiler():
        yield


def train(kind: type[Trainer] = Taped, callbacks: Any = (), dataset: Any = None, **given: Any) -> Any:
    """Train a small network and return the trainer, its result in `found`."""
    built = {name: given.pop(name) for name in ("execution", "deterministic", "run_dir", "compile") if name in given}
    network = model(dropout=0.3)
    optimizer = optim.SGD(network.parameters(), lr=0.125, momentum=0.5, fused=True)
    trainer = kind(network, nn.CrossEntropyLoss(), optimizer, callbacks=callbacks, seed=3, device="cpu", **built)
    run = {"num_epochs": 3, "per_device_batch_size": 8, "create_scheduler_fn": halving, "log_every": 2, **given}
    trainer.found: TrainResult = trainer.train(data() if dataset is None else dataset, **run)  # type: ignore[attr-defined, misc]
    return trainer


def halving(optimizer: optim.Optimizer) -> Any:
    return optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 ** (step % 3))


def chosen_by(trainer: Any) -> Choice:
    choice: Choice = trainer.tracked._objects["execution"].choice
    return choice


def make_fastest(times: dict[str, float], way: str) -> None:
    times[way] = 0.5


# What is chosen, and from when on --------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_a_run_that_chose_has_the_bits_of_one_that_was_told_so(way: str, times: dict[str, float]) -> None:
    make_fastest(times, way)
    auto = train()
    assert (chosen_by(auto).chosen, chosen_by(auto).step) == (way, CHOSEN_AT)
    told = train(execution=Choice(chosen=way, step=CHOSEN_AT))
    same_state(auto, told)
    if way == "eager":
        same_state(auto, train(execution="eager"))
    assert auto.found.history == told.found.history
    assert isinstance(auto.this_run.execution, GraphExecution) == ("graph" in way)
    assert auto.is_compiled == ("compile" in way)


def test_the_first_updates_are_eager_whatever_is_chosen(times: dict[str, float]) -> None:
    make_fastest(times, "graph+compile")
    auto, eager = train(max_steps=CHOSEN_AT), train(execution="eager", max_steps=CHOSEN_AT)
    same_state(auto, eager)
    assert isinstance(auto.this_run.execution, AutoExecution)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_what_was_tried_leaves_no_trace(accumulation: int, times: dict[str, float], tmp_path: Path) -> None:
    make_fastest(times, "eager")
    ends = []
    for execution in ("auto", "eager"):
        average = ModelEmaCallback(decay=0.5, evaluate_during_training=False, save_path=tmp_path / f"{execution}.pt")
        events = Events()
        options = {"execution": execution, "gradient_accumulation_steps": accumulation, "clip_norm": 0.5}
        trainer = train(Marked, callbacks=(average, events), **options)
        ends.append((trainer, average, events))
    (mine, average, events), (theirs, expected, other) = ends
    assert [trial.is_taken for trial in chosen_by(mine).trials] == [True, False, True, False]
    same_state(mine, theirs)
    for one, two in zip(average.ema_model.parameters(), expected.ema_model.parameters(), strict=True):
        assert torch.equal(one, two)
    assert events.names == other.names
    for name in ("calls", "lines"):
        assert getattr(mine, name) == getattr(theirs, name)
    assert (mine.meter.calls, mine.meter.seen) == (theirs.meter.calls, theirs.meter.seen)
    assert torch.equal(mine.average, theirs.average)
    assert mine.found.history == theirs.found.history
    assert mine.storage.series("own").values == theirs.storage.series("own").values


def test_generators_go_on_as_if_nothing_was_tried(times: dict[str, float]) -> None:
    drawn = []
    for execution in ("auto", "eager"):
        train(Drawing, execution=execution)
        drawn.append((random.random(), np.random.rand(), torch.rand(1).item()))
    assert drawn[0] == drawn[1]


class Refusing(Taped):
    """Cannot be recorded as it is."""

    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        output = super().calculate_train_batch_loss(batch)
        if output["loss"].item() > 100:
            output["loss"] = output["loss"] / 2
        return output


def test_what_cannot_be_recorded_is_said_in_the_line_of_the_choice(
    times: dict[str, float], capsys: pytest.CaptureFixture[str]
) -> None:
    make_fastest(times, "compile")
    trainer = train(Refusing)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("execution='auto'")]
    assert line.startswith("execution='auto' is compile from step 4 on: eager 4e+03 ms, no graph (the step makes the ")
    assert "host wait for the device" in line
    assert trainer.is_compiled


def test_another_way_is_taken_only_if_it_is_clearly_faster(times: dict[str, float]) -> None:
    times |= {"eager": 1.0, "graph": 0.98, "compile": 0.99, "graph+compile": 0.975}
    assert chosen_by(train()).chosen == "eager"


def test_of_compiled_and_plain_recordings_the_plain_one_can_win(times: dict[str, float]) -> None:
    make_fastest(times, "graph")
    trainer = train()
    assert chosen_by(trainer).chosen == "graph"
    assert not trainer.is_compiled
    assert trainer.this_run.execution.reason is None


def test_a_deterministic_run_takes_only_what_has_the_bits_of_eager_updates(times: dict[str, float]) -> None:
    exact = train(deterministic=True)
    choice = chosen_by(exact)
    assert choice.chosen == "graph"
    assert choice.trials[-1].refused == "deterministic=True, and compiled steps have other bits"
    same_state(exact, train(deterministic=True, execution="eager"))


class Rounding(Taped):
    """Has an optimizer that takes other steps where it counts on the device, as recorded ones do."""

    def __init__(self, network: nn.Module, loss: Any, optimizer: Any, **options: Any) -> None:
        for module in (network[0], network[4]):  # type: ignore[index]
            module.weight = OnTheDevice(module.weight.detach().clone())
        super().__init__(network, loss, Counting([network[0].weight, network[4].weight]), **options)  # type: ignore[index, union-attr]


def test_a_deterministic_run_refuses_a_recording_with_other_bits(times: dict[str, float]) -> None:
    choice = chosen_by(train(Rounding, deterministic=True, create_scheduler_fn=None))
    assert choice.chosen == "eager"
    assert choice.trials[1].refused.startswith("deterministic=True, and ")
    assert choice.trials[1].refused.endswith(" has other bits than by eager steps")


def test_where_the_loss_is_compiled_in_any_case_it_is_recorded_or_not(times: dict[str, float]) -> None:
    trainer = train(compile=Compile())
    assert [trial.name for trial in chosen_by(trainer).trials] == ["compile", "graph+compile"]
    assert chosen_by(trainer).chosen == "graph+compile"
    assert trainer.is_compiled


class Broken(Taped):
    """Has a compiled step that is not the eager one."""

    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        output = super().calculate_train_batch_loss(batch)
        if torch.compiler.is_compiling():
            output["loss"] = output["loss"] + 10
        return output


def test_a_compiled_step_with_another_loss_is_refused(times: dict[str, float]) -> None:
    choice = chosen_by(train(Broken))
    assert choice.chosen == "graph"
    assert choice.trials[2].refused.startswith("the loss of a compiled step is ")


# Whether tries pay ----------------------------------------------------------------------------------------------


def test_a_short_run_tries_nothing(times: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.execution.auto.FIXED", 60.0)
    trainer = train()
    choice = chosen_by(trainer)
    assert (choice.chosen, choice.trials) == ("eager", ())
    assert choice.reason.startswith("12 updates of ")
    assert choice.reason.endswith(" ms are left, too few to try others")
    assert type(trainer.this_run.execution) is Execution


def test_it_is_compiled_only_where_the_rest_of_the_run_pays_for_it(
    times: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    # 12 updates of 3 s are left once they are recorded; a tenth of that is less than this.
    monkeypatch.setattr("treadle.execution.auto.seconds_to_compile", lambda trainer: 3.7)
    choice = chosen_by(train())
    assert choice.chosen == "graph"
    assert choice.trials[2] == Trial(name="compile", refused="about 4 s to compile, and 36 s are left")
    monkeypatch.setattr("treadle.execution.auto.seconds_to_compile", lambda trainer: 3.5)
    assert chosen_by(train()).chosen == "graph+compile"
    # What could not be recorded gains more by it: three tenths of 12 updates of 4 s.
    monkeypatch.setattr("treadle.execution.auto.seconds_to_compile", lambda trainer: 14.3)
    assert chosen_by(train(Refusing)).chosen == "compile"


class Endless(IterableDataset[Any]):
    """Does not say how long it is."""

    def __iter__(self) -> Iterator[Any]:
        inputs, targets = data(96).tensors
        yield from zip(inputs.split(8), targets.split(8), strict=True)


def test_a_run_of_unknown_length_tries_once_it_has_been_as_long_as_a_try_takes(
    times: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr("treadle.execution.auto.perf_counter", lambda: float(next(clock)))
    # A look at the clock is a second: at the first 4 updates of half a second, at the second 7 of two fifths.
    monkeypatch.setattr("treadle.execution.auto.FIXED", 1.1)
    monkeypatch.setattr("treadle.execution.auto.LOST", 2.0)
    choice = chosen_by(train(dataset=DataLoader(Endless(), batch_size=None), num_epochs=1))
    assert choice.step == 2 * CHOSEN_AT
    assert choice.chosen == "graph"
    assert choice.trials[2].refused == "nobody knows how long the run is"


def test_windows_of_ever_new_shapes_are_eager(times: dict[str, float]) -> None:
    inputs, targets = data(40 * 41).tensors
    ready: Any = [(inputs[: size + 2], targets[: size + 2]) for size in range(40)]
    choice = chosen_by(train(dataset=DataLoader(ready, batch_size=None), num_epochs=1))
    assert (choice.chosen, choice.step) == ("eager", 32)
    assert choice.reason == "windows are of too many shapes; pad batches to a few lengths"


REFUSED: dict[str, tuple[Any, str]] = {
    "batch": (lambda: DataLoader([(torch.ones(2, 4), object())] * 3, batch_size=None), "a batch holds a object; give"),
}


class First(Taped):
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        return super().calculate_train_batch_loss((batch[0], torch.zeros(len(batch[0]), dtype=torch.long)))


@pytest.mark.parametrize("case", REFUSED)
def test_what_rules_every_other_way_out_is_said(case: str, times: dict[str, float]) -> None:
    dataset, reason = REFUSED[case]
    choice = chosen_by(train(First, dataset=dataset(), num_epochs=1))
    assert (choice.chosen, choice.step) == ("eager", 0)
    assert choice.reason.startswith(reason)


class OwnLoop(Taped):
    def _run_train_epoch(self, train_dl: Any) -> None:
        for batch in train_dl:
            self.optimizer.zero_grad()
            self.calculate_train_batch_loss(batch)["loss"].backward()
            self.optimizer.step()


def test_a_loop_of_ones_own_is_eager(times: dict[str, float]) -> None:
    assert chosen_by(train(OwnLoop, num_epochs=1)).reason == "the loop of an epoch is your own"


def test_processes_choose_by_the_slowest_of_them(times: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process takes ten times as long for what is recorded, and cannot compile."""
    asked: list[list[float]] = []

    class Together(Taped):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            monkeypatch.setattr(self.processes, "reduce", self.reduce)

        def reduce(self, values: list[float], how: str = "sum") -> list[float]:
            if how != "max" or len(values) != 2:
                return values
            asked.append(values)
            other = {1: [1.0, 0.0], 2: [30.0, 0.0], 3: [0.0, 1.0]}.get(len(asked), [0.0, 0.0])
            return [max(pair) for pair in zip(values, other, strict=True)]

    choice = chosen_by(train(Together))
    assert [values[0] for values in asked[:3]] == [4.0, 3.0, 2.0]
    assert choice.chosen == "eager"
    assert [trial.milliseconds for trial in choice.trials] == [4000.0, 30000.0, None]
    assert choice.trials[2].refused == "another process cannot do it"


# Resuming -------------------------------------------------------------------------------------------------------


class DyingError(Exception):
    """Stands for a kill."""


class DieAt(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_update_end(self, trainer: Trainer, **kwargs: Any) -> None:
        if trainer.progress.step == self.step:
            raise DyingError


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("cut", [2, 4, 9])
def test_a_run_that_is_killed_goes_on_with_what_it_chose(
    way: str, cut: int, times: dict[str, float], tmp_path: Path
) -> None:
    make_fastest(times, way)
    run = {"run_dir": tmp_path / "run", "save_every": "1 step", "resume": "auto"}
    with pytest.raises(DyingError):
        train(callbacks=(DieAt(cut),), **run)
    step = CHOSEN_AT
    if cut > CHOSEN_AT:
        # Another choice would be made now, if there were one to make.
        make_fastest(times, next(one for one in WAYS if one != way))
        times[way] = 9.0
    else:
        # It warms up once more from where it goes on.
        step = cut - 1 + CHOSEN_AT
    resumed = train(**run)
    assert starts_of(tmp_path / "run") == [0, cut - 1]
    assert (chosen_by(resumed).chosen, chosen_by(resumed).step) == (way, step)
    same_state(train(execution=Choice(chosen=way, step=step)), resumed)


def test_a_run_that_is_killed_while_it_chooses_goes_on_exactly(
    times: dict[str, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = {"run_dir": tmp_path / "run", "save_every": "1 step", "resume": "auto"}

    def die(run: Any, device: Any) -> float:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("treadle.execution.candidates.timed", die)
        with pytest.raises(KeyboardInterrupt):
            train(**run)
    assert not (tmp_path / "run" / "execution.json").exists()
    resumed = train(**run)
    assert starts_of(tmp_path / "run") == [0, CHOSEN_AT]
    # Warmed up once more from where it went on, it chose later.
    assert chosen_by(resumed).step == 2 * CHOSEN_AT
    same_state(train(execution=Choice(chosen="graph+compile", step=2 * CHOSEN_AT)), resumed)


def test_what_the_folder_says_counts_for_a_checkpoint_from_before_the_choice(
    times: dict[str, float], tmp_path: Path
) -> None:
    make_fastest(times, "graph")
    run = {"run_dir": tmp_path / "run", "save_every": "1 epoch", "resume": "auto"}
    with pytest.raises(DyingError):
        train(callbacks=(DieAt(5),), **run)
    make_fastest(times, "eager")
    resumed = train(**run)
    assert starts_of(tmp_path / "run") == [0, 0]
    assert (chosen_by(resumed).chosen, chosen_by(resumed).step) == ("graph", CHOSEN_AT)


def test_a_state_that_goes_on_elsewhere_brings_its_choice(times: dict[str, float], tmp_path: Path) -> None:
    make_fastest(times, "graph")
    first = train(num_epochs=1)
    first.save_training_state(tmp_path / "state")
    make_fastest(times, "eager")
    second = train(resume_from=tmp_path / "state")
    assert (chosen_by(second).chosen, chosen_by(second).step) == ("graph", CHOSEN_AT)
    same_state(second, train(execution=Choice(chosen="graph", step=CHOSEN_AT)))


def test_a_run_from_before_there_were_choices_goes_on_eagerly(
    times: dict[str, float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = {"run_dir": tmp_path / "run", "resume": "auto"}
    train(execution="eager", max_steps=7, save_every="1 step", **run)
    resumed = train(**run)
    assert starts_of(tmp_path / "run") == [0, 7]
    said = "execution='auto' is eager from step 8 on: nothing was chosen when the run began, and it continues as it was"
    assert said in capsys.readouterr().out
    same_state(resumed, train(execution="eager"))


def test_a_run_that_begins_in_a_folder_does_not_go_by_what_another_left_there(
    times: dict[str, float], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    Choice(chosen="eager").write(folder)
    make_fastest(times, "graph")
    assert chosen_by(train(run_dir=folder)).chosen == "graph"


def test_a_run_is_resumed_where_nothing_can_be_recorded(
    times: dict[str, float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_fastest(times, "graph")
    run = {"run_dir": tmp_path / "run", "resume": "auto"}
    train(max_steps=7, save_every="1 step", **run)
    assert type(train(Trainer, **run).this_run.execution) is Execution


# The record -----------------------------------------------------------------------------------------------------


def test_the_folder_of_a_run_says_what_was_chosen_and_makes_it_again(times: dict[str, float], tmp_path: Path) -> None:
    make_fastest(times, "graph")
    auto = train(run_dir=tmp_path / "run")
    assert Choice.read(tmp_path / "run") == chosen_by(auto)
    again = train(execution=str(tmp_path / "run" / "execution.json"), run_dir=tmp_path / "again")
    same_state(auto, again)
    assert Choice.read(tmp_path / "again") == Choice.read(tmp_path / "run")
    table = json.loads((tmp_path / "run" / "panels" / "execution.json").read_text())
    assert [row[0] for row in table["rows"]] == ["eager", "graph", "compile", "graph+compile"]
    assert [row[3] for row in table["rows"]] == ["", "chosen", "", ""]


MISTAKES: dict[str, tuple[str, str]] = {
    "missing": ("", "there is no "),
    "no JSON": ("{", " cannot be read as what execution='auto' chose: "),
    "other JSON": ("[1]", " is no record of what execution='auto' chose: "),
    "other way": (
        json.dumps({**Choice(chosen="eager").plain(), "chosen": "fast"}),
        "chosen='fast' is no way of carrying updates out; there are ('eager', 'compile', 'graph', 'graph+compile')",
    ),
    "other step": (json.dumps({**Choice(chosen="eager").plain(), "step": -1}), "step=-1 must be a whole number from 0"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_file_that_is_no_record_is_refused_when_the_trainer_is_built(mistake: str, tmp_path: Path) -> None:
    text, message = MISTAKES[mistake]
    file = tmp_path / "execution.json"
    if text:
        file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        train(execution=str(file))
    assert message in str(caught.value)
    assert str(file) in str(caught.value)


def test_a_record_of_recorded_steps_is_refused_on_a_cpu(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"says 'graph', which records the step on a CUDA device, and this run is on"):
        train(Trainer, execution=Choice(chosen="graph"))
