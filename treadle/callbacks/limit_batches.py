"""Cuts epochs short, to try a run out."""

import os
from types import TracebackType
from typing import Any, Self

from treadle.callback import TrainerCallback
from treadle.errors import require_positive
from treadle.loop.interfaces import RunningTrainer

ENVIRONMENT_VARIABLE = "TREADLE_LIMIT_BATCHES"


class LimitBatchesCallback(TrainerCallback):
    """Ends every training and evaluation epoch after some batches; schedules are sized accordingly.

    Args:
        num_batches: The most batches an epoch has on each process.
    """

    def __init__(self, num_batches: int) -> None:
        self.num_batches = require_positive("LimitBatchesCallback: num_batches", num_batches)

    def on_init_end(self, trainer: RunningTrainer, **kwargs: Any) -> None:
        """Set the limit, before a run asks how long its data is."""
        present = trainer.max_batches_per_epoch
        trainer.max_batches_per_epoch = self.num_batches if present is None else min(present, self.num_batches)


class LimitBatches:
    """Limits the batches of an epoch for every trainer that is built inside its `with` block.

    >>> with LimitBatches(3):
    ...     active_limit()
    3

    Args:
        num_batches: The most batches an epoch has on each process.
    """

    def __init__(self, num_batches: int) -> None:
        self.num_batches = require_positive("LimitBatches: num_batches", num_batches)
        self._before: list[str | None] = []

    def __enter__(self) -> Self:
        self._before.append(os.environ.get(ENVIRONMENT_VARIABLE))
        os.environ[ENVIRONMENT_VARIABLE] = str(self.num_batches)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        before = self._before.pop()
        if before is None:
            os.environ.pop(ENVIRONMENT_VARIABLE, None)
        else:
            os.environ[ENVIRONMENT_VARIABLE] = before


def active_limit() -> int | None:
    """Return the limit that `LimitBatches` or the environment sets for trainers built now.

    Raises:
        ConfigError: The environment variable holds something else than a number above 0.
    """
    text = os.environ.get(ENVIRONMENT_VARIABLE, "").strip()
    if text.lower() in ("", "none"):
        return None
    value = int(text) if text.isdecimal() else text
    limit: int = require_positive(f"the environment variable {ENVIRONMENT_VARIABLE}", value)
    return limit
