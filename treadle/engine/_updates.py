"""Updates of this door: how long their data took to come, and what stages report of them."""

import time
from typing import TYPE_CHECKING, Any

from treadle.data import Batch
from treadle.engine._stages import OutputsAtEnd, numbers_of
from treadle.events.names import DATA_TIME
from treadle.loop import Updater
from treadle.parallel.stage_loss import StageLoss
from treadle.phase import Phase

if TYPE_CHECKING:
    from treadle.engine._adapter import EngineCore


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
        return OutputsAtEnd(lambda batch: core.parallel.route(core.model, *core.arguments_of(batch)))

    def stage_weight(self, found: list[tuple[dict[str, Any], int]]) -> Any:
        """Give every stage what the last one reports of a window, and what its losses are means over."""
        numbers = self.trainer.parallel.from_last(numbers_of(found))
        items = numbers.pop("num_items_in_batch", None)
        weight = self.samples if items is None else items
        self.trainer.put_outputs(weight, numbers)
        return weight
