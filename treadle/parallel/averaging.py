"""Gradients averaged across ranks where no wrapper does it: foreign loops and phases of part of a model."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from treadle.parallel.processes import Processes


class GradientAverager:
    """Averages gradients with one flat all-reduce; sparse ones, of embeddings, exchange only their rows.

    A gradient that is None on every rank stays None; one that is None on some counts as zero there.
    """

    def __init__(self, processes: Processes) -> None:
        self._processes = processes

    def average(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace the gradients of `parameters` by their mean over all ranks."""
        if not self._processes.distributed:
            return
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        gradients = [parameter.grad for parameter in trained]
        present = [float(gradient is not None) for gradient in gradients]
        sparse = [float(gradient is not None and gradient.is_sparse) for gradient in gradients]
        # How many ranks hold each gradient travels on the host group: which ones to skip is a host decision.
        holders = self._processes.reduce(present + sparse)
        counts, sparse_counts = holders[: len(trained)], holders[len(trained) :]
        by_kind: dict[tuple[torch.device, torch.dtype], list[nn.Parameter]] = {}
        for parameter, count, sparse_count in zip(trained, counts, sparse_counts, strict=True):
            if count and count == sparse_count:
                self._average_rows(parameter)
            elif count:
                by_kind.setdefault((parameter.device, parameter.dtype), []).append(parameter)
        for alike in by_kind.values():
            self._average_flat(alike)

    def _average_flat(self, parameters: list[nn.Parameter]) -> None:
        flat = torch.cat([_dense(parameter) for parameter in parameters])
        dist.all_reduce(flat)
        flat.div_(self._processes.size)
        offset = 0
        for parameter in parameters:
            mean = flat[offset : offset + parameter.numel()].view_as(parameter)
            offset += parameter.numel()
            if parameter.grad is None or parameter.grad.is_sparse:
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.copy_(mean)

    def _average_rows(self, parameter: nn.Parameter) -> None:
        if parameter.grad is None:
            rows, values = torch.empty(0, 1, dtype=torch.long, device=parameter.device), parameter.detach()[:0]
        else:
            own = parameter.grad.coalesce()
            rows, values = own.indices().t(), own.values()
        rows = self._processes.gather(rows, padding_value=0)
        values = self._processes.gather(values, padding_value=0) / self._processes.size
        parameter.grad = torch.sparse_coo_tensor(rows.t(), values, parameter.shape, check_invariants=False).coalesce()


def _dense(parameter: nn.Parameter) -> Tensor:
    if parameter.grad is None:
        return parameter.new_zeros(parameter.numel())
    return (parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad).reshape(-1)
