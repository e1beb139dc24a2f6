"""How the updates of a run are carried out; by default eagerly."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch

from treadle.errors import ConfigError, did_you_mean
from treadle.execution.choice import Choice
from treadle.execution.compiled import RECORDING_MODES, Compile
from treadle.runs.interfaces import TrainerLike

if TYPE_CHECKING:
    from treadle.phase import Phase

# Which ways of carrying out a step there are, and which a device allows


ExecutionMode = Literal["eager", "compile", "graph", "auto"]
EXECUTIONS: tuple[ExecutionMode, ...] = get_args(ExecutionMode)
ExecutionOption = ExecutionMode | Choice | Path
"""What a run is told; the path is that of the record of a choice, or of the folder of a run with one."""


def check_execution(execution: Any, device: torch.device, compile: Compile | None = None) -> None:
    """Refuse a way of execution that does not exist, or not on `device`, or not with this compilation.

    Raises:
        ConfigError: It does not.
    """
    if callable(execution):
        return
    if isinstance(execution, Choice) or is_file(execution):
        chosen = execution if isinstance(execution, Choice) else Choice.read(execution)
        if chosen.records and device.type != "cuda":
            raise ConfigError(
                f"execution={str(execution)!r} says {chosen.chosen!r}, which records the step on a CUDA device, and "
                f"this run is on {device.type}; use 'auto' here"
            )
        return
    if execution not in EXECUTIONS:
        near = did_you_mean(str(execution), EXECUTIONS) or f"; use one of {EXECUTIONS}, or the execution.json of a run"
        raise ConfigError(f"execution={execution!r} is unknown{near}")
    if execution != "graph":
        return
    if device.type != "cuda":
        raise ConfigError(
            f"execution='graph' records the step on a CUDA device, and this run is on {device.type}; "
            "use execution='compile' here, or 'auto' to record wherever it is possible"
        )
    if compile is not None and compile.mode in RECORDING_MODES:
        raise ConfigError(
            f"compile={compile.mode!r} records CUDA graphs of its own, which execution='graph' cannot record again; "
            "use compile=True or 'max-autotune-no-cudagraphs'"
        )


def is_file(execution: Any) -> bool:
    """Whether an execution is the place of a choice; in texts, such as configs, its file.

    >>> is_file("runs/first/execution.json"), is_file("auto")
    (True, False)
    """
    return isinstance(execution, Path) or (isinstance(execution, str) and execution.endswith(".json"))


class Execution:
    """Draws the windows of a run and makes an update of each; this one makes them eagerly.

    Another way of carrying updates out is a subclass, given to a trainer as `execution=`: it is called with the trainer
    when a run begins.

    Args:
        trainer: Whose updates they are.

    Attributes:
        reason: Why nothing is recorded any more, where something was; None otherwise.
        recorded_callbacks: The callbacks whose work of the last update was a part of what was replayed.
        update: Makes the update of a window of a phase; see `Trainer.update`.
    """

    replays = False
    """Whether updates may be replayed from a recording, so that their methods are not called."""
    update: Callable[["Phase", list[Any]], None]

    def __init__(self, trainer: TrainerLike) -> None:
        self.reason: str | None = None
        self.recorded_callbacks: frozenset[Any] = frozenset()
        # The method itself: nothing of ours lies between the loop and it.
        self.update = trainer.update

    def draw(self, phase: "Phase") -> list[Any]:
        """Draw the next window of a phase."""
        return phase.stream.window(phase.accumulation)

    def begin_epoch(self, learning: list[int]) -> None:
        """Take note of which weights learn in the epoch that begins."""

    def begin_custom_loop(self) -> None:
        """Take note that the epoch that begins is a loop of the user's."""

    def forget(self) -> None:
        """Drop whatever holds on to tensors that were put anew."""

    def close(self) -> None:
        """Give back what the run took."""
