"""Makes batch norms see the batches of all processes."""

from typing import Any

from torch import nn

from treadle.callback import TrainerCallback
from treadle.errors import ConfigError


class ConvertSyncBatchNormCallback(TrainerCallback):
    """Turns the batch norms of the model into ones that normalise over the batches of all processes.

    On one process nothing changes. The weights stay the same objects, so the optimizer still holds them.
    """

    def on_init_end(self, trainer: Any, **kwargs: Any) -> None:
        """Convert the model, before anything is wrapped around it.

        Raises:
            ConfigError: Several processes train on a device that cannot do it.
        """
        if not trainer.processes.distributed:
            return
        if trainer.device.type != "cuda":
            raise ConfigError(
                f"ConvertSyncBatchNormCallback: torch's SyncBatchNorm needs CUDA, but this process trains on "
                f"{trainer.device}; remove the callback, or use GroupNorm in the model"
            )
        trainer.model = nn.SyncBatchNorm.convert_sync_batchnorm(trainer.model)  # type: ignore[no-untyped-call]
