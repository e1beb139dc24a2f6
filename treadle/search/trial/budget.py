"""A training as a trial that is promoted: it stops at its budget, and resumes there when it is promoted."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from treadle.callback import TrainerCallback
from treadle.callbacks.watched_metric import EVALUATION_LOSS
from treadle.errors import ConfigError
from treadle.search.trial.context import this_trial
from treadle.search.trial.reports import ReportTrialCallback

if TYPE_CHECKING:
    from treadle.loop.interfaces import RunningTrainer
    from treadle.trainer import Trainer

UNITS = ("epoch", "step")


class StopAtBudgetCallback(TrainerCallback):
    """Stops a run at the budget of its trial, where it is saved; promoted, it resumes there.

    Behind every door. Without a budget, as in a search without promotion and outside of one, it does nothing.

    Args:
        unit: What the budget counts: "epoch", or "step", an update of the weights.
        settings: Of a trial that began as a copy of another one, what its optimizers go by in the place of the
            settings of the other: `{"lr": 0.01}` sets the `lr` of every parameter group, and what schedules begin with.

    Raises:
        ConfigError: There is no such unit.
    """

    def __init__(self, unit: str = "epoch", settings: Mapping[str, float] | None = None) -> None:
        if unit not in UNITS:
            raise ConfigError(f"StopAtBudgetCallback(unit={unit!r}): a budget counts one of {list(UNITS)}")
        self._unit, self._settings = unit, dict(settings or {})
        self._is_set = False

    def on_training_run_start(self, trainer: "RunningTrainer", **kwargs: Any) -> None:
        """Stop at once where the run is at its budget: it was killed before its search heard of that."""
        self._is_set = False
        self._stop_at(trainer, self._done(trainer))

    def on_update_start(self, trainer: "RunningTrainer", **kwargs: Any) -> None:
        """Have a copy go by its own settings, once everything has been restored."""
        if not self._is_set:
            self._is_set = True
            if this_trial().copied_from is not None:
                set_options(trainer, self._settings)

    def on_update_end(self, trainer: "RunningTrainer", **kwargs: Any) -> None:
        """Stop at a budget of updates."""
        if self._unit == "step":
            self._stop_at(trainer, self._done(trainer))

    def on_training_run_epoch_end(self, trainer: "RunningTrainer", **kwargs: Any) -> None:
        """Stop at a budget of epochs; this one is not counted yet."""
        if self._unit == "epoch":
            self._stop_at(trainer, self._done(trainer) + 1)

    def _done(self, trainer: "RunningTrainer") -> int:
        return trainer.progress.epoch if self._unit == "epoch" else trainer.progress.step

    def _stop_at(self, trainer: "RunningTrainer", done: int) -> None:
        trial = this_trial()
        if trial.budget is not None and trial.budget <= done and trial.budget != trial.max_budget:
            trainer.request_stop(f"trial {trial.number} has had its budget of {trial.budget} {self._unit}s")


def set_options(trainer: Any, settings: Mapping[str, float]) -> None:
    """Set options of all parameter groups of a trainer, and what its schedule begins with.

    Raises:
        ConfigError: Its optimizers have no such option.
    """
    for optimizer in trainer.optimizers().values():
        for group in optimizer.param_groups:
            for name, value in settings.items():
                if name not in group:
                    known = sorted(key for key in group if key != "params")
                    raise ConfigError(f"settings of a copy: {type(optimizer).__name__} takes no {name!r}, but {known}")
                _set_option(group, name, value)
    scheduler: Any = getattr(trainer, "scheduler", None)
    if "lr" in settings and hasattr(scheduler, "base_lrs"):
        scheduler.base_lrs = [settings["lr"]] * len(scheduler.base_lrs)


def _set_option(group: dict[str, Any], name: str, value: float) -> None:
    """Set an option; a rate that a schedule moves keeps its part of the first one."""
    if name == "lr" and group.get("initial_lr"):
        part = group["lr"] / group["initial_lr"]
        group["initial_lr"], value = value, value * part
    group[name] = value


def train_to_budget(
    trainer: "Trainer",
    dataset: Any,
    num_epochs: int,
    *,
    metric: str = EVALUATION_LOSS,
    settings: Mapping[str, float] | None = None,
    **options: Any,
) -> float:
    """Train up to the budget of the trial, in epochs, and return what a metric is there.

    The trainer must have the folder of the trial, `run_dir=search.this_trial().run_dir`: a trial that is promoted, or
    was killed, resumes there, and has the bits of one that was never paused. So the training is always described up to
    its largest budget, `num_epochs`, by which schedules go. Each new value of the metric is reported.

    Outside a search it trains to the end.

    Args:
        trainer: The trainer.
        dataset: What it trains on.
        num_epochs: How many epochs there are with the largest budget.
        metric: What is reported and returned, a name of the run history.
        settings: In population-based training, what the optimizers of a copy go by: `{"lr": setting["lr"]}`.
        options: Further arguments of `Trainer.train`.

    Raises:
        ConfigError: The largest budget of the search is another one, or the trainer has no folder.
    """
    trial = this_trial()
    if trial.max_budget is not None and trial.max_budget != num_epochs:
        raise ConfigError(
            f"train_to_budget(num_epochs={num_epochs}): the largest budget of the search is {trial.max_budget}; train "
            "for as many epochs, num_epochs=search.this_trial().max_budget"
        )
    if trial.budget is not None and trainer.spec.run_dir is None:
        raise ConfigError(
            "a trial that may be promoted resumes in its folder; make the trainer with "
            "run_dir=search.this_trial().run_dir"
        )
    callbacks: list[TrainerCallback] = [StopAtBudgetCallback(settings=settings)]
    if trial.number is not None:
        callbacks.append(ReportTrialCallback(metric))
    trainer.callback_handler.add_callbacks(callbacks)
    if trainer.spec.run_dir is not None:
        options.setdefault("resume", "auto")
    trainer.train(dataset, num_epochs, **options)
    return float(trainer.run_history.get_latest_metric(metric))
