"""Taking turns: what one search of a database does while no other one does the same."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from treadle.files.bounded_io import without_passwords
from treadle.search.store.database import TurnLostError, impatient, losing_turns, persistent

if TYPE_CHECKING:
    from optuna.storages import BaseStorage, RDBStorage
    from sqlalchemy.engine import Connection


def take_turn(storage: "BaseStorage", name: str) -> AbstractContextManager[Callable[[], None]]:
    """Keep other searches of a database out of the block; what it gives raises where that is no longer so.

    Args:
        storage: The storage.
        name: What the searches that take turns have in common.
    """
    backend: RDBStorage | None = getattr(storage, "_backend", None)
    engine = getattr(backend, "engine", None)
    if backend is not None and engine is not None and engine.dialect.name in LOCKS:
        return _server_lock(backend, name)
    return lock_study(storage, name)


# By a lock of the server

LOCKS = {
    "postgresql": (
        "SELECT pg_advisory_lock(hashtextextended(:name, 0))",
        "SELECT pg_advisory_unlock(hashtextextended(:name, 0))",
    ),
    "mysql": (
        "SELECT GET_LOCK(SHA1(CONCAT(DATABASE(), '/', :name)), 31536000)",
        "SELECT RELEASE_LOCK(SHA1(CONCAT(DATABASE(), '/', :name)))",
    ),
}
"""Locks that the server holds for a connection, and gives back when it is gone: no clock decides who is dead."""


@contextmanager
def _server_lock(backend: "RDBStorage", name: str) -> Iterator[Callable[[], None]]:
    """Hold a lock of the server, and do all of the block over the one connection that holds it.

    So nothing is done without the lock: if the connection breaks, so does whatever is being done.
    """
    from sqlalchemy import text

    take, give = (text(statement) for statement in LOCKS[backend.engine.dialect.name])

    def taken() -> "Connection":
        connection = backend.engine.connect()
        try:
            connection.execute(take, {"name": name})
            connection.commit()
        except BaseException:
            _forget(connection)
            raise
        return connection

    connection = persistent(taken, without_passwords(backend.url))
    try:
        backend.scoped_session.remove()
        backend.scoped_session(bind=connection)
        with losing_turns():
            yield _is_held
        connection.execute(give, {"name": name})
        connection.commit()
    except BaseException:
        _forget(connection)  # the server gives the lock back with it
        raise
    finally:
        backend.scoped_session.remove()
        connection.close()


def _forget(connection: "Connection") -> None:
    connection.invalidate()
    connection.close()


def _is_held() -> None:
    """Say nothing: what is done over the connection of a turn fails where the turn is lost."""


# By a study of which a database lets there be only one, in databases without such locks

STALE_SECONDS = 35.0
"""How long the holder of a study may say nothing before it counts as dead."""
HOLD_SECONDS = 10.0
"""How often it says that it holds it."""
HELD = "held"


@contextmanager
def lock_study(storage: "BaseStorage", name: str, stale: float | None = None) -> Iterator[Callable[[], None]]:
    """Hold a study of this name; it is removed at the end.

    Args:
        storage: The database.
        name: The name.
        stale: How many seconds the holder may be silent before it counts as dead.
    """
    from optuna.exceptions import DuplicatedStudyError
    from optuna.study import StudyDirection

    held, last, since = None, None, time.monotonic()
    while held is None:
        try:
            held = storage.create_new_study([StudyDirection.MINIMIZE], name)
        except DuplicatedStudyError:
            now = _holder(storage, name)
            if now != last:
                last, since = now, time.monotonic()
            elif now is not None and time.monotonic() - since > (STALE_SECONDS if stale is None else stale):
                _remove(storage, now[0])
            time.sleep(0.02)
    done = threading.Event()
    saying = threading.Thread(target=_say_held, args=(storage, held, done), name="treadle-search-turn", daemon=True)
    saying.start()
    try:
        yield lambda: _require_held(storage, name, held)
    finally:
        done.set()
        saying.join()
        _remove(storage, held)


def _say_held(storage: "BaseStorage", held: int, done: threading.Event) -> None:
    while not done.wait(HOLD_SECONDS):
        with suppress(Exception), impatient():  # whoever cannot say it now says it the next time
            storage.set_study_user_attr(held, HELD, time.time())


def _holder(storage: "BaseStorage", name: str) -> tuple[int, Any] | None:
    with suppress(KeyError):
        number = storage.get_study_id_from_name(name)
        return number, storage.get_study_user_attrs(number).get(HELD)
    return None


def _require_held(storage: "BaseStorage", name: str, held: int) -> None:
    holder = _holder(storage, name)
    if holder is None or holder[0] != held:
        raise TurnLostError


def _remove(storage: "BaseStorage", held: int) -> None:
    # Whoever was taken for dead finds that it is gone.
    with suppress(KeyError):
        storage.delete_study(held)
