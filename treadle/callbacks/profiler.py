"""Records what some steps of a run spend their time on."""

import os
from pathlib import Path
from typing import Any

from treadle.callback import TrainerCallback
from treadle.errors import ConfigError
from treadle.loop.interfaces import RunningTrainer


class ProfilerCallback(TrainerCallback):
    """Records some steps with torch's profiler and writes a trace for chrome://tracing or ui.perfetto.dev.

    The file is called `trace_steps_<first>_to_<last>.json`, with the rank before the suffix if there are several
    processes.

    Args:
        first_step: The first step to record, from 1; a few steps before it let caches and compilers settle.
        num_steps: How many steps to record.
        folder: Where the trace goes; by default `profile` in the folder of the run, or here if it has none.
        record_shapes: Whether shapes of inputs are recorded.
        profile_memory: Whether allocations are recorded.
        with_stack: Whether the place in the source is recorded.
    """

    def __init__(
        self,
        first_step: int = 11,
        num_steps: int = 5,
        folder: str | os.PathLike[str] | None = None,
        *,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
    ) -> None:
        if first_step < 1 or num_steps < 1:
            raise ConfigError(
                f"ProfilerCallback: first_step={first_step} and num_steps={num_steps} must both be at least 1"
            )
        self.first_step = first_step
        self.last_step = first_step + num_steps - 1
        self.folder = None if folder is None else Path(folder)
        self._options: dict[str, Any] = {
            "record_shapes": record_shapes,
            "profile_memory": profile_memory,
            "with_stack": with_stack,
        }
        self._profiler: Any = None

    def on_update_start(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        """Start to record before the first chosen step."""
        if trainer.progress.step + 1 == self.first_step:
            self._profiler = started_profiler(**self._options)

    def on_update_end(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        """Write the trace after the last chosen step."""
        if self._profiler is not None and trainer.progress.step >= self.last_step:
            self._write(trainer, self.last_step)

    def on_training_run_end(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        """Write what there is, if the run ended while it was recorded."""
        if self._profiler is not None:
            self._write(trainer, trainer.progress.step)

    def close(self) -> None:
        """Stop recording, if the run died in the middle."""
        profiler, self._profiler = self._profiler, None
        if profiler is not None:
            profiler.stop()

    def _write(self, trainer: RunningTrainer, last_step: int) -> None:
        profiler = self._profiler
        self.close()
        folder = self.folder or (trainer.run_dir or Path()) / "profile"
        rank = f"_rank_{trainer.processes.rank}" if trainer.processes.distributed else ""
        path = folder / f"trace_steps_{self.first_step}_to_{last_step}{rank}.json"
        write_trace(profiler, path)
        trainer.print(f"Wrote a profile of steps {self.first_step} to {last_step} to {path}")


def started_profiler(activities: Any = None, **options: Any) -> Any:
    """Return one of torch's profilers that records from now on.

    Args:
        activities: What to record; by default the CPU, and CUDA if there is one.
        **options: Further arguments of `torch.profiler.profile`.
    """
    import torch
    from torch import profiler

    if not activities:
        kinds = profiler.ProfilerActivity
        activities = [kinds.CPU, kinds.CUDA] if torch.cuda.is_available() else [kinds.CPU]
    started = profiler.profile(activities=activities, **options)
    started.start()
    return started


def write_trace(profiler: Any, path: Path) -> None:
    """Write what a profiler that was stopped has recorded, in a folder that is made if it is not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    profiler.export_chrome_trace(str(path))
