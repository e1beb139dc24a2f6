"""Updates of this door: how long their data took to come, and what stages report of them."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from treadle.data import Batch
from treadle.engine.metrics import find_scalars, mean_over_window, total_loss, zero_without_items
from treadle.events.names import DATA_TIME
from treadle.loop import Updater
from treadle.ops.loss_items import count_labels
from treadle.parallel.pipeline.loss import Entry, StageLoss
from treadle.parallel.pipeline.stages import is_named
from treadle.phase import Phase

if TYPE_CHECKING:
    from treadle.engine.core import EngineCore

# What this door asks of the last stage of a pipeline: the losses that a model returns, and its numbers


ITEMS = "num_items_in_batch"


class LastStageLoss(StageLoss):
    """The last module returns what the model does: a dict whose losses are summed up.

    Args:
        enter: Returns what a batch is to the modules.
        labelled: The model, if it is one of transformers, whose losses are means over its labels.
    """

    def __init__(self, enter: Callable[[Batch], Entry], labelled: nn.Module | None = None) -> None:
        super().__init__(None)
        self._enter, self._labelled = enter, labelled

    def enter(self, batch: Batch) -> Entry:
        """Return what `batch` is to the modules."""
        return self._enter(batch)

    def finish(self, last: nn.Module, hidden: Tensor, ending: Mapping[str, Any]) -> dict[str, Any]:
        """Return the sum of the losses as "loss", and the numbers to report as "numbers"."""
        labels = None if self._labelled is None else count_labels(self._labelled, ending)
        outputs = last(hidden, **(ending if labels is None else labels[1]))
        found: dict[str, Any] = {"loss": total_loss(outputs), "numbers": find_scalars(outputs)}
        if isinstance(outputs, Mapping) and ITEMS in outputs:
            found[ITEMS] = outputs[ITEMS]
        elif labels is not None:
            items = labels[0].items
            loss, numbers = torch.where(items > 0, found["loss"], 0.0), zero_without_items(found["numbers"], items)
            found = {"loss": loss, "numbers": numbers, ITEMS: items}
        return found


def window_means(found: Sequence[tuple[dict[str, Any], int]]) -> dict[str, Any]:
    """Return the means, over a window, of what the last stage found, and over how many items in all they are.

    >>> window_means([({"numbers": {"loss": 1.0}}, 2), ({"numbers": {"loss": 4.0}}, 1)])
    {'loss': 2.0}
    """
    if not found:
        return {}
    numbers = mean_over_window([(output.get(ITEMS, size), output["numbers"]) for output, size in found])
    if ITEMS in found[0][0]:
        numbers[ITEMS] = sum(output[ITEMS] for output, _ in found)
    return numbers


class EngineUpdater(Updater):
    """Makes updates, and says how long their data took to come."""

    trainer: "EngineCore"

    def attempt(self, phase: Phase, window: list[Batch]) -> None:
        """Make one update, and take note of how long its data took."""
        core = self.trainer
        core.data_time = time.perf_counter() - core.fetch_began
        super().attempt(phase, window)
        if core.may_record:
            core.storage.put_scalar(DATA_TIME, core.data_time)

    def stage_loss(self) -> StageLoss:
        """Return how batches go into stages: as the model takes them."""
        core = self.trainer
        # A model that says itself how it is cut says itself, too, what its losses are means over.
        labelled = core.model if is_named(core.model, core.parallel.plan) else None
        return LastStageLoss(lambda batch: core.parallel.route(core.model, *core.arguments_of(batch)), labelled)

    def stage_weight(self, found: list[tuple[dict[str, Any], int]]) -> Any:
        """Give every stage what the last one reports of a window, and what its losses are means over."""
        numbers = self.trainer.parallel.from_last(window_means(found))
        items = numbers.pop("num_items_in_batch", None)
        weight = self.samples if items is None else items
        self.trainer.put_outputs(weight, numbers)
        return weight
