"""A program is examined in processes of its own: what differs between them cannot be repeated."""

import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from treadle.callback import TrainerCallback
from treadle.errors import ConfigError
from treadle.execution import Execution
from treadle.tools.doctor.examination import STEPS, Examination, run_until_train, shorten
from treadle.tools.doctor.findings import Finding, Note
from treadle.trainer import Trainer

# How long the steps of a program take when nobody looks, executed as they are and as a graph


WARM_UP, COUNTED = 20, 60
"""Steps before the clock runs, in which kernels are chosen and a graph is recorded and checked; and those on it."""


class Clock(TrainerCallback):
    """Notes the time after every step, once the device has come to its end.

    Waiting for the device would show in every step, so that only the first and the last on the clock are waited for.
    """

    def __init__(self) -> None:
        self._began: tuple[int, float] | None = None
        self._ended: tuple[int, float] | None = None

    def on_update_end(self, trainer: Trainer, **kwargs: Any) -> None:
        """Note when the first step on the clock begins, and the last one ends."""
        step = trainer.progress.step
        if step == WARM_UP or step == trainer.this_run.due.last_step:
            if trainer.device.type == "cuda":
                torch.cuda.synchronize(trainer.device)
            self._began = self._began or (step, time.perf_counter())
            self._ended = (step, time.perf_counter())

    @property
    def milliseconds(self) -> float | None:
        """How long a step takes on average; None if the run was too short to tell."""
        if self._began is None or self._ended is None or self._ended[0] == self._began[0]:
            return None
        return 1000 * (self._ended[1] - self._began[1]) / (self._ended[0] - self._began[0])


def measure_step_ms(program: Path, execution: Any = None, arguments: Sequence[str] = ()) -> float | None:
    """Run a program for some steps, and return how long one of them takes.

    Args:
        program: A Python program, or a config.
        execution: How steps are executed, in the place of what the program says; where that is "auto", eagerly.
        arguments: What the program gets on its command line; for a config, changes of it.

    Returns:
        Milliseconds, the wait for data included; None if the program makes too few steps.

    Raises:
        CaptureError: Its steps cannot be recorded.
    """
    clock, create = Clock(), Trainer.create_execution

    def train(trainer: Trainer, variables: dict[str, Any]) -> None:
        shorten(trainer, WARM_UP + COUNTED)
        trainer.callback_handler.add_callback(clock)
        trainer.carry_out()

    def create_another(trainer: Trainer) -> Execution:
        run = trainer.this_run
        # A choice in the middle of so few steps would be in the time of those around it.
        usual = "eager" if run.spec.execution == "auto" else run.spec.execution
        run.spec = replace(run.spec, execution=execution or usual)
        return create(trainer)

    with patch.object(Trainer, "create_execution", create_another):
        run_until_train(program, train, arguments)
    return clock.milliseconds


HASH_SEEDS = ("1", "2", "3")
"""Sets of words have their own order with each of them; of two words, one order in two."""
TIME = "time:"
"""What a process is asked for that only times the steps; behind it stands their execution."""
WORTH_IT = 1.1
NO_GPU = Note(
    "no_gpu", "trained on a CPU: head-room of memory, the largest micro-batch and the gain of graphs are told on a GPU"
)


def examine_in_processes(program: Path, steps: int = STEPS, arguments: Sequence[str] = ()) -> Examination:
    """Examine a program in processes of its own, and return what is wrong with it; see `examine`.

    Raises:
        ConfigError: The program cannot be examined; the message is that of its process.
    """
    first = from_json(_result(program, str(steps), HASH_SEEDS[0], arguments))
    # One after the other: a start takes seconds, and the first difference is enough.
    others = (from_json(_result(program, str(steps), seed, arguments)) for seed in HASH_SEEDS[1:] if first.seeded)
    first.findings += next((found for other in others if (found := differences(first, other))), [])
    first.notes.append(_graph(program, arguments) if first.device == "cuda" else NO_GPU)
    return first


def _graph(program: Path, arguments: Sequence[str]) -> Note:
    """Return what `execution="graph"` would give: measured, in two more processes."""
    try:
        asked = [f"{TIME}{how}" for how in ("", "graph")]
        usual, replayed = (_result(program, one, arguments=arguments)["milliseconds"] for one in asked)
    except ConfigError as error:
        return Note("graph", f"what execution='graph' would give is not known: {error}")
    if usual is None or replayed is None:
        return Note("graph", "what execution='graph' would give is not known: the run has too few steps to tell")
    return Note("graph", describe_speedup(usual, replayed))


def describe_speedup(usual: float, replayed: float) -> str:
    """Return what recording would give.

    >>> describe_speedup(1.5, 0.1)
    "a step takes 1.50 ms, and 0.10 ms with execution='graph': 15.0 times as fast"
    >>> describe_speedup(2.0, 1.9)
    "a step takes 2.00 ms, and 1.90 ms with execution='graph': not worth it"
    """
    gain = usual / replayed
    verdict = f"{gain:.1f} times as fast" if gain >= WORTH_IT else "not worth it"
    return f"a step takes {usual:.2f} ms, and {replayed:.2f} ms with execution='graph': {verdict}"


def differences(first: Examination, second: Examination) -> list[Finding]:
    """Return what keeps two runs of one program from being the same; nothing where no seed asks for it."""
    if not first.seeded or first == second:
        return []
    if first.weights != second.weights:
        return [
            Finding(
                "not_repeatable",
                "the trainer has a seed, but the weights are others each time: they were drawn before; call "
                "torch.manual_seed before the model is built",
            )
        ]
    pairs = enumerate(zip(first.losses, second.losses, strict=False), 1)
    place = next((number for number, (one, other) in pairs if one != other), None)
    if place is None:
        return []
    return [
        Finding(
            "not_repeatable",
            f"two runs with one seed differ from micro-batch {place} on ({first.losses[place - 1]:.8g} and "
            f"{second.losses[place - 1]:.8g}): something draws from a generator that nobody seeds, reads the clock, or "
            "depends on the order of a set",
        )
    ]


def _result(program: Path, asked: str, hash_seed: str = HASH_SEEDS[0], arguments: Sequence[str] = ()) -> dict[str, Any]:
    """Return what a process of its own finds: an examination of so many steps, or a timing."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [sys.executable, "-m", "treadle.tools.doctor", str(program), asked, str(result), *arguments]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["it said nothing"]
            raise ConfigError(f"{program} cannot be examined: {lines[-1]}")
        content: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        return content


def describe_failure(error: Exception, program: Path) -> str:
    """Return what a program failed with, in one line, with the last of its own lines that was at work."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg} ({error.filename}, line {error.lineno})"
    own = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == program]
    return f"{text} ({program}, line {own[-1]})" if own else text


def from_json(content: dict[str, Any]) -> Examination:
    """Return what `to_json` made plain data of."""
    findings = [Finding(**finding) for finding in content["findings"]]
    return Examination(**{**content, "findings": findings, "notes": [Note(**note) for note in content["notes"]]})


def to_json(examination: Examination) -> dict[str, Any]:
    """Return an examination as plain data."""
    return asdict(examination)
