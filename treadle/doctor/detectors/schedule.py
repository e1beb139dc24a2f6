"""A schedule that is over too early, never arrives, or is moved by somebody else as well."""

import copy
import warnings
from collections.abc import Iterable

from treadle.doctor.detectors.detector import Detector
from treadle.doctor.finding import Finding

LOOK_AHEAD = 20
"""How many times the length of the run a schedule is followed."""
EARLY, LATE = 0.8, 1.25
"""Between these shares of the run a decay may end."""
MOST_STEPS = 200_000


class Schedule(Detector):
    """Follows the schedule to its end on a copy, and compares the run's own steps with it."""

    light = True

    def begin(self) -> None:
        """Follow a copy of the schedule through the run and beyond."""
        self._rates: list[float] = []
        self._seen: list[float] = []
        config = self.trainer.run_config
        self._total = None if config is None else config.max_num_train_steps
        if self.trainer.scheduler is not None and self._total and self.trainer.this_run.schedule.by_step:
            self._rates = _followed(self.trainer.scheduler, min(LOOK_AHEAD * self._total, MOST_STEPS))

    def after_update(self) -> None:
        """Note the rate after this update."""
        if self._rates:
            self._seen.append(_rate(self.trainer.scheduler))

    def findings(self) -> Iterable[Finding]:
        """Return how the schedule fits the run."""
        if not self._rates or self._total is None:
            return
        if any(seen != wanted for seen, wanted in zip(self._seen, self._rates[1:], strict=False)):
            yield Finding(
                "schedule_length",
                f"after {len(self._seen)} updates the learning rate is {self._seen[-1]:.4g}, where the schedule by "
                f"itself would be at {self._rates[len(self._seen)]:.4g}: something else moves it too; leave "
                "its steps to the trainer",
            )
            return
        name, peak = type(self.trainer.scheduler).__name__, max(self._rates[: self._total + 1])
        end = end_of(self._rates)
        if end is None or self._rates[end] > 0.5 * peak:
            return
        if end < EARLY * self._total:
            yield Finding(
                "schedule_length",
                f"{name} reaches its lowest rate at step {end} of {self._total}; it counts steps, not epochs: give it "
                "the length of the run, as TrainerPlaceholderValues has it",
            )
        elif end > LATE * self._total:
            yield Finding(
                "schedule_length",
                f"{name} would reach its lowest rate at step {end}, but the run ends at {self._total}, with "
                f"{self._rates[self._total] / peak:.0%} of the highest rate; give it the length of the run, as "
                "TrainerPlaceholderValues has it",
            )


def _rate(scheduler: object) -> float:
    return float(scheduler.optimizer.param_groups[0]["lr"])  # type: ignore[attr-defined]


def _followed(scheduler: object, steps: int) -> list[float]:
    """Return the rate before the first and after each of some steps of a copy; fewer if it refuses to go on."""
    # The optimizer comes along, without its weights: only its groups are looked at.
    own = copy.copy(scheduler)
    own.__dict__ = copy.deepcopy({key: value for key, value in vars(scheduler).items() if key != "optimizer"})
    optimizer = copy.copy(scheduler.optimizer)  # type: ignore[attr-defined]
    optimizer.param_groups = [
        {key: copy.deepcopy(value) for key, value in group.items() if key != "params"} | {"params": group["params"]}
        for group in optimizer.param_groups
    ]
    own.optimizer = optimizer  # type: ignore[attr-defined]
    rates = [_rate(own)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(steps):
            try:
                own.step()  # type: ignore[attr-defined]
            except (ValueError, IndexError):
                break
            rates.append(_rate(own))
    return rates


def end_of(rates: list[float]) -> int | None:
    """Return where rates, once they were highest, first come to their lowest: the end of a decay, or of its first turn.

    None if they fall for as long as they are known.

    >>> end_of([0.5, 1.0, 0.5, 0.0, 0.0]), end_of([1.0, 0.5, 0.0, 0.5, 1.0]), end_of([0.0, 0.5, 1.0, 1.0])
    (3, 2, 2)
    >>> end_of([1.0, 0.5, 0.25, 0.125])
    """
    # A schedule that goes up and down reckons each rate from the last one: its later tops may be higher by rounding.
    highest = max(rates)
    top = next(index for index, rate in enumerate(rates) if rate >= highest - 1e-6 * abs(highest))
    after = rates[top:]
    spread = highest - min(after)
    place = next(index for index, rate in enumerate(after) if rate <= min(after) + 1e-9 * spread)
    falls_on = place == len(after) - 1 > 0 and after[-2] > after[-1]
    return None if falls_on else top + place
