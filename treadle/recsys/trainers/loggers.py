"""Where a `fit` that is copied from RecBole writes its curves: TensorBoard and Weights & Biases."""

import functools
import logging
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from treadle.errors import importing
from treadle.recsys.trainers.loop.model_file import storable


class NoTensorboard:
    """Takes what would go to TensorBoard, and keeps nothing: `log_tensorboard` is not set."""

    def add_scalar(self, *args: Any, **kwargs: Any) -> None:
        """Keep nothing."""

    def add_hparams(self, *args: Any, **kwargs: Any) -> None:
        """Keep nothing."""


class WandbLogger:
    """Writes metrics to Weights & Biases, if the setting `log_wandb` is on; otherwise it does nothing.

    A `fit` of Treadle's does that by itself.

    Args:
        config: The settings.

    Raises:
        MissingDependencyError: The setting is on, and wandb is not installed.
    """

    def __init__(self, config: Any) -> None:
        self.config = config
        self.log_wandb = bool(config["log_wandb"])

    @functools.cached_property
    def _run(self) -> Any:
        with importing("wandb", extra="wandb", user="log_wandb"):
            import wandb
        return wandb.run or wandb.init(project=self.config["wandb_project"], config=storable(self.config.plain()))

    def set_steps(self) -> None:
        """Have the curves of training and validation count their own steps."""
        if self.log_wandb:
            for head in ("train", "valid"):
                self._run.define_metric(f"{head}/*", step_metric=f"{head}_step")

    def log_metrics(self, metrics: Mapping[str, Any], head: str = "train", commit: bool = True) -> None:
        """Write metrics, below a head."""
        if self.log_wandb:
            named = {f"{head}/{name}" if head else name: value for name, value in metrics.items()}
            self._run.log(named, commit=commit)

    def log_eval_metrics(self, metrics: Mapping[str, Any], head: str = "eval") -> None:
        """Write what a run ends with."""
        if self.log_wandb:
            for name, value in metrics.items():
                self._run.summary[f"{head}/{name}" if head else name] = value


def make_tensorboard(config: Any) -> Any:
    """Return a `SummaryWriter` if the setting `log_tensorboard` is on, and otherwise something that keeps nothing."""
    if not config["log_tensorboard"]:
        return NoTensorboard()
    return get_tensorboard(logging.getLogger("treadle.recsys"))


def get_tensorboard(logger: logging.Logger) -> Any:
    """Return a `SummaryWriter`, in a folder that is called as the log file of a logger, or by the time.

    The setting `log_tensorboard` has a run write its metrics by itself.

    Raises:
        MissingDependencyError: TensorBoard is not installed.
    """
    with importing("tensorboard", extra="tensorboard", user="get_tensorboard"):
        from torch.utils.tensorboard import SummaryWriter
    files = [Path(handler.baseFilename) for handler in logger.handlers if isinstance(handler, logging.FileHandler)]
    name = files[0].name.split(".")[0] if files else f"model-{datetime.now():%b-%d-%Y_%H-%M-%S}"
    return SummaryWriter(str(Path("log_tensorboard") / name))
