"""Which storage is the one to put into: the innermost that was entered."""

from contextvars import ContextVar
from typing import TYPE_CHECKING

from treadle.errors import ConfigError

if TYPE_CHECKING:
    from treadle.events.storage import EventStorage

_own: ContextVar[tuple["EventStorage", ...]] = ContextVar("treadle_event_storages", default=())
_all: list["EventStorage"] = []


def get_event_storage() -> "EventStorage":
    """Return the storage of the run under way, to put metrics into from inside a model.

    It is the innermost that this thread entered. A thread that entered none, such as autograd's when it runs a
    model a second time for checkpointed activations, finds the one of the process if there is a single one.

    Raises:
        ConfigError: There is no run under way, or several in other threads.
    """
    if own := _own.get():
        return own[-1]
    entered = {id(storage): storage for storage in list(_all)}
    if len(entered) == 1:
        return next(iter(entered.values()))
    if not entered:
        raise ConfigError(
            "get_event_storage() was called while nothing trains; ask has_event_storage() first, "
            "or use `with EventStorage():`"
        )
    raise ConfigError(
        f"get_event_storage() was called in a thread without a storage, and {len(entered)} other threads have one; "
        "enter the one that is meant, by `with storage:`"
    )


def has_event_storage() -> bool:
    """Whether `get_event_storage` would return one."""
    return bool(_own.get()) or len({id(storage) for storage in list(_all)}) == 1


def enter(storage: "EventStorage") -> None:
    """Make `storage` the innermost."""
    _own.set((*_own.get(), storage))
    _all.append(storage)


def leave(storage: "EventStorage") -> None:
    """Take the innermost entry of `storage` back."""
    own = list(_own.get())
    for entries in (own, _all):
        places = [place for place, entry in enumerate(entries) if entry is storage]
        if places:
            del entries[places[-1]]
    _own.set(tuple(own))
