"""Reports where the time of a step goes."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from treadle.callback import TrainerCallback
from treadle.errors import ConfigError
from treadle.events.names import STEP_PART
from treadle.loop.interfaces import RunningTrainer

VERBS = {"calculate_gradients": "forward", "backward_step": "backward", "apply_gradients": "update"}
"""The methods that are timed, and what the time inside of each, but outside of the others, is called."""

ABSENT = object()
Mark = Any
"""A moment: an event in the stream of a GPU, or seconds."""


class StepTimer(TrainerCallback):
    """Puts the seconds that each part of a step takes into the storage at every log, as "step_time/forward".

    The parts are data (drawing a batch and waiting for it), copy (to the device), forward, backward, update (with
    clipping, schedule and zeroing) and logging (with callbacks and saving; evaluations do not count). On a GPU they
    are what passes there, read when a log is due, so that nothing waits for it. A step that is replayed as a graph has
    no parts to see, and is reported as a whole.

    Args:
        every: One update in so many is timed; logging is, in all of them.
    """

    def __init__(self, every: int = 10) -> None:
        if every < 1:
            raise ConfigError(f"StepTimer: every must be 1 or more updates, got {every}")
        self._every = every
        self._forget()

    def _forget(self) -> None:
        self._samples: list[_Sample] = []
        self._sample: _Sample | None = None
        self._outside, self._steps, self._left = 0.0, 0, 0.0
        self._evaluation_began = 0.0

    def on_train_epoch_start(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        """Count from here."""
        self._forget()

    def on_update_start(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        """Add up what passed since the last update, and time this one if it is its turn."""
        if self._left:
            self._outside += time.perf_counter() - self._left
            self._steps += 1
        if (trainer.progress.step + 1) % self._every == 0:
            self._sample = _Sample(trainer)

    def on_update_end(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        """Keep what was timed."""
        if self._sample is not None:
            self._sample.close()
            self._samples.append(self._sample)
            self._sample = None
        self._left = time.perf_counter()

    def on_eval_epoch_start(self, trainer: RunningTrainer, is_intermediate: bool = False, **kwargs: Any) -> None:
        """Stop the clock."""
        self._evaluation_began = time.perf_counter()

    def on_eval_epoch_end(self, trainer: RunningTrainer, is_intermediate: bool = False, **kwargs: Any) -> None:
        """Start the clock again."""
        self._left += time.perf_counter() - self._evaluation_began

    def on_log(self, trainer: RunningTrainer, scalars: Any = None, **kwargs: Any) -> None:
        """Report the mean of each part since the last log."""
        found = [parts for sample in self._samples if (parts := sample.parts()) is not None]
        self._samples = []
        for name in dict.fromkeys(name for parts in found for name in parts):
            trainer.storage.put_scalar(STEP_PART + name, sum(parts.get(name, 0.0) for parts in found) / len(found))
        if found and self._steps:
            trainer.storage.put_scalar(f"{STEP_PART}logging", self._outside / self._steps)
            self._outside, self._steps = 0.0, 0
        scalars.update(trainer.storage.flush())

    def close(self) -> None:
        """Leave the methods of a run that broke off as they were."""
        if self._sample is not None:
            self._sample.close()
            self._sample = None


class _Sample:
    """The timing of one update: marks around its methods, which are its own for that long.

    Args:
        trainer: Whose update it is.
    """

    def __init__(self, trainer: RunningTrainer) -> None:
        self._on_gpu = trainer.device.type == "cuda"
        self._spans: list[tuple[str, Mark, Mark]] = []
        self._replaced: list[tuple[Any, str, Any]] = []
        if not trainer.this_run.execution.replays:
            for verb, name in VERBS.items():
                self._time(trainer, verb, name)
            for stream in trainer.streams.values():
                self._time(stream, "_move", "copy")
        self._began = self._mark()
        self._ended: Mark = None

    def _time(self, owner: Any, verb: str, name: str) -> None:
        self._replaced.append((owner, verb, vars(owner).get(verb, ABSENT)))
        setattr(owner, verb, partial(self._timed, name, getattr(owner, verb)))

    def _timed(self, name: str, verb: Callable[..., Any], *arguments: Any) -> Any:
        before = self._mark()
        result = verb(*arguments)
        self._spans.append((name, before, self._mark()))
        return result

    def _mark(self) -> Mark:
        return record_event() if self._on_gpu else time.perf_counter()

    def close(self) -> None:
        """Give the trainer its methods back."""
        self._ended = self._mark()
        for owner, verb, before in reversed(self._replaced):
            if before is ABSENT:
                delattr(owner, verb)
            else:
                setattr(owner, verb, before)
        self._replaced = []

    def parts(self) -> dict[str, float] | None:
        """Return the seconds of each part; None if the device has not come to their end."""
        if self._on_gpu and not self._ended.query():
            return None
        whole = self._between(self._began, self._ended)
        if not self._spans:
            return {"recorded": whole}
        found = dict.fromkeys(("data", "copy", *VERBS.values()), 0.0)
        for name, before, after in self._spans:
            found[name] += self._between(before, after)
        found["data"] = max(0.0, whole - found["forward"] - found["update"] - found["copy"])
        # The backward pass is inside of the method that the forward pass is called for.
        found["forward"] -= found["backward"]
        return found if found["copy"] else {name: value for name, value in found.items() if name != "copy"}

    def _between(self, before: Mark, after: Mark) -> float:
        return float(before.elapsed_time(after)) / 1000 if self._on_gpu else float(after - before)


def record_event() -> Any:
    """Return an event in the stream of a GPU that happens when the device has come to here; nothing waits for it."""
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event
