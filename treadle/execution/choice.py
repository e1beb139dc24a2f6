"""What `execution="auto"` measured and chose, in the form in which the folder of a run keeps it."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from treadle.errors import ConfigError, StorageError
from treadle.execution.compiled import Compile
from treadle.files.atomic_io import replace_text

FILE = "execution.json"
"""What the record of a choice is called in the folder of a run."""
EAGER, COMPILED, RECORDED, BOTH = "eager", "compile", "graph", "graph+compile"
WAYS = (EAGER, COMPILED, RECORDED, BOTH)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What became of one way of carrying updates out.

    Args:
        name: The way.
        milliseconds: What an update takes; None if it was not measured.
        seconds: How long it took to make and to measure.
        refused: Why it was not tried, or not taken; empty if nothing speaks against it.
    """

    name: str
    milliseconds: float | None = None
    seconds: float = 0.0
    refused: str = ""

    @property
    def is_taken(self) -> bool:
        """Whether it can be chosen."""
        return self.milliseconds is not None and not self.refused

    def describe(self) -> str:
        """Return it in words.

        >>> Trial(name="eager", milliseconds=15.21, seconds=0.1).describe()
        'eager 15.2 ms'
        >>> Trial(name="graph", refused="the step prints a tensor").describe()
        'no graph (the step prints a tensor)'
        """
        if self.refused or self.milliseconds is None:
            return f"no {self.name} ({self.refused})"
        made = f" (made in {self.seconds:.0f} s)" if self.seconds >= 1 else ""
        return f"{self.name} {self.milliseconds:.3g} ms{made}"


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The way of carrying updates out that was chosen for a run, and from when on.

    Args:
        chosen: One of `WAYS`.
        step: How many updates were made eagerly before it.
        compile: How what is compiled is compiled.
        trials: What was tried.
        reason: Why nothing was tried; empty if something was.
    """

    chosen: str
    step: int = 0
    compile: Compile | None = None
    trials: tuple[Trial, ...] = ()
    reason: str = ""

    def __post_init__(self) -> None:
        if self.chosen not in WAYS:
            raise ConfigError(f"chosen={self.chosen!r} is no way of carrying updates out; there are {WAYS}")
        if type(self.step) is not int or self.step < 0:
            raise ConfigError(f"step={self.step!r} must be a whole number from 0")

    def __str__(self) -> str:
        return f"{self.chosen} from step {self.step + 1} on"

    @property
    def records(self) -> bool:
        """Whether updates are recorded."""
        return self.chosen in (RECORDED, BOTH)

    @property
    def compiles(self) -> Compile | None:
        """How the loss is compiled; None if it is not."""
        return (self.compile or Compile()) if self.chosen in (COMPILED, BOTH) else None

    def describe(self) -> str:
        """Return the choice and what it was made by, in one line."""
        tried = ", ".join(trial.describe() for trial in self.trials)
        why = tried or self.reason
        return f"execution='auto' is {self}{why and ': '}{why}"

    # On disk ------------------------------------------------------------------------------------------------

    def plain(self) -> dict[str, Any]:
        """Return the choice as plain data."""
        return {**asdict(self), "trials": [asdict(trial) for trial in self.trials]}

    @classmethod
    def of(cls, plain: Any, where: str) -> "Choice":
        """Return the choice that `plain` made plain data of.

        Args:
            plain: The data.
            where: Where it was found, for messages.

        Raises:
            ConfigError: It is none.
        """
        try:
            trials = tuple(Trial(**trial) for trial in plain["trials"])
            how = None if plain["compile"] is None else Compile(**plain["compile"])
            return cls(**{**plain, "trials": trials, "compile": how})
        except (ConfigError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{where} is no record of what execution='auto' chose: {error}") from error

    @classmethod
    def read(cls, file: str | Path) -> "Choice":
        """Return the choice in a file, or in the folder of a run.

        Raises:
            ConfigError: There is none.
        """
        path = Path(file)
        path = path / FILE if path.is_dir() else path
        try:
            return cls.of(json.loads(path.read_text(encoding="utf-8")), str(path))
        except FileNotFoundError:
            raise ConfigError(
                f"there is no {path}; a run with execution='auto' that chose has such a file in its folder"
            ) from None
        except (OSError, ValueError, RecursionError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"{path} cannot be read as what execution='auto' chose: {error}") from error

    def write(self, folder: Path, *, table: bool = True) -> None:
        """Write the choice into the folder of a run.

        Args:
            folder: The folder.
            table: Whether to write a table of it for the page of the run, too.

        Raises:
            CheckpointError: The disk does not take it.
        """
        rows = [
            [one.name, one.milliseconds, round(one.seconds, 2), "chosen" if one.name == self.chosen else one.refused]
            for one in self.trials or (Trial(name=self.chosen),)
        ]
        try:
            replace_text(folder / FILE, json.dumps(self.plain(), indent=1))
        except OSError as error:
            raise StorageError(f"cannot write {folder / FILE}: {error}") from error
        if not table:
            return
        # With it comes what reads runs, which no step needs.
        from treadle.runs.panels import write_table

        write_table(folder, "execution", ["way", "ms an update", "s to try", ""], rows)


class ChosenState:
    """The choice of a run as a part of its state, so that whoever goes on from a checkpoint goes on with it.

    Args:
        choice: What is given.
        silent: Whether a choice that nothing was tried for has no place in checkpoints.

    Attributes:
        choice: The choice; None before it.
        seen: Whether a state was loaded: one of a run that chose, or was going to.
    """

    def __init__(self, choice: Choice | None = None, *, silent: bool = False) -> None:
        self.choice = choice
        self.seen = False
        self._silent = silent

    @property
    def is_void(self) -> bool:
        """Whether there is nothing to keep."""
        tried = self.choice is not None and (bool(self.choice.trials) or self.choice.chosen != EAGER)
        return self._silent and not tried

    def state_dict(self) -> dict[str, Any]:
        """Return the choice as plain data."""
        return {"choice": None if self.choice is None else self.choice.plain()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the choice of a checkpoint; one from before the choice leaves the choice as it is."""
        self.seen = True
        if self.choice is None and state["choice"] is not None:
            self.choice = Choice.of(state["choice"], "the state of 'execution' in the checkpoint")
