"""Numbers of this door that are not finite: looked for now and then, in what was put into the storage."""

import math
from typing import TYPE_CHECKING

from treadle.errors import NonFiniteError
from treadle.falling_back import fell_back
from treadle.loop import Log
from treadle.nonfinite import REMEDY, RollBack

if TYPE_CHECKING:
    from treadle.engine._adapter import EngineCore


class EngineLog(Log):
    """Reads what was put since the last time, and acts on a number that is not finite; writing is for hooks."""

    trainer: "EngineCore"

    def write(self) -> None:
        """Look at the numbers since the last time."""
        core = self.trainer
        self.take_losses()
        self.put_state_of_updates()
        first, core.checked_to = core.checked_to, core.progress.step
        # In fp16 the norm of a gradient that overflowed is infinite, and the update was left out.
        names = ("total_loss",) if core.precision.scaler is not None else ("total_loss", "grad_norm")
        rows = ((name, place, value) for name in names for place, value in self._recorded(name))
        bad = next((row for row in rows if row[1] >= first and not math.isfinite(row[2])), None)
        if fell_back(core, None if bad is None else f"{bad[0]} is {bad[2]} at iteration {bad[1]}"):
            return
        if bad is not None and core.on_nonfinite != "skip":
            self._act_on(*bad)

    def check_weights(self) -> None:
        """Refuse to keep weights that are not finite."""
        # A number that went wrong says more of the cause than the weights it spoilt. Where bad updates are left out it
        # spoils none, and is acted on when it is due, as in a run that nobody interrupts to save it.
        if not self.trainer.leaves_bad_updates_out:
            self.write()
        super().check_weights()

    def _recorded(self, name: str) -> list[tuple[int, float]]:
        storage = self.trainer.storage
        if name not in storage.names():
            return []
        series = storage.series(name)
        return list(zip(series.steps, series.values, strict=True))

    def _act_on(self, name: str, iteration: int, value: float) -> None:
        if self.trainer.on_nonfinite == "rollback":
            raise RollBack(iteration + 1, value)
        raise NonFiniteError(f"{name} is {value} at iteration {iteration}; {REMEDY}")
