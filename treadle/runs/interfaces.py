"""What rooms below the loop know of a trainer."""

from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from treadle.events import EventStorage, RunHistory
from treadle.progress import Progress

if TYPE_CHECKING:
    from treadle.parallel.processes import Processes


class TrainerLike(Protocol):
    """A trainer as `data/`, `precision/`, `schedules/`, `execution/` and `parallel/` use it.

    What it has from rooms that come after theirs is `Any` here; `treadle.loop.interfaces` says what that is. It is
    `treadle.trainer.Trainer` everywhere.
    """

    loss_func: Any
    processes: "Processes"
    precision: Any
    parallel: Any
    tracked: Any
    callback_handler: Any
    run_history: RunHistory
    max_batches_per_epoch: int | None
    spec: Any
    # What is found in the run, or among the options.
    settings: Any
    run_config: Any
    seed: Any
    on_nonfinite: Any
    loss_reduction: Any
    microbatch: Any
    execution: Any
    _train_dataloader: Any

    @property
    def this_run(self) -> Any: ...
    @property
    def model(self) -> nn.Module: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def storage(self) -> EventStorage: ...
    @property
    def is_compiled(self) -> bool: ...
    @property
    def progress(self) -> Progress: ...

    def optimizers(self) -> dict[str, torch.optim.Optimizer]: ...
    def track(self, **objects: Any) -> Any: ...
    def print(self, *args: Any, **kwargs: Any) -> None: ...
    def update(self, phase: Any, window: Any) -> None: ...
    def scheduler_step(self) -> None: ...
    def create_train_dataloader(self, batch_size: int, train_dl_kwargs: dict[str, Any] | None = None) -> Any: ...
    def create_eval_dataloader(self, batch_size: int, eval_dl_kwargs: dict[str, Any] | None = None) -> Any: ...
    def create_recorder(self) -> Any: ...
    def _prepare_dataloaders(self) -> None: ...
    def _run_train_epoch(self, train_dl: Any) -> bool | None: ...
