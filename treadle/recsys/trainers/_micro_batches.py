"""Updates of this door: what part of a batch a micro-batch is, and what its losses come to."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from treadle.data import Batch
from treadle.loop import Updater
from treadle.phase import Phase
from treadle.recsys.trainers.batches import as_interaction

if TYPE_CHECKING:
    from treadle.recsys.trainers._core import RecsysCore


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
