"""The things whose state makes up a run, by name."""

from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import torch

from treadle.checkpoint.format.shards import materialised
from treadle.checkpoint.format.tree import all_plain
from treadle.errors import CheckpointError, ConfigError, TreadleError
from treadle.runs.description import name_within


@runtime_checkable
class Stateful(Protocol):
    """Anything whose state can be taken and given back."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:
        """Take the state back."""


class Tracked:
    """Named stateful things: together they are what a checkpoint holds.

    One with the attribute `reads_pieces` reads what it needs of large tensors itself. One whose attribute `is_void` is
    true has nothing to keep, and no place in a checkpoint.
    """

    def __init__(self) -> None:
        self._objects: dict[str, Stateful] = {}

    def add(self, **objects: Any) -> None:
        """Track each object under its keyword; an old one of that name is forgotten.

        Raises:
            ConfigError: An object has no `state_dict` and `load_state_dict`.
        """
        for name, value in objects.items():
            if not isinstance(value, Stateful):
                raise ConfigError(
                    f"track({name}=...): a {type(value).__name__} has no state_dict and load_state_dict; "
                    "give it both, or keep it out of the checkpoint"
                )
            self._objects[name] = value

    def copy(self) -> "Tracked":
        """Return another that tracks the same objects: what is added to one of them is not in the other."""
        copied = Tracked()
        copied.add(**self._objects)
        return copied

    def remove(self, name: str) -> None:
        """Stop tracking `name`."""
        self._objects.pop(name, None)

    def holds(self, value: Any) -> bool:
        """Whether `value` is tracked, or kept by something that is."""
        return any(one is value or name_within(one, value) is not None for one in self._objects.values())

    def names_of(self, value: Any) -> list[str]:
        """Return the names under which `value` itself is tracked."""
        return [name for name, one in self._objects.items() if one is value]

    def names(self) -> list[str]:
        """Return the names tracked, in the order they were added."""
        return list(self._objects)

    def state_dict(self, wanted: Callable[[str], bool] | None = None) -> dict[str, Any]:
        """Return the state of everything tracked, or of the names that are `wanted`."""
        return {
            name: value.state_dict()
            for name, value in self._objects.items()
            if (wanted is None or wanted(name)) and not getattr(value, "is_void", False)
        }

    def load_state_dict(self, state: dict[str, Any], *, optional: Container[str] = ()) -> None:
        """Give everything tracked its state back.

        Args:
            state: The states by name.
            optional: Names that may be missing on either side.

        Raises:
            CheckpointError: Something tracked has no state there, or the other way round.
        """
        needed = {name for name, value in self._objects.items() if not getattr(value, "is_void", False)}
        missing = sorted(name for name in needed - set(state) if name not in optional)
        surplus = sorted(name for name in set(state) - set(self._objects) if name not in optional)
        if missing or surplus:
            raise CheckpointError(
                f"the checkpoint does not match this trainer: it lacks {missing} and has {surplus} besides; "
                "build the trainer as it was when the checkpoint was written"
            )
        for name, value in self._objects.items():
            if name in state:
                with explaining_mismatch(f"the state of {name!r} in the checkpoint"):
                    own = unshared(state[name])
                    value.load_state_dict(own if getattr(value, "reads_pieces", False) else materialised(own))


@contextmanager
def explaining_mismatch(what: str) -> Iterator[None]:
    """Say which part of a checkpoint was read or loaded where that fails by an error that is not Treadle's.

    Raises:
        CheckpointError: It failed; the error itself is its cause.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, TreadleError):
            raise
        reason = " ".join(str(error).split())
        raise CheckpointError(
            f"{what} cannot be loaded ({type(error).__name__}: {reason}); it was edited, or written "
            "by other code: restore it, or resume from another checkpoint"
        ) from error


def unshared(value: Any) -> Any:
    """Return `value` with containers of its own: some schedulers take entries out of the state they load."""
    if isinstance(value, dict):
        return {key: unshared(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(value if all_plain(value) else map(unshared, value))
    return value
