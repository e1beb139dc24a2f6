"""The trainer for schedulers of the timm library, which are told how far the run is."""

from typing import Any

from treadle.errors import ConfigError
from treadle.trainer import Trainer


class TrainerWithTimmScheduler(Trainer):
    """A trainer whose scheduler is one of timm's: `step_update(n)` after update n, `step(e)` after epoch e.

    Both are counted from 1 and taken from the progress of the run, so a resumed run goes on with the right numbers. A
    metric given as `scheduler_metric` to `train` is handed to the scheduler after each epoch.
    """

    @property
    def num_updates(self) -> int:
        """How many updates the run has made."""
        return self.progress.step

    def create_scheduler(self) -> Any:
        """Return the scheduler, made by the factory given to `train`.

        Raises:
            ConfigError: It is not one of timm's.
        """
        scheduler = super().create_scheduler()
        if scheduler is not None and not (hasattr(scheduler, "step_update") and hasattr(scheduler, "step")):
            raise ConfigError(
                f"TrainerWithTimmScheduler got a {type(scheduler).__name__}, which has no step_update and step as "
                "timm's schedulers have; use Trainer for others"
            )
        return scheduler

    def scheduler_step(self) -> None:
        """Tell the scheduler how many updates were made, the present one included."""
        if self.scheduler is not None and self.this_run.schedule.by_step:
            # The trainer's own loop counts an update after its schedule moved on, a user's loop before.
            self.scheduler.step_update(self.progress.step + self.this_run.in_core_loop)

    def training_run_epoch_end(self) -> None:
        """Tell the scheduler how many epochs are done, whether there was an evaluation or not."""
        super().training_run_epoch_end()
        if self.scheduler is None:
            return
        metric, epochs = self.settings.scheduler_metric, self.progress.epoch + 1
        if metric is None:
            self.scheduler.step(epochs)
        else:
            self.scheduler.step(epochs, metric=self.run_history.get_latest_metric(metric))
