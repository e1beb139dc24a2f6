"""Databases that several machines share: how one is opened, and waited for while it does not answer."""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cache, wraps
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

from treadle.errors import MissingDependencyError
from treadle.files.bounded_io import without_passwords
from treadle.search.errors import SearchError, StopSearchError

if TYPE_CHECKING:
    from optuna.storages import BaseStorage, RDBStorage
    from sqlalchemy import Engine
    from sqlalchemy.engine import URL

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

OUTAGE_SECONDS = 600.0
"""How long a search waits for a database that does not answer before it gives up."""
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0
"""Seconds between two attempts to reach it: at first, and at most."""
OPENINGS = 5
"""How often tables are looked for again where another search is just making them."""
NOTE_BYTES = 60_000
"""How large a fact about a trial may be, as JSON: MySQL's columns for it hold 65,535."""

DRIVERS = {
    "postgresql": (("psycopg", "psycopg2"), "postgresql"),
    "mysql": (("pymysql", "MySQLdb"), "mysql"),
}
"""The packages that talk to a database, the first being the one of Treadle's extra, which is named behind."""
SAME = {"mariadb": "mysql", "postgres": "postgresql"}
"""Other names of them in URLs."""
DIALECTS = {"MySQLdb": "mysqldb"}
"""What SQLAlchemy calls a driver whose package has another name."""


class DatabaseGoneError(StopSearchError):
    """A database did not answer for so long that the search gave up; nothing that was stored is lost."""


class TurnLostError(Exception):
    """Not an error: the connection broke while it was this search's turn, which must be taken anew."""


# Waiting for a database that is restarted --------------------------------------------------------------------------


class Outage(threading.local):
    """How this thread meets a database that does not answer.

    Attributes:
        patience: How many seconds it waits.
        in_turn: Whether a turn is lost with the connection.
    """

    def __init__(self) -> None:
        self.patience: float | None = None
        self.in_turn = False


_outage = Outage()


@contextmanager
def losing_turns() -> Iterator[None]:
    """Do not wait for a database inside the block, and do not reach it anew: with the connection, a turn is lost."""
    before, _outage.in_turn = _outage.in_turn, True
    try:
        yield
    finally:
        _outage.in_turn = before


@contextmanager
def impatient() -> Iterator[None]:
    """Do not wait for a database inside the block: an error says that it does not answer."""
    before, _outage.patience = _outage.patience, 0.0
    try:
        yield
    finally:
        _outage.patience = before


def is_unreachable(error: BaseException | None) -> bool:
    """Whether an error says that the database does not answer, and not that it refuses what it was asked."""
    from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

    while error is not None:
        if type(getattr(error, "orig", None)).__module__ == "sqlite3":
            return "locked" in str(error)  # a file is there, or it is not
        if isinstance(error, (OperationalError, InterfaceError)):
            return True
        if isinstance(error, DBAPIError) and error.connection_invalidated:
            return True
        error = error.__cause__
    return False


def persistent(operation: Callable[[], Result], shown: str) -> Result:
    """Return what an operation returns, which is repeated while the database does not answer.

    Raises:
        TurnLostError: It did not answer within a turn.
        DatabaseGoneError: It did not answer for too long.
    """
    begin, pause = time.monotonic(), FIRST_PAUSE
    while True:
        try:
            found = operation()
        except Exception as error:
            if not is_unreachable(error):
                raise
            if _outage.in_turn:
                raise TurnLostError from error
            patience = OUTAGE_SECONDS if _outage.patience is None else _outage.patience
            if time.monotonic() - begin + pause > patience:
                raise DatabaseGoneError(
                    f"the store {shown} has not answered for {time.monotonic() - begin:.0f} s: {reason(error)}. "
                    "Start the search again when it does: finished trials are kept"
                ) from None
            if pause == FIRST_PAUSE:
                logger.warning(
                    "the store %s does not answer (%s); trying again for %.0f s", shown, reason(error), patience
                )
            time.sleep(pause)
            pause = min(LONGEST_PAUSE, 2 * pause)
        else:
            if pause > FIRST_PAUSE:
                logger.warning("the store %s answers again", shown)
            return found


def reason(error: BaseException) -> str:
    """Return in one line, without passwords, what a database or its driver said."""
    while error.__cause__ is not None:
        error = error.__cause__
    first, *_ = str(error).strip().splitlines() or [type(error).__name__]
    return without_passwords(first)


OPERATIONS = (
    *("create_new_study", "delete_study", "get_study_id_from_name", "get_study_name_from_id", "get_study_directions"),
    *("set_study_user_attr", "get_study_user_attrs", "set_study_system_attr", "get_study_system_attrs"),
    *("get_all_studies", "_create_new_trial", "_set_trial_param", "get_trial_id_from_study_id_trial_number"),
    *("set_trial_state_values", "set_trial_intermediate_value", "set_trial_user_attr", "set_trial_system_attr"),
    *("get_trial", "get_all_trials", "_get_trials", "_get_best_trial_id"),
)
"""What a storage of Optuna's does with its database."""


