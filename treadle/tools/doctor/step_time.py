"""How long the steps of a program take when nobody looks, executed as they are and as a graph."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from treadle.callback import TrainerCallback
from treadle.execution import Execution
from treadle.tools.doctor.examination import run_until_train, shorten
from treadle.trainer import Trainer

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
