"""What all schedulers share: finding the scheduled field of each group, writing it, counting updates."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from numbers import Real
from typing import Any, Concatenate, ParamSpec

from torch import Tensor
from torch.optim import Optimizer

from treadle.errors import CheckpointError, ConfigError, did_you_mean
from treadle.schedules.placeholders import PlaceholderExpression

# Checks on the arguments of schedules, made when one is built rather than at step 40,000


def number(owner: object, name: str, value: Any, *, minimum: float = 0.0, maximum: float = math.inf) -> float:
    """Return `value` if it is a finite number between `minimum` and `maximum`."""
    if isinstance(value, PlaceholderExpression):
        raise ConfigError(
            f"{_place(owner, name)} is still the placeholder {value!r}; the trainer puts the number in only when "
            f"the factory is functools.partial({type(owner).__name__}, {name}=...) passed to train()"
        )
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise ConfigError(f"{_place(owner, name)} must be a number, got {value!r}")
    if not minimum <= float(value) <= maximum:
        limits = f"at least {minimum:g}" if maximum == math.inf else f"from {minimum:g} to {maximum:g}"
        raise ConfigError(f"{_place(owner, name)} must be {limits}, got {value!r}")
    return float(value)


def positive(owner: object, name: str, value: Any) -> float:
    """Return `value` if it is a finite number above 0."""
    checked = number(owner, name, value)
    if checked == 0:
        raise ConfigError(f"{_place(owner, name)} must be above 0, got {value!r}")
    return checked


def steps(owner: object, name: str, value: Any, *, minimum: int = 0) -> int:
    """Return `value` as a whole number of optimizer updates."""
    checked = number(owner, name, value, minimum=minimum)
    if checked != int(checked):
        raise ConfigError(f"{_place(owner, name)} must be a whole number of steps, got {value!r}; use round(...)")
    return int(checked)


def ratio(owner: object, name: str, value: Any) -> float:
    """Return `value` if it is a share of the base value, from 0 to 1."""
    return number(owner, name, value, maximum=1.0)


def positive_ratio(owner: object, name: str, value: Any) -> float:
    """Return `value` if it is a share of the base value, above 0, which some shapes cannot reach."""
    return positive(owner, name, ratio(owner, name, value))


def _place(owner: object, name: str) -> str:
    return f"{type(owner).__name__}: {name}"


Arguments = ParamSpec("Arguments")
Values = float | Iterable[float] | None


class SchedulerBase(ABC):
    """Set a field of an optimizer's parameter groups from the number of updates done, which the caller counts.

    A subclass says in `get_updated_values` what the field shall be. Call `step_update` after each update:

        for batch in loader:
            ...
            optimizer.step()
            num_updates += 1
            scheduler.step_update(num_updates)

    The value that the user gave each group is kept in the group as `initial_<field>`, where a checkpoint of the
    optimizer carries it. Groups added later join with the value they bring. A field that is a tensor is written
    in place, so that a captured step sees the change.

    Args:
        optimizer: whose groups to write.
        param_group_field: the field to schedule.
    """

    def __init__(self, optimizer: Optimizer, param_group_field: str = "lr") -> None:
        self.optimizer = optimizer
        self.param_group_field = param_group_field
        self._initial_field = f"initial_{param_group_field}"
        self._last_values = self.base_lr_values
        self._update_param_groups(self._last_values)

    @property
    def base_lr_values(self) -> list[float]:
        """The value that each group had before any schedule changed it."""
        return [self._base_value(group) for group in self.optimizer.param_groups]

    @abstractmethod
    def get_updated_values(self, num_updates: int) -> Values:
        """Return the value after `num_updates` updates: one for all groups, one for each, or None for no change."""

    def step_update(self, num_updates: int) -> None:
        """Write the values that follow `num_updates` updates."""
        values = self.get_updated_values(num_updates)
        if values is not None:
            self._update_param_groups(values)

    def get_last_lr(self) -> list[float]:
        """Return the values written last, one for each group, without reading any device."""
        return list(self._last_values)

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs beyond the arguments; extend it in a subclass that remembers more."""
        return {"values": [float(value) for value in self._last_values]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take up where the scheduler that gave `state_dict` stood; arguments stay as they were given here."""
        self._update_param_groups(self._entry(state_dict, "values"))

    def _base_value(self, group: dict[str, Any]) -> float:
        value = group.get(self._initial_field)
        if value is None or isinstance(value, Tensor):
            # A float, and read once: a tensor would change with the field, or be read from the device each step.
            value = float(self._current_value(group) if value is None else value)
            group[self._initial_field] = value
        return value

    def _current_value(self, group: dict[str, Any]) -> Any:
        if self.param_group_field not in group:
            near = did_you_mean(self.param_group_field, group)
            raise ConfigError(
                f"{type(self).__name__}: the groups of {type(self.optimizer).__name__} have no field "
                f"{self.param_group_field!r}{near or f'; they have {sorted(group)}'}"
            )
        return group[self.param_group_field]

    def _update_param_groups(self, values: float | Iterable[float]) -> None:
        groups = self.optimizer.param_groups
        new = list(values) if isinstance(values, Iterable) else [values] * len(groups)
        if len(new) != len(groups):
            raise ConfigError(
                f"{type(self).__name__} has {len(new)} values for {len(groups)} parameter groups; "
                "give one number for all groups, or one for each"
            )
        for group, value in zip(groups, new, strict=True):
            current = self._current_value(group)
            if isinstance(current, Tensor):
                current.fill_(value)
            else:
                group[self.param_group_field] = value
        self._last_values = new

    def _entry(self, state_dict: Mapping[str, Any], key: str) -> Any:
        if key not in state_dict:
            raise CheckpointError(
                f"this state of {type(self).__name__} has no {key!r}, only {sorted(state_dict)}; "
                "it was written by something else, and cannot say where the schedule stood"
            )
        return state_dict[key]


def _then_first_value(initialise: Callable[Concatenate[Any, Arguments], None]) -> Callable[..., None]:
    """Wrap a constructor so that, once the whole object is built, the value for update 0 is written.

    A subclass calls the base constructor first and sets its own attributes after, so the base could not ask it
    for a value. The wrapper of the outermost constructor does.
    """

    @wraps(initialise)
    def initialise_and_write(self: Any, *args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        initialise(self, *args, **kwargs)
        if type(self).__init__ is initialise_and_write:
            self.step_update(self.num_updates)

    return initialise_and_write


class StatefulSchedulerBase(SchedulerBase):
    """A scheduler that counts the updates itself: call `step()` after each one.

    Update number k, the first being 0, runs at the value for k: the value for 0 is written when the scheduler is
    built, and each `step()` writes the next.

    >>> import torch
    >>> class Halving(StatefulSchedulerBase):
    ...     def get_updated_values(self, num_updates):
    ...         return [base / 2**num_updates for base in self.base_lr_values]
    >>> scheduler = Halving(torch.optim.SGD([torch.zeros(1)], lr=1.0))
    >>> scheduler.step()
    >>> scheduler.get_last_lr()
    [0.5]

    Args:
        optimizer: whose groups to write.
        param_group_field: the field to schedule.
    """

    @_then_first_value
    def __init__(self, optimizer: Optimizer, param_group_field: str = "lr") -> None:
        super().__init__(optimizer, param_group_field)
        self._num_updates = 0

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in cls.__dict__:
            cls.__init__ = _then_first_value(cls.__init__)  # type: ignore[method-assign]

    @property
    def num_updates(self) -> int:
        """How many updates have been done."""
        return self._num_updates

    def step(self) -> None:
        """Count one update, and write the values for the next."""
        self._num_updates += 1
        self.step_update(self._num_updates)

    def state_dict(self) -> dict[str, Any]:
        """Return the count and the current values."""
        return {"num_updates": self._num_updates, **super().state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take up the count and the values where the scheduler that gave `state_dict` stood."""
        self._num_updates = int(self._entry(state_dict, "num_updates"))
        super().load_state_dict(state_dict)


# `Schedule`: a value that depends on the step number and on nothing that happened before


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

    @property
    def _given_length(self) -> int:
        assert self.total_steps is not None  # the constructors that need a length insist on one
        return self.total_steps

    def _set_length(self, total_steps: int) -> None:
        """Take `total_steps` as the length; a subclass checks it, and works out what depends on it."""
        self.total_steps = self._checked_length(total_steps)

    def _checked_length(self, total_steps: int) -> int:
        """Return `total_steps` if the schedule has room in it."""
        return total_steps

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
