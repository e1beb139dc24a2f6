"""Which checkpoints of a run are kept."""

from dataclasses import dataclass

from treadle.errors import ConfigError
from treadle.events.names import direction_of


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Which checkpoints of a run are kept, and how they are written.

    Args:
        keep_last: How many of the newest are kept; None keeps all.
        keep_every: Also keep those whose step is a multiple of this.
        best: Also keep the one with the best value of this metric, and save whenever it improves.
        greater_is_better: Whether a larger value of `best` is better. By default its name says it ("accuracy",
            "ndcg@10", "loss"); of a name that says nothing the smallest value is kept.
        asynchronous: Whether files are written by a background thread while training continues.
        on_error: "raise" stops the run when a checkpoint cannot be written, "warn" continues without it.
    """

    keep_last: int | None = 3
    keep_every: int | None = None
    best: str | None = None
    greater_is_better: bool | None = None
    asynchronous: bool = True
    on_error: str = "raise"

    def __post_init__(self) -> None:
        for name in ("keep_last", "keep_every"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise ConfigError(f"Policy({name}={value!r}): give a whole number from 1, or None")
        if self.greater_is_better is not None and type(self.greater_is_better) is not bool:
            raise ConfigError(f"Policy(greater_is_better={self.greater_is_better!r}): give True, False or None")
        if self.on_error not in ("raise", "warn"):
            raise ConfigError(f"Policy(on_error={self.on_error!r}): use 'raise' or 'warn'")

    @property
    def keeps_greatest(self) -> bool:
        """Whether the best checkpoint is that with the largest value.

        >>> Policy(best="accuracy").keeps_greatest, Policy(best="eval_loss_epoch").keeps_greatest
        (True, False)
        """
        if self.greater_is_better is None:
            return self.best is not None and direction_of(self.best) == "max"
        return self.greater_is_better

    def kept(self, steps: list[int], *, pointed_at: set[int]) -> set[int]:
        """Return which of the checkpoints at `steps` stay; those pointed at always do.

        >>> sorted(Policy(keep_last=2, keep_every=100).kept([50, 100, 150, 200, 250], pointed_at={50}))
        [50, 100, 200, 250]
        """
        # What a run began with is needed until there is something later to go back to.
        steps = [step for step in steps if step > 0] or steps
        newest = sorted(steps)[-self.keep_last :] if self.keep_last is not None else steps
        spaced = [step for step in steps if self.keep_every and step % self.keep_every == 0]
        return {*newest, *spaced, *pointed_at} & set(steps)
