"""Gradients averaged across ranks where no wrapper does it: foreign loops and phases of part of a model."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from treadle.parallel.processes import Processes


class GradientAverager:
    """Averages gradients with one flat all-reduce.

    A gradient that is None on every rank stays None; one that is None on some counts as zero there.
    """

    def __init__(self, processes: Processes) -> None:
        self._processes = processes

    def average(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace the gradients of `parameters` by their mean over all ranks."""
        if not self._processes.distributed:
            return
        by_kind: dict[tuple[torch.device, torch.dtype], list[nn.Parameter]] = {}
        for parameter in parameters:
            if parameter.requires_grad:
                by_kind.setdefault((parameter.device, parameter.dtype), []).append(parameter)
        for group in by_kind.values():
            self._average_group(group)

    def _average_group(self, parameters: list[nn.Parameter]) -> None:
        device, dtype = parameters[0].device, parameters[0].dtype
        present = [parameter.grad is not None for parameter in parameters]
        # How many ranks hold each gradient travels on the host group: which ones to skip is a host decision.
        holders = self._processes.reduce([float(flag) for flag in present])
        active = [p for p, count in zip(parameters, holders, strict=True) if count]
        if not active:
            return
        flat = torch.cat([_gradient_or_zero(parameter) for parameter in active])
        dist.all_reduce(flat)
        flat.div_(self._processes.size)
        offset = 0
        for parameter in active:
            mean = flat[offset : offset + parameter.numel()].view_as(parameter)
            offset += parameter.numel()
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter, device=device, dtype=dtype)
            parameter.grad.copy_(mean)


def _gradient_or_zero(parameter: nn.Parameter) -> Tensor:
    if parameter.grad is None:
        return parameter.new_zeros(parameter.numel())
    return parameter.grad.reshape(-1)
