"""Mutual exclusion between searches that share nothing but a database."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from treadle.search.optional import quiet_optuna

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

STALE_SECONDS = 30.0
"""How long it may be held before the holder counts as dead; it takes milliseconds."""


@contextmanager
def study_as_mutex(storage: "BaseStorage", name: str, stale: float = STALE_SECONDS) -> Iterator[None]:
    """Hold a study of this name, of which a database lets there be only one; it is removed at the end.

    Args:
        storage: The database.
        name: The name.
        stale: How many seconds another one may hold it before it counts as dead.
    """
    from optuna.exceptions import DuplicatedStudyError
    from optuna.study import StudyDirection

    holder, since = None, time.monotonic()
    with quiet_optuna():
        while True:
            try:
                held = storage.create_new_study([StudyDirection.MINIMIZE], name)
                break
            except DuplicatedStudyError:
                now = _holder(storage, name)
                if now != holder:
                    holder, since = now, time.monotonic()
                elif now is not None and time.monotonic() - since > stale:
                    _remove(storage, now)
                time.sleep(0.02)
        try:
            yield
        finally:
            _remove(storage, held)


def _holder(storage: "BaseStorage", name: str) -> int | None:
    try:
        return storage.get_study_id_from_name(name)
    except KeyError:
        return None


def _remove(storage: "BaseStorage", held: int) -> None:
    # Whoever was taken for dead finds that it is gone.
    with suppress(KeyError):
        storage.delete_study(held)
