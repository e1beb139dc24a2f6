"""`Schedule`: a value that depends on the step number and on nothing that happened before."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from torch.optim import Optimizer

from treadle.errors import ConfigError
from treadle.schedules.base import StatefulSchedulerBase


class Schedule(StatefulSchedulerBase):
    """A scheduler whose value is a pure function of the step number and of each group's base value.

    It therefore resumes from its step number alone, whether the optimizer's state is loaded before, after or not
    at all. The length is an argument, and may be another one in the resumed run; a length given to `stretch` is
    part of the state, and is taken up again unless the run is resumed with another argument.

    Args:
        optimizer: whose groups to write.
        total_steps: the length in optimizer updates, after which the last value is held; None for no end.
        param_group_field: the field to schedule.
    """

    def __init__(self, optimizer: Optimizer, total_steps: int | None = None, param_group_field: str = "lr") -> None:
        super().__init__(optimizer, param_group_field)
        self.total_steps = total_steps
        self._built_for = total_steps

    @abstractmethod
    def value(self, step: float, base: float) -> float:
        """Return the value at `step` of a group whose base value is `base`."""

    def get_updated_values(self, num_updates: int) -> list[float]:
        """Return the value of each group for update number `num_updates`."""
        return [self.value(num_updates, base) for base in self.base_lr_values]

    def stretch(self, total_steps: int) -> None:
        """Change the length; from here on the value is the one that a schedule of this length has at this step.

        Raises:
            ConfigError: the schedule has no length to change, or the new one has no room for what is done.
        """
        if total_steps < self._num_updates:
            raise ConfigError(
                f"{type(self).__name__} cannot be stretched to {total_steps} steps: {self._num_updates} are done"
            )
        self._set_length(total_steps)
        self.step_update(self._num_updates)

    def _set_length(self, total_steps: int) -> None:
        """Take `total_steps` as the length; a subclass checks it, and works out what depends on it."""
        self.total_steps = total_steps

    def state_dict(self) -> dict[str, Any]:
        """Return the step number, and the length as it was given and as it is now."""
        return {
            "num_updates": self._num_updates,
            "built_for": self._built_for,
            "total_steps": self.total_steps,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to the step where the schedule that gave `state_dict` stood, and write the values of that step."""
        self._num_updates = int(self._entry(state_dict, "num_updates"))
        total_steps = state_dict.get("total_steps")
        if total_steps is not None and state_dict.get("built_for") == self._built_for:
            self._set_length(total_steps)
        self.step_update(self._num_updates)
