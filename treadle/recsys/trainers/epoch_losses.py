"""The losses of the batches of an epoch, added up where they are."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from treadle.errors import LossError
from treadle.parallel import Processes


class EpochLosses:
    """Adds up the loss of every batch of an epoch, part by part; the host looks once, at the end.

    The sums are changed in place and nothing else happens, so that a recorded step does it too.

    Args:
        device: Where the losses are.
        only_finite: Whether losses that are nan or infinite are left out, as their updates are.
    """

    def __init__(self, device: torch.device, *, only_finite: bool = False) -> None:
        self._device, self._only_finite = device, only_finite
        self._sums: dict[str, Tensor] = {}

    def reset(self) -> None:
        """Begin an epoch."""
        for total in self._sums.values():
            total.zero_()

    def add(self, name: str, parts: Sequence[Tensor], share: float | Tensor = 1.0) -> None:
        """Add the parts of the loss of a batch.

        Args:
            name: The pass over the data that they are of.
            parts: The parts, one number each.
            share: What part of the batch this process, or this micro-batch, has.
        """
        known = self._sums.get(name)
        # A share on the device is not looked at: the host would wait for it.
        whole = isinstance(share, float) and share == 1.0
        plain = whole and len(parts) == 1 and parts[0].dim() == 0 and not self._only_finite
        if plain and known is not None and len(known) == 1:
            # The most common case; what is below is a good part of a small step.
            known.add_(parts[0].detach())
            return
        losses = torch.stack([_number(part) for part in parts])
        if self._only_finite:
            losses = torch.where(torch.isfinite(losses), losses, 0)
        if known is None or len(known) < len(parts):
            # At its first batches a pass may have fewer parts than later.
            longer = torch.zeros(len(parts), dtype=torch.float64, device=self._device)
            if known is not None:
                longer[: len(known)] = known
            known = self._sums[name] = longer
        known[: len(parts)].add_(losses if whole else losses * share)

    def read(self, names: Sequence[str], processes: Processes) -> list[list[float]]:
        """Return the sums of some passes over the batches of all processes; passes that did not come have none."""
        sums = [self._sums[name] for name in names if name in self._sums]
        if not sums:
            return [[] for _ in names]
        total = iter(processes.reduce(torch.cat(sums).tolist()))
        return [[next(total) for _ in range(len(self._sums.get(name, ())))] for name in names]

    def state_dict(self) -> dict[str, Any]:
        """Return the sums."""
        return dict(self._sums)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the sums back, in place where that is possible."""
        for name, total in state.items():
            known = self._sums.get(name)
            if known is not None and known.shape == total.shape:
                known.copy_(total)
            else:
                self._sums[name] = total.to(self._device, copy=True)
        for name in set(self._sums) - set(state):
            self._sums[name].zero_()


def _number(part: Tensor) -> Tensor:
    if part.numel() != 1:
        raise LossError(f"the loss of a batch has the shape {tuple(part.shape)}; reduce it with .mean() or .sum()")
    return part.detach().reshape(())
