"""The few members of Accelerate's `Accelerator` that users of pytorch-accelerated touch."""

from typing import Any

import torch
from torch import Tensor, nn

from treadle.parallel import Processes


class AcceleratorFacade:
    """Stands where `trainer._accelerator` used to be; it configures nothing."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes

    @property
    def device(self) -> torch.device:
        """The device of this process."""
        return self._processes.device

    @property
    def num_processes(self) -> int:
        """How many processes train together."""
        return self._processes.size

    @property
    def process_index(self) -> int:
        """The rank of this process."""
        return self._processes.rank

    @property
    def is_main_process(self) -> bool:
        """Whether this is the first process of all."""
        return self._processes.is_main

    @property
    def is_local_main_process(self) -> bool:
        """Whether this is the first process of its machine."""
        return self._processes.is_local_main

    def unwrap_model(self, model: nn.Module, **kwargs: Any) -> nn.Module:
        """Return the user's own module; Treadle's trainer never wraps it in place."""
        return getattr(model, "module", model) if isinstance(model, nn.parallel.DistributedDataParallel) else model

    def wait_for_everyone(self) -> None:
        """Wait until every process has come here."""
        self._processes.barrier()

    def gather(self, tensor: Tensor) -> Tensor:
        """Return the rows of `tensor` from every process."""
        return self._processes.gather(tensor)

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print on the first process of each machine."""
        if self._processes.is_local_main:
            print(*args, **kwargs)  # noqa: T201 - printing is what it is for
