"""A training of any trainer as a trial: its evaluations are what the search hears."""

from typing import TYPE_CHECKING

from treadle.callbacks.watching import EVALUATION_LOSS, WatchesMetric
from treadle.search.reports import report_intermediate_result

if TYPE_CHECKING:
    from treadle.trainer import Trainer


class ReportTrialCallback(WatchesMetric):
    """Reports every new value of a metric to the search, which may end the training there.

    Values are numbered from 0; a trial that goes on after a kill goes on counting. Outside a search a report is a line
    in the log.

    Args:
        watch_metric: The metric.
    """

    def __init__(self, watch_metric: str = EVALUATION_LOSS) -> None:
        super().__init__(watch_metric, greater_is_better=False)

    def new_value(self, trainer: "Trainer", value: float) -> None:
        """Report a value.

        Raises:
            PrunedError: The search wants this trial to stop.
        """
        known = trainer.run_history.get_metric_values(self.watch_metric)
        report_intermediate_result(value, step=len(known) - 1)
