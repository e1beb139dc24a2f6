"""What tests of writers share: a storage that is entered, and runs that go on."""

from collections.abc import Iterator

import pytest

from treadle.events import EventStorage, RunHistory


@pytest.fixture
def storage() -> Iterator[EventStorage]:
    with EventStorage() as entered:
        yield entered


def resumed(storage: EventStorage) -> EventStorage:
    """Return a storage as a new process has it that goes on from a checkpoint of now."""
    history = RunHistory()
    history.load_state_dict(RunHistory(storage).state_dict())
    history.storage.iter = storage.iter
    return history.storage
