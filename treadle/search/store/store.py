"""Where trials are kept: a journal in a file, or any database that Optuna can use."""

import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.errors import ConfigError, importing
from treadle.files.bounded_io import without_passwords
from treadle.search.errors import SearchError
from treadle.search.store.heartbeat import Heartbeat, OwnerWatch
from treadle.search.store.history import OWNER

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial, TrialState

# Optuna, which the search over trials stands on: loaded when a search begins, and missed in plain words


def optuna() -> Any:
    """Return the module `optuna`.

    Raises:
        MissingDependencyError: It is not installed.
    """
    with importing("optuna", extra="search", user="a search over trials"):
        import optuna
        import optuna.pruners
        import optuna.samplers
        import optuna.storages.journal
        import optuna.trial
    return optuna


@contextmanager
def quiet_optuna() -> Iterator[None]:
    """Keep Optuna from telling on the console what the search tells itself."""
    own = logging.getLogger("optuna")
    before = own.level
    own.setLevel(logging.WARNING)
    try:
        yield
    finally:
        own.setLevel(before)


logger = logging.getLogger(__name__)

ABOUT = "treadle"
"""The name under which a study says what it searches."""
MEMORY = "memory"
FIXED = {"space": "space", "objectives": "list of objectives", "seed": "seed"}
"""What must stay as it is for a search to go on, and what messages call it."""


