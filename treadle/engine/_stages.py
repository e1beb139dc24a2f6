"""What this door asks of the last stage of a pipeline: the losses that a model returns, and its numbers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from treadle.data import Batch
from treadle.engine.metrics import mean_over_window, scalars_of, total_loss
from treadle.parallel.stage_loss import Entry, StageLoss

ITEMS = "num_items_in_batch"


class OutputsAtEnd(StageLoss):
    """The last module returns what the model does: a dict whose losses are summed up.

    Args:
        enter: Returns what a batch is to the modules.
    """

    def __init__(self, enter: Callable[[Batch], Entry]) -> None:
        super().__init__(None)
        self._enter = enter

    def enter(self, batch: Batch) -> Entry:
        """Return what `batch` is to the modules."""
        return self._enter(batch)

    def finish(self, last: nn.Module, hidden: Tensor, ending: Mapping[str, Any]) -> dict[str, Any]:
        """Return the sum of the losses as "loss", and the numbers to report as "numbers"."""
        outputs = last(hidden, **ending)
        found = {"loss": total_loss(outputs), "numbers": scalars_of(outputs)}
        if isinstance(outputs, Mapping) and ITEMS in outputs:
            found[ITEMS] = outputs[ITEMS]
        return found


def numbers_of(found: Sequence[tuple[dict[str, Any], int]]) -> dict[str, Any]:
    """Return the means, over a window, of what the last stage found, and over how many items in all they are.

    >>> numbers_of([({"numbers": {"loss": 1.0}}, 2), ({"numbers": {"loss": 4.0}}, 1)])
    {'loss': 2.0}
    """
    if not found:
        return {}
    numbers = mean_over_window([(output.get(ITEMS, size), output["numbers"]) for output, size in found])
    if ITEMS in found[0][0]:
        numbers[ITEMS] = sum(output[ITEMS] for output, _ in found)
    return numbers
