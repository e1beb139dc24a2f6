"""Metrics that hooks watch, and that evaluations must report."""

import logging
from typing import Any

from treadle.engine import dist
from treadle.errors import UnknownMetricError, did_you_mean

logger = logging.getLogger(__name__)


def require_reported(hook: str, metric: str, trainer: Any, *, chosen: bool = True) -> None:
    """Make sure, on all processes together, that a metric was reported, if an evaluation has reported anything.

    Args:
        hook: Who watches it.
        metric: Its name.
        trainer: Whose evaluations report.
        chosen: Whether somebody asked for it; that a usual one is absent is only said.

    Raises:
        UnknownMetricError: It was not; the message has the names that were.
    """
    known = trainer.evaluated
    told = ""
    if known and metric not in trainer.storage.names():
        told = (
            f"{hook} watches {metric!r}, but the evaluation reported {sorted(known)}; set "
            f"{'train.evaluation.eval_metric' if hook == 'BestCheckpointer' else 'val_metric='} to one of these"
            f"{did_you_mean(metric, known)}"
        )
    # The first process decides: an evaluation may report to that one only.
    told = dist.broadcast_from_main(told)
    if told and not chosen:
        logger.warning("%s", told)
    elif told:
        raise UnknownMetricError(told)