@cache
def _storage_class() -> "type[RDBStorage]":
    """Return Optuna's storage in a database, but one that waits for a database that does not answer."""
    from optuna.storages import RDBStorage

    class PersistentStorage(RDBStorage):
        """A storage whose operations are repeated while the database does not answer."""

    def repeated(name: str) -> Any:
        own = getattr(RDBStorage, name)

        @wraps(own)
        def operation(self: RDBStorage, *arguments: Any, **options: Any) -> Any:
            return persistent(lambda: own(self, *arguments, **options), without_passwords(self.url))

        return operation

    for name in OPERATIONS:
        setattr(PersistentStorage, name, repeated(name))
    return PersistentStorage


# Opening one -------------------------------------------------------------------------------------------------------


def open_database(place: str) -> "BaseStorage":
    """Return the storage behind a URL.

    Raises:
        SearchError: It cannot be opened.
        MissingDependencyError: No package is installed that talks to such a database.
    """
    from sqlalchemy.engine import make_url

    try:
        url = _with_driver(make_url(place))
        return _opened(url)
    except MissingDependencyError:
        raise
    except Exception as error:
        # Without its cause: a traceback would print what the library quotes.
        raise SearchError(without_passwords(f"the store {place!r} cannot be opened: {error}")) from None


def _opened(url: "URL") -> "BaseStorage":
    """Open a database; while several searches make its tables at once, all but one of them try again."""
    from sqlalchemy.exc import IntegrityError, InternalError, OperationalError, ProgrammingError

    options: dict[str, Any] = {"pool_pre_ping": True}
    if url.get_backend_name() == "sqlite":
        options = {"connect_args": {"timeout": 60}}
    for opening in range(OPENINGS):
        try:
            storage = _storage_class()(url.render_as_string(hide_password=False), engine_kwargs=options)
            break
        except (IntegrityError, InternalError, OperationalError, ProgrammingError) as error:
            if opening == OPENINGS - 1 or error.statement is None:  # without one, there is no connection
                raise
            time.sleep(0.2 * 2**opening)
    _listen(storage.engine)
    return storage


NOTICING = {
    "postgresql": ("SET tcp_keepalives_idle = 20", "SET tcp_keepalives_interval = 10", "SET tcp_keepalives_count = 4"),
    "mysql": ("SET SESSION wait_timeout = 600",),
}
"""What makes a server notice that the machine of a connection is gone, and give its locks back; else it takes hours."""


def _listen(engine: "Engine") -> None:
    """Have every connection of an engine notice the dead, and none be made anew in the middle of a turn."""
    from sqlalchemy import event

    def on_connect(connection: Any, record: Any) -> None:
        with closing(connection.cursor()) as cursor:
            for statement in NOTICING.get(engine.dialect.name, ()):
                cursor.execute(statement)
        connection.commit()

    def on_checkout(connection: Any, record: Any, proxy: Any) -> None:
        if _outage.in_turn:
            raise TurnLostError

    event.listen(engine, "connect", on_connect)
    event.listen(engine, "checkout", on_checkout)
    engine.dispose()  # the connection that made the tables


def _with_driver(url: "URL") -> "URL":
    """Return a URL that names the driver which is installed, where it names none.

    Raises:
        MissingDependencyError: None is.
    """
    name = SAME.get(url.drivername, url.drivername)
    if name not in DRIVERS:
        return url
    drivers, extra = DRIVERS[name]
    for driver in drivers:
        if find_spec(driver) is not None:
            return url.set(drivername=f"{name}+{DIALECTS.get(driver, driver)}")
    raise MissingDependencyError(f"a search in {name} needs {drivers[0]}; pip install 'treadle[search,{extra}]'")


# What fits into a database -----------------------------------------------------------------------------------------


def bounded_text(text: str, limit: int = NOTE_BYTES // 4) -> str:
    """Return a text that takes so many bytes as JSON at most: of a longer one, the beginning and the end.

    >>> bounded_text("short"), bounded_text("0123456789" * 10, limit=60)
    ('short', '012345678901\\n... 76 characters left out ...\\n890123456789')
    """
    if len(json.dumps(text)) <= limit:
        return text
    kept = len(text)
    while True:
        kept = kept * 3 // 4 if kept > 64 else kept - 1
        head, tail = text[: kept // 2], text[len(text) - (kept - kept // 2) :]
        short = f"{head}\n... {len(text) - kept} characters left out ...\n{tail}"
        if len(json.dumps(short)) <= limit or kept <= 1:
            return short
