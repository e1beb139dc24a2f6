"""How runs of this door are kept: their config, the names of checkpoints, the samples of all processes."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.checkpoint.checkpointer import RunCheckpointer
from treadle.checkpoint.run_state import RunState
from treadle.config.files import plain
from treadle.errors import ConfigError
from treadle.loop.nonfinite import RollBack
from treadle.runs.elastic import Split

if TYPE_CHECKING:
    from treadle.engine.core import EngineCore
    from treadle.engine.trainers.base import TrainerBase


class EngineState(RunState):
    """The state of a run that counts the samples of all processes, in all starts of it.

    Args:
        core: Whose run it is.
        carried: The state that an earlier run of the same trainer ended in, to resume from.

    Attributes:
        odd_samples: The samples that cannot be shared out evenly among the processes of now.
    """

    def __init__(self, core: "EngineCore", carried: dict[str, Any] | None) -> None:
        super().__init__(core)
        self.odd_samples = 0
        if carried is not None:
            self.restored = (carried, carried)

    def facts(self) -> dict[str, Any]:
        """Return what another run must know, the samples that nobody has the half of among it."""
        return {**super().facts(), "odd_samples": self.odd_samples}

    def load(self, shared: dict[str, Any], own: dict[str, Any], *, partly: bool = False) -> None:
        """Bring everything back; what cannot be shared out evenly among the processes of now is counted apart."""
        super().load(shared, own, partly=partly)
        trainer = self.trainer
        then = Split.of_state(shared, self.split())
        consumed = int(shared["tracked"]["progress"]["samples"]) * then.data + int(shared.get("odd_samples", 0))
        trainer.progress.samples, self.odd_samples = divmod(consumed, trainer.parallel.data_size)


class EngineCheckpointer(RunCheckpointer):
    """Keeps a run whose config the face writes, and whose checkpoints are made by hooks, under names of theirs.

    Args:
        core: Whose run it is.
        state: What is saved of it.
        folder: The folder of the run.
        face: The trainer that a user sees.
        carried: Whether the run continues in memory from where an earlier one ended.
    """

    trainer: "EngineCore"

    def __init__(
        self, core: "EngineCore", state: RunState, folder: Path, face: "TrainerBase", *, carried: bool
    ) -> None:
        super().__init__(core, state, folder)
        self._face, self._carried = face, carried
        self._names: list[str] = []

    def open_files(self, *, fresh: bool) -> None:
        """Open the files beside the checkpoints; a run that continues in memory continues in them, too."""
        super().open_files(fresh=fresh and not self._carried)

    def write_config(self) -> None:
        """Have the face write its config, which says more than the core knows: the run in the folder is this one."""
        self._face._save_config()

    def step_to_resume(self) -> int | None:
        """Return the step to resume from; None for a run that continues in memory."""
        return None if self._carried else super().step_to_resume()

    def sources(self) -> list[Any]:
        """Return what names the files that the run reads: a config names most of them."""
        config = getattr(self._face, "cfg", None)
        named: Any = None
        # What cannot be written down, such as a class of a notebook, is refused where the config is saved.
        with suppress(ConfigError):
            named = None if config is None else plain(config)
        return [*super().sources(), named]

    def is_scheduled(self) -> bool:
        """Whether something moves the learning rates: here it is a hook, if there is one."""
        return True

    def facts(self, *, best: bool, finished: bool) -> dict[str, Any]:
        """Return what the manifest of a checkpoint says of the run, and the names it has."""
        return {**super().facts(best=best, finished=finished), "names": list(self._names)}

    def save_as(self, name: str | None, *, best: bool = False) -> None:
        """Save the run as it is now, under `name` besides its iteration."""
        progress = self.trainer.progress
        self._names = [] if name is None else [name]
        if self.saved_at != (progress.step, progress.epoch) or best:
            self.save(best=best)
        elif name is not None:
            self.point(name)
        self._names = []

    def roll_back(self, request: RollBack) -> None:
        """Go back to the last checkpoint before the bad step, and look at the numbers from there on."""
        super().roll_back(request)
        self.trainer.checked_to = self.trainer.progress.step

    def finish(self) -> None:
        """Leave the last checkpoint to the hooks, which come after this; `close` waits for it."""
