"""The page of a run, written when the run ends."""

from functools import partial
from typing import TYPE_CHECKING, Any

from treadle.callback import TrainerCallback
from treadle.errors import ConfigError
from treadle.report.page import NAME, plotly_source, write_final_report

if TYPE_CHECKING:
    from treadle.trainer import Trainer


class ReportCallback(TrainerCallback):
    """Writes `report.html` into the folder of the run when the run ends, on the first process.

    Raises:
        MissingDependencyError: Plotly is not installed.
    """

    def __init__(self) -> None:
        plotly_source()

    def on_training_run_start(self, trainer: "Trainer", **kwargs: Any) -> None:
        """Have the page written once the metrics are complete."""
        if trainer.run_dir is None:
            raise ConfigError(f"ReportCallback writes {NAME} into the folder of the run; give the trainer a run_dir=")
        if trainer.processes.is_main:
            trainer.this_run.checkpointer.afterwards(partial(write_final_report, [trainer.run_dir], trainer.print))