class Store:
    """The trials of one search.

    Args:
        place: The path of a journal, the URL of a database, `"memory"`, or a storage of Optuna's.
        name: The name of the search in it.
        directions: For each objective "minimize" or "maximize".
        about: What is searched, as plain data.

    Raises:
        SearchError: It holds a search of something else under this name.
    """

    def __init__(
        self, place: "str | os.PathLike[str] | BaseStorage", name: str, directions: Sequence[str], about: dict[str, Any]
    ) -> None:
        self.name = name
        opened = _opened(place)
        self.shown = "memory" if place == MEMORY else without_passwords(str(place))
        with quiet_optuna():
            self.study: Study = optuna().create_study(
                study_name=name, storage=opened, directions=list(directions), load_if_exists=True
            )
        self.storage: BaseStorage = self.study._storage  # a database has a cache in front
        self._study_id = self.study._study_id
        self._backend: Any = getattr(self.storage, "_backend", None)
        self._require_same(about)
        self._is_private = place == MEMORY
        self.presence = Heartbeat(None if place == MEMORY else self._say)
        self.watch = OwnerWatch(lambda: self.storage.get_study_user_attrs(self._study_id))

    def _say(self, name: str, value: float) -> None:
        self.storage.set_study_user_attr(self._study_id, name, value)

    def _require_same(self, about: dict[str, Any]) -> None:
        """Note what is searched, or refuse to go on with something else."""
        known = self.storage.get_study_user_attrs(self._study_id).get(ABOUT)
        if known is None and self.trials():
            raise SearchError(f"{self.shown} holds a study {self.name!r} that no search of Treadle made; name another")
        for key, word in FIXED.items():
            if known is not None and known.get(key) != about[key]:
                difference = _difference(known.get(key), about[key])
                raise SearchError(
                    f"{self.shown} holds a search {self.name!r} with another {word}{difference}; go on with the same, "
                    "or give another store or name"
                )
        if known != about:
            self.storage.set_study_user_attr(self._study_id, ABOUT, about)

    # Trials -----------------------------------------------------------------------------------------------

    def trials(self) -> "list[FrozenTrial]":
        """Return all trials, in the order of their numbers; not to be changed."""
        return self.storage.get_all_trials(self._study_id, deepcopy=False)

    def create(
        self,
        parameters: Mapping[str, Any],
        distributions: "Mapping[str, BaseDistribution]",
        notes: Mapping[str, Any],
        *,
        system: Mapping[str, Any] | None = None,
        values: Sequence[float] | None = None,
    ) -> "FrozenTrial":
        """Store a new trial, all at once: a running one of this search, or with `values` one that is complete."""
        trial = optuna().trial
        template = trial.create_trial(
            state=trial.TrialState.RUNNING if values is None else trial.TrialState.COMPLETE,
            values=None if values is None else list(values),
            params=dict(parameters),
            distributions=dict(distributions),
            user_attrs={**notes, OWNER: self.presence.owner()} if values is None else dict(notes),
            system_attrs=dict(system or {}),
        )
        return self.storage.get_trial(self.storage.create_new_trial(self._study_id, template))

    def note(self, trial: "FrozenTrial", name: str, value: Any) -> None:
        """Keep a fact about a running trial."""
        self.storage.set_trial_user_attr(trial._trial_id, name, value)

    def report(self, trial: "FrozenTrial", step: int, value: float) -> None:
        """Keep an intermediate result of a running trial."""
        self.storage.set_trial_intermediate_value(trial._trial_id, step, value)

    def finish(self, trial: "FrozenTrial", state: "TrialState", values: Sequence[float] | None = None) -> None:
        """End a trial; from now on nothing about it changes."""
        self.storage.set_trial_state_values(trial._trial_id, state, values)

    def orphans(self) -> "tuple[list[FrozenTrial], bool]":
        """Take over the running trials of searches that have ended.

        Returns:
            The trials, which are this search's now, and whether there are others of which that is not known yet.
        """
        running = [trial for trial in self.trials() if trial.state.name == "RUNNING" and self._owner(trial)]
        lives = {trial.number: self.watch.is_alive(self._owner(trial)) for trial in running}
        mine = [trial for trial in running if lives[trial.number] is False and self._take_over(trial)]
        return mine, None in lives.values()

    def _take_over(self, trial: "FrozenTrial") -> bool:
        """Make a trial one of this search's, unless another search was quicker."""
        with self.exclusive():
            now = self.storage.get_trial(trial._trial_id)
            if now.state.is_finished() or self._owner(now) != self._owner(trial):
                return False
            self.note(trial, OWNER, self.presence.owner())
        return True

    def _owner(self, trial: "FrozenTrial") -> dict[str, Any]:
        owner = trial.user_attrs.get(OWNER, {})
        return {} if owner.get("id") == self.presence.identity else owner

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep other searches from choosing trials, or taking them over, meanwhile."""
        if hasattr(self._backend, "exclusive"):
            with self._backend.exclusive():
                yield
        elif self._is_private:
            yield
        else:
            with lock_study(self.storage, f"{self.name}.next"):
                yield

    def sync(self) -> None:
        """Wait until everything is on the disk."""
        if hasattr(self._backend, "sync"):
            self._backend.sync()

    def close(self) -> None:
        """Close what this search has opened."""
        if hasattr(self._backend, "close"):
            self._backend.close()


def _opened(place: Any) -> Any:
    library = optuna()
    if place == MEMORY:
        return library.storages.InMemoryStorage()
    if isinstance(place, library.storages.BaseStorage):
        return place
    if isinstance(place, str) and "://" in place:
        try:
            return library.storages.RDBStorage(place)
        except Exception as error:
            # Without its cause: a traceback would print what the library quotes.
            raise SearchError(without_passwords(f"the store {place!r} cannot be opened: {error}")) from None
    if not isinstance(place, (str, os.PathLike)):
        raise ConfigError(f"store={place!r} must be the path of a journal, the URL of a database, or {MEMORY!r}")
    return library.storages.JournalStorage(_journal(Path(place)))


def _journal(path: Path) -> Any:
    try:
        if sys.platform == "win32":
            journal = optuna().storages.journal
            path.parent.mkdir(parents=True, exist_ok=True)
            return journal.JournalFileBackend(str(path), journal.JournalFileOpenLock(str(path)))
        from treadle.search.store.journal import Journal

        return Journal(path)
    except OSError as error:
        raise SearchError(f"the store {path} cannot be opened: {error}") from error


def _difference(before: Any, now: Any) -> str:
    """Return, in words, in what two descriptions differ."""
    if not (isinstance(before, dict) and isinstance(now, dict)):
        return f" ({before!r}, now {now!r})"
    for label in [*before, *(label for label in now if label not in before)]:
        if before.get(label) != now.get(label):
            return f" ({label!r} was {_words(before, label)}, and is {_words(now, label)})"
    return ""


def _words(described: Mapping[str, Any], label: str) -> str:
    return str(described[label]) if label in described else "not there"


# Mutual exclusion between searches that share nothing but a database


STALE_SECONDS = 30.0
"""How long it may be held before the holder counts as dead; it takes milliseconds."""


@contextmanager
def lock_study(storage: "BaseStorage", name: str, stale: float = STALE_SECONDS) -> Iterator[None]:
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
