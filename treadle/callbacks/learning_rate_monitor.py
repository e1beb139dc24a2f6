"""Reports the learning rates."""

from typing import Any

from torch import Tensor

from treadle.callback import TrainerCallback
from treadle.callbacks.run_stats_monitor import rate_names
from treadle.events.names import LR
from treadle.loop.interfaces import RunningTrainer


class LearningRateMonitor(TrainerCallback):
    """Puts the learning rate of the latest update into the trainer's storage whenever a log is due.

    One group of parameters is reported as "lr", several as "lr/<name of the group>", where a group without a
    name has its number; with several optimizers as "lr/<optimizer>/<group>".
    """

    reports = (LR,)

    def __init__(self) -> None:
        self._rates: list[Any] = []
        self._reported_step = 0

    def begin_session(self, trainer: RunningTrainer, *, training: bool) -> None:
        """Forget the rates of an earlier run."""
        self._rates, self._reported_step = [], 0

    def on_update_start(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        """Take note of the rates that the update will use; afterwards the schedule has moved on."""
        self._rates = [
            _as_of_now(group["lr"]) for optimizer in trainer.optimizers().values() for group in optimizer.param_groups
        ]

    def on_log(self, trainer: RunningTrainer, scalars: Any = None, **kwargs: Any) -> None:
        """Report the rates, to the storage and to the callbacks that come later."""
        step = trainer.progress.step
        if not self._rates or step == self._reported_step:
            return
        self._reported_step = step
        for name, rate in zip(rate_names(trainer), self._rates, strict=True):
            trainer.storage.put_scalar(name, rate, smoothing_hint=False)
        scalars.update(trainer.storage.flush())


def _as_of_now(rate: Any) -> Any:
    # A rate on the device is changed in place by its schedule.
    return rate.detach().clone() if isinstance(rate, Tensor) else rate
