"""Kills a trainer's run, resumes it in another process, and compares it with one that was never killed."""

import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
from collections.abc import Iterable
from contextlib import chdir
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from safetensors.torch import load_file, save_file

from benchmarks.resume import Contender, Run
from benchmarks.resume.work import DEADLINE, MADE, NotPossibleError, Scenario, Weights

FORK = multiprocessing.get_context("fork")
"""A run is a copy of a process that has imported the trainer and done nothing else: importing takes longer than it."""
LONGEST_S = 300


class FailedError(Exception):
    """A run ended as it should not have."""


@dataclass(frozen=True)
class Outcome:
    """What became of a scenario in the hands of a trainer.

    Attributes:
        verdict: "exact", "differs", "not possible", "starts over", "cannot resume", "not repeatable".
        difference: The largest difference of any weight, where there is one.
        reason: Why it is not possible, or what went wrong.
    """

    verdict: str
    difference: float = 0.0
    reason: str = ""


@dataclass(frozen=True)
class Ended:
    """A run that came to its end: its weights, and the micro-batches that its process was trained on."""

    weights: Weights
    seen: int


def measure_all(contender: Contender, scenarios: Iterable[Scenario], folder: Path | None = None) -> dict[str, Outcome]:
    """Measure a contender in a process of its own; return what became of each scenario, by name.

    Args:
        contender: Who is measured.
        scenarios: The rows.
        folder: Where outcomes are kept; what is there is not measured again. None keeps nothing.

    Raises:
        ImportError: The contender does not import.
    """
    chosen = list(scenarios)
    with tempfile.TemporaryDirectory() as nowhere:
        result = (folder or Path(nowhere)) / f"{contender.name}.json"
        host = FORK.Process(target=_measure_into, args=(contender, chosen, result))
        host.start()
        host.join()
        content = _read(result) if host.exitcode == 0 else {"missing": f"ended with {host.exitcode}"}
    if "missing" in content:
        raise ImportError(content["missing"])
    return {scenario.name: Outcome(**content[scenario.name]) for scenario in chosen}


def _measure_into(contender: Contender, scenarios: list[Scenario], result: Path) -> None:
    """Measure what is not in a file yet, and note it there, one scenario after the other."""
    outcomes = _read(result)
    left = [scenario for scenario in scenarios if scenario.name not in outcomes]
    if not left:
        return
    try:
        run = contender.load()
    except ImportError as error:
        missing = f"{error.name} not installed" if isinstance(error, ModuleNotFoundError) else "does not import"
        result.write_text(json.dumps({"missing": missing}), encoding="utf-8")
        return
    for scenario in left:
        outcomes[scenario.name] = asdict(measure(run, scenario))
        result.write_text(json.dumps(outcomes), encoding="utf-8")
        print(f"{contender.name}: {scenario.name}: {outcomes[scenario.name]}", file=sys.stderr, flush=True)


def _read(result: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(result.read_text(encoding="utf-8")) if result.is_file() else {}
    return content


def measure(run: Run, scenario: Scenario) -> Outcome:
    """Train a scenario to its end, kill a second run, resume that, and compare."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            whole = attempt(run, scenario, folder / "whole")
        except NotPossibleError as error:
            return Outcome("not possible", reason=str(error))
        require_death(run, scenario, folder / "cut")
        try:
            resumed = attempt(run, scenario, folder / "cut", resume=True)
        except FailedError as error:
            return Outcome("cannot resume", reason=str(error))
        outcome = compare(whole, resumed, scenario)
        if outcome.verdict == "differs":
            # Only where a run that is never killed ends the same each time is the kill to blame.
            again = attempt(run, scenario, folder / "again")
            if difference(whole.weights, again.weights):
                return Outcome("not repeatable", difference(whole.weights, again.weights))
        return outcome


def compare(whole: Ended, resumed: Ended, scenario: Scenario) -> Outcome:
    """Return how a resumed run ended beside one that was never killed."""
    if resumed.seen >= scenario.micro_batches:
        return Outcome("starts over", reason=f"was trained on {resumed.seen} micro-batches after the kill")
    found = difference(whole.weights, resumed.weights)
    return Outcome("differs" if found else "exact", found)


def difference(first: Weights, second: Weights) -> float:
    """Return the largest difference of any two weights; infinity if they are not the same ones.

    >>> difference({"a": torch.tensor([1.0, 2.0])}, {"a": torch.tensor([1.0, 2.5])})
    0.5
    """
    if first.keys() != second.keys():
        return float("inf")
    pairs = [(first[name].double(), second[name].double()) for name in first]
    # Bits are what counts; a number that is none makes the difference infinite.
    found = [(one - other).abs().nan_to_num(float("inf")) for one, other in pairs if not torch.equal(one, other)]
    return max((float(distance.max()) for distance in found), default=0.0)


def require_death(run: Run, scenario: Scenario, folder: Path) -> None:
    """Have a run die in its micro-batch of death.

    Raises:
        FailedError: It ended otherwise.
    """
    code = _in_a_process(run, scenario, folder, resume=False, deadline=scenario.deadline)
    if code != -signal.SIGKILL:
        raise FailedError(f"{scenario.name}: was to be killed, ended with {code}: {_last_line(folder)}")


def attempt(run: Run, scenario: Scenario, folder: Path, *, resume: bool = False) -> Ended:
    """Train to the end in another process.

    Raises:
        NotPossibleError: The trainer cannot do this.
        FailedError: It ended with an error.
    """
    code = _in_a_process(run, scenario, folder, resume=resume, deadline=0)
    result = folder / "result.json"
    content: dict[str, Any] = json.loads(result.read_text(encoding="utf-8")) if result.is_file() else {}
    if "not_possible" in content:
        raise NotPossibleError(content["not_possible"])
    if "error" in content:
        raise FailedError(f"{scenario.name}: {content['error']}")
    if code or not content:
        raise FailedError(f"{scenario.name}: ended with {code}: {_last_line(folder)}")
    return Ended(load_file(folder / "weights.safetensors"), content["seen"])


def _in_a_process(run: Run, scenario: Scenario, folder: Path, *, resume: bool, deadline: int) -> int | None:
    (folder / "run").mkdir(parents=True, exist_ok=True)
    child = FORK.Process(target=_train, args=(run, scenario, folder, resume, deadline))
    child.start()
    child.join(LONGEST_S)
    if child.exitcode is None:
        child.kill()
        child.join()
    return child.exitcode


def _train(run: Run, scenario: Scenario, folder: Path, resume: bool, deadline: int) -> None:
    _send_output_to(folder / "output.txt")
    torch.set_num_threads(1)
    # As in a new process: what is not seeded, or restored, is different.
    random.seed()
    numpy.random.seed()
    torch.seed()
    DEADLINE.micro_batch = deadline
    try:
        with chdir(folder):
            weights = run(scenario, folder / "run", resume)
        save_file({name: value.contiguous() for name, value in weights.items()}, folder / "weights.safetensors")
        content: dict[str, Any] = {"seen": sum(network.seen for network in MADE)}
    except NotPossibleError as error:
        content = {"not_possible": str(error)}
    except Exception as error:
        content = {"error": f"{type(error).__name__}: {error}"}
    (folder / "result.json").write_text(json.dumps(content), encoding="utf-8")


def _send_output_to(path: Path) -> None:
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(target, 1)
    os.dup2(target, 2)


def _last_line(folder: Path) -> str:
    lines = (folder / "output.txt").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
