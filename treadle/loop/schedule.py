"""The learning rates of a run: how they follow the batch, and the scheduler that moves them."""

from typing import Any

from treadle.errors import ConfigError
from treadle.loop.interfaces import RunningTrainer
from treadle.optim.lr_scaling import scale_rates
from treadle.schedules.factory import require_scheduler
from treadle.schedules.placeholders import replace_placeholders, values_in


class Schedule:
    """Moves the learning rates of a run, by steps or by epochs.

    Args:
        trainer: Whose run it is.
        before: The schedule of the trainer's last run.

    Attributes:
        factory: What `train` was given to make the scheduler; None for none.
        scheduler: What moves the rates; None if nothing does.
        by_step: Whether it moves with every update; else with every epoch.
        factor: What the rates of the optimizers are multiplied by at present, by this run or by one before it.
    """

    def __init__(self, trainer: RunningTrainer, before: "Schedule | None" = None) -> None:
        self.trainer = trainer
        self.factor: float = 1.0 if before is None else before.factor
        self.factory: Any = None
        self.scheduler: Any = None
        self.by_step = True

    def prepare(self) -> None:
        """Scale the rates and have the scheduler made."""
        # First: a scheduler takes the rates that it finds in the optimizer for its `initial_lr`.
        self._scale_rates()
        self.scheduler = self._made()
        self.by_step = self.trainer.settings.interval_of(self.scheduler) == "step"

    def _scale_rates(self) -> None:
        """Have the learning rates follow the batch, whatever an earlier run of this trainer made of them."""
        trainer, config = self.trainer, self.trainer.this_run.config
        assert config is not None
        scaling, batch = trainer.settings.lr_scaling, config.train_total_batch_size
        factor = scaling.factor(batch)
        if factor != self.factor:
            for optimizer in trainer.optimizers().values():
                scale_rates(optimizer, factor / self.factor)
            self.factor = factor
        if scaling.rule != "none":
            trainer.print(scaling.describe(batch))

    def _made(self) -> Any:
        """Return what `create_scheduler` makes; None only if nobody asked for a scheduler.

        Raises:
            ConfigError: A factory was given and nothing came of it, or something else than a scheduler.
        """
        trainer, kind = self.trainer, type(self.trainer)
        scheduler = trainer.create_scheduler()
        # By module: Treadle's own doors override the method as well, and None is nothing to tell of there.
        own = kind.create_scheduler.__module__.partition(".")[0] != "treadle"
        maker = f"{kind.__name__}.create_scheduler" if own else "create_scheduler_fn"
        if scheduler is not None or self.factory is not None:
            return require_scheduler(scheduler, maker=maker)
        if own:
            trainer.print(f"{maker} returned None: the learning rates stay as they are")
        return None

    def create(self) -> Any:
        """Return the scheduler of the factory given to `train`, its placeholders replaced."""
        if self.factory is None:
            return None
        if len(self.trainer.optimizers()) > 1 and self.trainer.overrides("phases"):
            raise ConfigError(
                "create_scheduler_fn is for optimizers that step together; where they take turns, override "
                "create_scheduler and give each phase its scheduler"
            )
        factory = replace_placeholders(self.factory, values_in(self.trainer))
        return factory(self.trainer.this_run.updater.all_optimizers)

    def step(self) -> None:
        """Move on: by one update, or, where a metric drives it, by that metric's latest value."""
        trainer, run = self.trainer, self.trainer.this_run
        phase = run.updater.phase
        scheduler = self.scheduler if phase is None or not self.by_step else phase.scheduler
        metric = run.spec.metric_of(scheduler, evaluates=run.data.evaluation is not None)
        if metric is None:
            scheduler.step()
        else:
            scheduler.step(trainer.run_history.get_latest_metric(metric))

    def after_epoch(self, evaluated: bool) -> None:
        """Move a schedule by epochs on; one that a metric drives waits for an epoch that reported it."""
        trainer, run = self.trainer, self.trainer.this_run
        if self.scheduler is None or self.by_step or run.epoch_is_cut:
            return
        evaluates = run.data.evaluation is not None
        metric = run.spec.metric_of(self.scheduler, evaluates=evaluates)
        # A plateau counts epochs without progress: the old value once more would be one.
        if metric is None or evaluated or not evaluates or metric == "train_loss_epoch":
            trainer.scheduler_step()
