"""What every writer is."""

from abc import ABC, abstractmethod


class EventWriter(ABC):
    """Takes metrics from the storage of the run to some destination.

    A writer of your own is a class with a `write` that asks `get_event_storage()` for what it wants.
    """

    @abstractmethod
    def write(self) -> None:
        """Write what is new in `get_event_storage()`."""

    def close(self) -> None:  # noqa: B027 - a writer that opens nothing has nothing to close
        """Release what was opened; a later `write` opens it again."""
