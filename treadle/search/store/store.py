"""Where trials are kept: a journal in a file, or any database that Optuna can use."""

import hashlib
import json
import logging
import os
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from treadle.errors import ConfigError, importing
from treadle.files.atomic_io import replace_text
from treadle.files.bounded_io import without_passwords
from treadle.search.errors import SearchError
from treadle.search.store.database import NOTE_BYTES, DatabaseGoneError, TurnLostError, impatient, open_database
from treadle.search.store.heartbeat import Heartbeat, OwnerWatch
from treadle.search.store.history import BIRTH, FINAL, GOAL, OWNER
from treadle.search.store.turns import take_turn

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

Result = TypeVar("Result")

ABOUT = "treadle"
"""The name under which a study says what it searches."""
MEMORY = "memory"
FIXED = {"space": "space", "objectives": "list of objectives", "seed": "seed", "promotion": "promotion"}
"""What must stay as it is for a search to go on, and what messages call it."""


class Store:
    """The trials of one search.

    Args:
        place: The path of a journal, the URL of a database, `"memory"`, or a storage of Optuna's.
        name: The name of the search in it.
        directions: For each objective "minimize" or "maximize".
        about: What is searched, as plain data.
        unstored: The folder for final results while the store does not answer; None keeps them nowhere else.

    Raises:
        SearchError: It holds a search of something else under this name.
    """

    def __init__(
        self,
        place: "str | os.PathLike[str] | BaseStorage",
        name: str,
        directions: Sequence[str],
        about: dict[str, Any],
        *,
        unstored: Path | None = None,
    ) -> None:
        self.name = name
        self._unstored = unstored
        self._birth: str | None = None
        self._known: list[FrozenTrial] = []
        self._open: list[int] = []
        opened = open_storage(place)
        self.shown = "memory" if place == MEMORY else without_passwords(str(place))
        with quiet_optuna():
            self.study: Study = optuna().create_study(
                study_name=name, storage=opened, directions=list(directions), load_if_exists=True
            )
        self.storage: BaseStorage = self.study._storage  # a database has a cache in front
        self._study_id = self.study._study_id
        self._backend: Any = getattr(self.storage, "_backend", None)
        self._require_same(_fitting(about))
        self._is_private = place == MEMORY
        self._is_remote = not self._is_private and not hasattr(self._backend, "exclusive")
        self.presence = Heartbeat(None if place == MEMORY else self._say)
        self.watch = OwnerWatch(lambda: self.storage.get_study_user_attrs(self._study_id))

    def _say(self, name: str, value: float) -> None:
        with impatient():
            self.storage.set_study_user_attr(self._study_id, name, value)

    def _require_same(self, about: dict[str, Any]) -> None:
        """Note what is searched, or refuse to go on with something else."""
        known = self.storage.get_study_user_attrs(self._study_id).get(ABOUT)
        if known is None and self.trials():
            raise SearchError(f"{self.shown} holds a study {self.name!r} that no search of Treadle made; name another")
        for key, word in FIXED.items():
            if known is not None and known.get(key) != about.get(key):
                difference = _difference(known.get(key), about.get(key))
                raise SearchError(
                    f"{self.shown} holds a search {self.name!r} with another {word}{difference}; use the same, "
                    "or give another store or name"
                )
        if known != about:
            self.storage.set_study_user_attr(self._study_id, ABOUT, about)

    # Trials -----------------------------------------------------------------------------------------------

    def trials(self) -> "list[FrozenTrial]":
        """Return all trials, in the order of their numbers; not to be changed."""
        if not hasattr(self._backend, "exclusive"):
            return self.storage.get_all_trials(self._study_id, deepcopy=False)
        # Optuna lists every trial of a journal anew each time; those that have ended do not change.
        for number in self._open:
            self._known[number] = self.storage.get_trial(self._known[number]._trial_id)
        with suppress(KeyError):
            while True:
                new = self.storage.get_trial_id_from_study_id_trial_number(self._study_id, len(self._known))
                self._open.append(len(self._known))
                self._known.append(self.storage.get_trial(new))
        self._open = [number for number in self._open if not self._known[number].state.is_finished()]
        return self._known

    def create(
        self,
        parameters: Mapping[str, Any],
        distributions: "Mapping[str, BaseDistribution]",
        notes: Mapping[str, Any],
        *,
        system: Mapping[str, Any] | None = None,
        values: Sequence[float] | None = None,
        goal: int = 0,
        curve: Mapping[int, float] | None = None,
    ) -> "FrozenTrial":
        """Store a new trial, all at once: a running one of this search, or with `values` one that is complete.

        Args:
            parameters: Its values, as Optuna holds them.
            distributions: What they are from.
            notes: Facts about it.
            system: What Optuna's sampler wants to be kept.
            values: Its results.
            goal: The rung that it trains for, where trials are promoted.
            curve: Intermediate results that it begins with.
        """
        trial = optuna().trial
        template = trial.create_trial(
            state=trial.TrialState.RUNNING if values is None else trial.TrialState.COMPLETE,
            values=None if values is None else list(values),
            params=dict(parameters),
            distributions=dict(distributions),
            user_attrs={**notes, OWNER: self._own(goal)} if values is None else dict(notes),
            system_attrs=dict(system or {}),
            intermediate_values=dict(curve or {}),
        )
        if self._is_remote:
            # Whether a connection broke before or after a trial was stored is found out by this name.
            self._birth = template.user_attrs[BIRTH] = uuid.uuid4().hex
        created = self.storage.get_trial(self.storage.create_new_trial(self._study_id, template))
        self._birth = None
        return created

    def unsure(self) -> "FrozenTrial | None":
        """Return the trial that was stored when the connection broke, before the store could say so; mostly None."""
        if self._birth is None:
            return None
        born = [trial for trial in self.trials() if trial.user_attrs.get(BIRTH) == self._birth]
        self._birth = None
        return born[0] if born else None

    def note(self, trial: "FrozenTrial", name: str, value: Any) -> None:
        """Keep a fact about a running trial."""
        self.storage.set_trial_user_attr(trial._trial_id, name, value)

    def note_result(self, trial: "FrozenTrial", result: Mapping[str, Any], name: str = FINAL) -> None:
        """Keep the result of a trial, final or of a rung; on this disk too, while the store does not answer."""
        try:
            with impatient():
                self.note(trial, name, dict(result))
        except DatabaseGoneError:
            self._keep_unstored(trial, name, result)
            self.note(trial, name, dict(result))
            self._forget_unstored(trial.number)

    def _keep_unstored(self, trial: "FrozenTrial", name: str, result: Mapping[str, Any]) -> None:
        if self._unstored is not None:
            self._unstored.mkdir(parents=True, exist_ok=True)
            kept = {"search": self.name, "owner": self.presence.identity, name: dict(result)}
            replace_text(self._unstored / f"{trial.number}.json", json.dumps(kept))

    def _forget_unstored(self, number: int) -> None:
        if self._unstored is not None:
            (self._unstored / f"{number}.json").unlink(missing_ok=True)
            with suppress(OSError):
                self._unstored.rmdir()

    def _unstored_result(self, trial: "FrozenTrial") -> tuple[str, dict[str, Any]] | None:
        """Return the result that this trial's search kept on this disk and could not store, by name; mostly None."""
        path = None if self._unstored is None else self._unstored / f"{trial.number}.json"
        if path is None or not path.is_file():
            return None
        kept = json.loads(path.read_text())
        search, owner = kept.pop("search"), kept.pop("owner")
        is_this = search == self.name and owner == trial.user_attrs.get(OWNER, {}).get("id")
        return next(iter(kept.items())) if is_this else None

    def report(self, trial: "FrozenTrial", step: int, value: float) -> None:
        """Keep an intermediate result of a running trial."""
        self.storage.set_trial_intermediate_value(trial._trial_id, step, value)

    def finish(self, trial: "FrozenTrial", state: "TrialState", values: Sequence[float] | None = None) -> None:
        """End a trial; from now on nothing about it changes."""
        self.storage.set_trial_state_values(trial._trial_id, state, values)

    # Trials that are paused -------------------------------------------------------------------------------

    def pause(self, trial: "FrozenTrial") -> None:
        """Have a running trial wait until somebody lets it continue; nobody owns it meanwhile."""
        self.storage.set_trial_state_values(trial._trial_id, optuna().trial.TrialState.WAITING)

    def unpause(self, trial: "FrozenTrial", goal: int) -> "FrozenTrial":
        """Let a paused trial continue, as one of this search, and return it.

        Args:
            trial: The trial.
            goal: The rung that it trains for.
        """
        # In this order: one that is killed between the two leaves a trial that is paused still.
        self.note(trial, OWNER, self._own(goal))
        self.storage.set_trial_state_values(trial._trial_id, optuna().trial.TrialState.RUNNING)
        return self.storage.get_trial(trial._trial_id)

    def _own(self, goal: int) -> dict[str, Any]:
        return {**self.presence.owner(), **({GOAL: goal} if goal else {})}

    # Trials of others -------------------------------------------------------------------------------------

    def orphans(self) -> "tuple[list[FrozenTrial], bool]":
        """Take over the running trials of searches that have ended.

        Returns:
            The trials, which are this search's now, and whether there are others of which that is not known yet.
        """
        running = self.others()
        lives = {trial.number: self.watch.is_alive(self._owner(trial)) for trial in running}
        taken = [self._taken_over(trial) for trial in running if lives[trial.number] is False]
        return [trial for trial in taken if trial is not None], None in lives.values()

    def others(self) -> "list[FrozenTrial]":
        """Return the trials that other searches are running, or were when they ended."""
        return [trial for trial in self.trials() if trial.state.name == "RUNNING" and self._owner(trial)]

    def _taken_over(self, trial: "FrozenTrial") -> "FrozenTrial | None":
        """Make a trial one of this search's, unless another search was quicker."""

        def take() -> bool:
            now = self.storage.get_trial(trial._trial_id)
            if now.state.is_finished() or self._owner(now) != self._owner(trial):
                return False
            self.note(trial, OWNER, self._own(goal_of(trial)))
            return True

        if not self.in_turn(lambda require: take()):
            return None
        unstored = self._unstored_result(trial)
        if unstored is not None:
            self.note(trial, *unstored)
            self._forget_unstored(trial.number)
            return self.storage.get_trial(trial._trial_id)
        return trial

    def _owner(self, trial: "FrozenTrial") -> dict[str, Any]:
        owner = trial.user_attrs.get(OWNER, {})
        return {} if owner.get("id") == self.presence.identity else owner

    def in_turn(self, action: Callable[[Callable[[], None]], Result]) -> Result:
        """Return what an action returns, which no other search's action comes between; again if the turn was lost.

        Args:
            action: What is done. It is given what raises where it is not this search's turn any more.
        """
        while True:
            try:
                with self._turn() as require:
                    return action(require)
            except TurnLostError:
                logger.warning("the connection to the store broke in the middle of a turn, which is taken again")

    @contextmanager
    def _turn(self) -> Iterator[Callable[[], None]]:
        if hasattr(self._backend, "exclusive"):
            with self._backend.exclusive():
                yield _is_held
        elif self._is_private:
            yield _is_held
        else:
            with quiet_optuna(), take_turn(self.storage, f"{self.name}.next") as require:
                yield require

    def asked(self, name: str) -> Any:
        """Return what somebody has asked of the search, from wherever; None if nobody has."""
        return self.storage.get_study_user_attrs(self._study_id).get(name)

    def sync(self) -> None:
        """Wait until everything is on the disk."""
        if hasattr(self._backend, "sync"):
            self._backend.sync()

    def release(self) -> None:
        """Close connections to a database; they are made again when they are needed."""
        engine = getattr(self._backend, "engine", None)
        if engine is not None and engine.dialect.name != "sqlite":
            engine.dispose()

    def close(self) -> None:
        """Close what this search has opened."""
        self.release()
        if hasattr(self._backend, "close"):
            self._backend.close()


def goal_of(trial: "FrozenTrial") -> int:
    """Return the rung that a trial trains for, or trained for last; 0 where trials are not promoted."""
    return int(trial.user_attrs.get(OWNER, {}).get(GOAL, 0))


def _is_held() -> None:
    """Say nothing: a turn in a file or in memory is not lost."""


def _fitting(about: dict[str, Any]) -> dict[str, Any]:
    """Return a description that every store can hold: of what is too long for some, a digest."""

    def fitting(value: Any) -> Any:
        text = json.dumps(value, sort_keys=True)
        return value if len(text) <= NOTE_BYTES // 2 else f"sha256 {hashlib.sha256(text.encode()).hexdigest()}"

    return {key: fitting(value) for key, value in about.items()}


def open_storage(place: Any) -> Any:
    """Return the storage of Optuna's at a place: a journal, a database, or memory."""
    library = optuna()
    if place == MEMORY:
        return library.storages.InMemoryStorage()
    if isinstance(place, library.storages.BaseStorage):
        return place
    if isinstance(place, str) and "://" in place:
        return open_database(place)
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
