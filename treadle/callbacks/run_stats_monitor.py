"""Reports what every run wants to know of itself, for nothing in a step."""

import time
from typing import Any

from torch import Tensor

from treadle.callback import TrainerCallback
from treadle.events.names import LR, SAMPLES_PER_SECOND, STEPS_PER_SECOND
from treadle.loop.interfaces import RunningTrainer

GRADIENT_NORM = "gradient_norm"


class RunStatsMonitor(TrainerCallback):
    """Puts learning rate, samples and steps per second and the norm of the gradient into the storage at every log.

    Nothing is done in a step: the clock and the rates are read when a log is due. The rate is the one that the
    optimizer has then, which a schedule by steps has moved for the next update. The norm, before clipping, is
    reported where the trainer computes it anyway: with `clip_norm`, or for somebody else who asks for it. What another
    callback `reports`, such as a `LearningRateMonitor`, is left to that one.
    """

    def __init__(self) -> None:
        self._others: set[str] = set()
        self._mark: tuple[float, int, int] | None = None
        self._evaluation_began = 0.0
        self._reported_step = 0

    def begin_session(self, trainer: RunningTrainer, *, training: bool) -> None:
        """Look who else reports, and forget earlier runs."""
        self._others = {name for one in trainer.callback_handler for name in getattr(one, "reports", ())}
        self._mark, self._reported_step = None, trainer.progress.step if training else 0

    def on_train_epoch_start(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        """Count from here."""
        self._mark = _here(trainer)

    def on_eval_epoch_start(self, trainer: RunningTrainer, is_intermediate: bool = False, **kwargs: Any) -> None:
        """Stop the clock."""
        self._evaluation_began = time.perf_counter()

    def on_eval_epoch_end(self, trainer: RunningTrainer, is_intermediate: bool = False, **kwargs: Any) -> None:
        """Start the clock again."""
        if self._mark is not None:
            moment, step, samples = self._mark
            self._mark = moment + time.perf_counter() - self._evaluation_began, step, samples

    def on_log(self, trainer: RunningTrainer, scalars: Any = None, **kwargs: Any) -> None:
        """Report what there is since the last log, to the storage and to the callbacks that come later."""
        # Losses that wait at the step where a run resumed were read in no earlier log: its row is still to come.
        if trainer.progress.step == self._reported_step and "train_loss" not in scalars:
            return
        self._reported_step = trainer.progress.step
        if LR not in self._others:
            self._put_rates(trainer)
        if SAMPLES_PER_SECOND not in self._others:
            self._put_speed(trainer)
        if GRADIENT_NORM not in self._others and trainer.gradient_norm is not None:
            trainer.storage.put_scalar(GRADIENT_NORM, trainer.gradient_norm)
        scalars.update(trainer.storage.flush())

    def _put_rates(self, trainer: RunningTrainer) -> None:
        groups = [group for optimizer in trainer.optimizers().values() for group in optimizer.param_groups]
        for name, group in zip(rate_names(trainer), groups, strict=True):
            rate = group["lr"]
            # One on the device is changed in place by its schedule, before anybody reads what was put.
            now = rate.detach().clone() if isinstance(rate, Tensor) else rate
            trainer.storage.put_scalar(name, now, smoothing_hint=False)

    def _put_speed(self, trainer: RunningTrainer) -> None:
        before, now = self._mark, _here(trainer)
        self._mark = now
        if before is None or now[1] == before[1] or now[0] <= before[0]:
            return
        seconds = now[0] - before[0]
        samples = (now[2] - before[2]) * trainer.parallel.data_size
        trainer.storage.put_scalar(SAMPLES_PER_SECOND, samples / seconds)
        trainer.storage.put_scalar(STEPS_PER_SECOND, (now[1] - before[1]) / seconds)


def rate_names(trainer: RunningTrainer) -> list[str]:
    """Return under which names the rates of a trainer's optimizers are reported, group by group."""
    optimizers = trainer.optimizers()
    paths = []
    for name, optimizer in optimizers.items():
        groups = [str(group.get("name", place)) for place, group in enumerate(optimizer.param_groups)]
        paths += [
            [LR, *([name] if len(optimizers) > 1 else []), *([group] if len(groups) > 1 else [])] for group in groups
        ]
    return ["/".join(path) for path in paths]


def _here(trainer: RunningTrainer) -> tuple[float, int, int]:
    return time.perf_counter(), trainer.progress.step, trainer.progress.samples
