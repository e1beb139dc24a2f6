"""Destinations of metrics: each takes what it wants from the storage of the run."""

from treadle.writers.attached import WritersCallback
from treadle.writers.csv_writer import CSVWriter
from treadle.writers.event_writer import EventWriter
from treadle.writers.json_writer import JSONWriter
from treadle.writers.metric_printer import CommonMetricPrinter
from treadle.writers.mlflow_writer import MlflowWriter
from treadle.writers.tensorboard_writer import TensorboardWriter, TensorboardXWriter
from treadle.writers.wandb_writer import WandbWriter

__all__ = [
    "CSVWriter",
    "CommonMetricPrinter",
    "EventWriter",
    "JSONWriter",
    "MlflowWriter",
    "TensorboardWriter",
    "TensorboardXWriter",
    "WandbWriter",
    "WritersCallback",
]
