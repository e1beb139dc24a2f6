"""Where a run is, and how often things happen in it."""

import re
from dataclasses import asdict, dataclass
from typing import Any, Literal

from treadle.errors import ConfigError

Unit = Literal["steps", "epochs"]
AFTER_STEP, AFTER_EPOCH = 1, 2
"""When an evaluation is: in the middle of an epoch, or at its end."""


@dataclass(slots=True)
class Progress:
    """How far a run has come.

    Attributes:
        epoch: Epochs completed.
        step: Optimizer updates attempted since the run began.
        samples: Samples trained on by this process.
        epoch_step: Updates attempted in the epoch under way.
        visit: Phases of this epoch that were entered before the current one.
        visit_step: Updates attempted in the current phase since it was entered.
        evaluation: Whether an evaluation is under way, which is made again when the run resumes from here: AFTER_STEP
            or AFTER_EPOCH; 0 if there is none.
    """

    epoch: int = 0
    step: int = 0
    samples: int = 0
    epoch_step: int = 0
    visit: int = 0
    visit_step: int = 0
    evaluation: int = 0

    @property
    def mid_epoch(self) -> bool:
        """Whether an epoch has begun that is not finished."""
        return self.epoch_step > 0

    def count_update(self, samples: int) -> None:
        """Count one attempted update over `samples` samples."""
        self.step += 1
        self.epoch_step += 1
        self.visit_step += 1
        self.samples += samples

    def finish_visit(self) -> None:
        """Count the current phase as left."""
        self.visit += 1
        self.visit_step = 0

    def finish_epoch(self) -> None:
        """Count the current epoch as completed."""
        self.epoch += 1
        self.epoch_step = self.visit = self.visit_step = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the counters as plain data."""
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the counters from `state`."""
        for name in self.__slots__:
            # Runs that were saved by earlier versions were never saved inside an evaluation.
            setattr(self, name, int(state.get(name, 0) if name == "evaluation" else state[name]))


@dataclass(frozen=True, slots=True)
class Cadence:
    """How often something happens: every so many steps or epochs.

    >>> Cadence.parse("500 steps", name="eval_every")
    Cadence(every=500, unit='steps')
    >>> Cadence.parse(20, name="log_every").due_after_step(40)
    True
    """

    every: int
    unit: Unit

    @classmethod
    def parse(cls, value: "int | str | Cadence", *, name: str) -> "Cadence":
        """Read `"500 steps"`, `"1 epoch"` or a number of steps.

        Raises:
            ConfigError: `value` is none of these; the message names the argument `name`.
        """
        if isinstance(value, Cadence):
            return value
        if isinstance(value, str):
            match = re.fullmatch(r"\s*(\d+)\s*(step|epoch)s?\s*", value)
            if match and int(match[1]) > 0:
                return cls(int(match[1]), "steps" if match[2] == "step" else "epochs")
        elif isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return cls(value, "steps")
        raise ConfigError(
            f"{name}={value!r} is not a valid interval; write a number of steps, '500 steps' or '1 epoch' (at least 1)"
        )

    @classmethod
    def parse_optional(cls, value: "int | str | Cadence | None", *, name: str) -> "Cadence | None":
        """Like `parse`, where None means never."""
        return None if value is None else cls.parse(value, name=name)

    @property
    def in_steps(self) -> int:
        """How many steps lie between two times; 0 if it is not by steps."""
        return self.every if self.unit == "steps" else 0

    def due_after_step(self, step: int) -> bool:
        """Whether it is due once `step` updates were attempted."""
        return self.unit == "steps" and step % self.every == 0

    def due_after_epoch(self, epoch: int) -> bool:
        """Whether it is due once `epoch` epochs were completed."""
        return self.unit == "epochs" and epoch % self.every == 0

    def __str__(self) -> str:
        return f"{self.every} {self.unit if self.every > 1 else self.unit[:-1]}"
