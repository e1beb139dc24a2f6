"""How runs of this door are kept: with their settings, and with what tells their users and items from others."""

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.checkpoint.checkpointer import RunCheckpointer
from treadle.checkpoint.run_state import Restored, RunState
from treadle.recsys.trainers.model_file import check_tokens, storable

if TYPE_CHECKING:
    from treadle.recsys.trainers._core import RecsysCore
    from treadle.recsys.trainers.trainer import Trainer as Face


class ModelFileState(RunState):
    """The state of a run, which may be read from the file of a model."""

    def __init__(self, core: "RecsysCore", face: "Face") -> None:
        super().__init__(core)
        self._face = face

    def read(self, folder: str | os.PathLike[str]) -> Restored:
        """Return the state of the run that is in the file of a model."""
        return self._face._run_state_in_file(Path(folder))


class RecommenderCheckpointer(RunCheckpointer):
    """Keeps a run with its settings and the tokens of its users and items.

    Args:
        core: Whose run it is.
        state: What is saved of it.
        folder: The folder of the run.
        face: The trainer that a user sees.
    """

    trainer: "RecsysCore"

    def __init__(self, core: "RecsysCore", state: RunState, folder: Path, face: "Face") -> None:
        super().__init__(core, state, folder)
        self._face = face

    def sources(self) -> list[Any]:
        """Return what names the files that the run reads: the settings name the folder of the data."""
        return [*super().sources(), self._face.config["data_path"]]

    def described(self) -> dict[str, Any]:
        """Return what is trained and how, with all settings: enough to start the same run again."""
        config = self._face.config
        return {**super().described(), "dataset": config.dataset, "settings": storable(config.plain())}

    def facts(self, *, best: bool, finished: bool) -> dict[str, Any]:
        """Return what the manifest of a checkpoint says of the run, and whose tokens it knows."""
        return {**super().facts(best=best, finished=finished), "fingerprints": self._face._fingerprints()}

    def take(self, step: int) -> None:
        """Read the checkpoint at `step`, if its users and items are those of the data."""
        dataset = getattr(self.trainer.train_data, "dataset", None)
        check_tokens(self.store.manifest(step), dataset, self.trainer.run_dir)
        super().take(step)

    def identity(self) -> dict[str, Any]:
        """Return what must be the same for a run to go on."""
        identity = super().identity()
        if not any(parameter.requires_grad for parameter in self.trainer.model.parameters()):
            # What a model without weights has is as large as its data makes it, and not there before it is fitted.
            identity["model"] = {"class": identity["model"]["class"]}
        return identity

    def file_writer(self) -> threading.Thread | None:
        """Return the thread that writes the best model: a checkpoint knows of its score, so the file comes first."""
        return self._face._files.writer()
