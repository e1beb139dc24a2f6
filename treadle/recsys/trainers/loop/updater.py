"""Updates of this door: what part of a batch a micro-batch is, and what its losses come to."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from treadle.data import Batch
from treadle.errors import LossError
from treadle.loop import Updater
from treadle.parallel import Processes
from treadle.phase import Phase
from treadle.recsys.trainers.loop.streams import as_interaction

if TYPE_CHECKING:
    from treadle.recsys.trainers.loop.core import RecsysCore

# The losses of the batches of an epoch, added up where they are


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


class RecommenderUpdater(Updater):
    """Makes updates whose losses are added up over an epoch, each batch in the share that this process has of it.

    Args:
        core: Whose run it is.

    Attributes:
        share: What part of a batch this process has.
        whole: The batch that is cut finer; None where none is.
    """

    trainer: "RecsysCore"

    def __init__(self, core: "RecsysCore") -> None:
        super().__init__(core)
        self.share = 1.0
        self.whole: Any = None
        self._sums_before: dict[str, Tensor] = {}

    def attempt(self, phase: Phase, window: list[Batch]) -> None:
        """Make one update, and take note of what its micro-batches are parts of."""
        core = self.trainer
        if self.exchanges:
            self.share = getattr(phase.stream, "share", 1.0)
        if core.this_run.spec.microbatch == "auto":
            self.whole = as_interaction(window[0]) if self.splits.parts > 1 else None
            self._sums_before = {name: total.clone() for name, total in core.sums.state_dict().items()}
        super().attempt(phase, window)

    def halve(self) -> None:
        """Halve the micro-batches, and forget the losses of those that were calculated already."""
        self.trainer.sums.load_state_dict(self._sums_before)
        super().halve()

    def part_of_whole(self, interaction: Any, items: Any, items_in: Callable[[Any], Any]) -> Any:
        """Return what part of its batch's loss the loss of a micro-batch is.

        Args:
            interaction: The micro-batch.
            items: What its loss is a mean over, where it is not the rows.
            items_in: Says the same of another interaction.
        """
        if not self.scale.mean:
            return self.share
        if items is None:
            return self.share * len(interaction) / len(self.whole)
        part, whole = (torch.as_tensor(one, dtype=torch.float64) for one in (items, items_in(self.whole)))
        return self.share * part / whole.clamp_min(1)
