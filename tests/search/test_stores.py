"""Stores of other kinds, and several searches that share one."""

import os
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import optuna
import pytest

from tests.search.support import Killed, letters, noisy, numbers, search_in, without_clocks
from treadle import nas
from treadle.search.store import heartbeat as presence
from treadle.search.store import store as stores_module
from treadle.search.store.heartbeat import Heartbeat, OwnerWatch, machine, process_start
from treadle.search.store.history import OWNER
from treadle.search.store.store import Store, lock_study


def database(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'trials.db'}"


@pytest.mark.slow
def test_a_database_gives_the_same_search_as_a_journal(tmp_path: Path) -> None:
    options: dict[str, Any] = {"trials": 6, "strategy": nas.Evolution(3, 2), "name": "search"}
    journal = search_in(tmp_path / "a", **options).run()
    stored = search_in(tmp_path / "b", store=database(tmp_path), **options).run()
    assert without_clocks(stored) == without_clocks(journal)


@pytest.mark.slow
def test_a_search_in_a_database_goes_on_after_a_kill(tmp_path: Path) -> None:
    options: dict[str, Any] = {"trials": 5, "name": "search", "store": database(tmp_path)}
    ran: list[int] = []

    def dying(taken: Any) -> float:
        ran.append(1)
        if len(ran) == 3:
            raise Killed
        return noisy(taken)

    with pytest.raises(Killed):
        search_in(tmp_path, trainer=dying, **options).run()
    results = search_in(tmp_path, trainer=dying, **options).run()
    assert (numbers(results), len(ran)) == ([0, 1, 2, 3, 4], 6)


def test_two_searches_in_one_store_keep_apart_by_name(tmp_path: Path) -> None:
    journal = tmp_path / "both.journal"
    one = search_in(tmp_path / "one", store=journal, trials=2).run()
    two = search_in(tmp_path / "two", store=journal, trials=3, seed=1).run()
    assert (len(one["trials"]), len(two["trials"])) == (2, 3)


def test_a_search_in_memory_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    nas.Search(letters(), noisy, trials=2, store="memory").run()
    assert list(tmp_path.iterdir()) == []


def test_a_database_that_is_not_there_is_told_in_words(tmp_path: Path) -> None:
    with pytest.raises(nas.SearchError, match=r"^the store 'sqlite:////no/such/place/x.db' cannot be opened: "):
        search_in(tmp_path, store="sqlite:////no/such/place/x.db").run()


def test_a_journal_that_cannot_be_made_is_told_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(nas.SearchError, match=r"^the store .*file/search.journal cannot be opened: "):
        search_in(tmp_path / "file").run()


def store_in(folder: Path) -> Store:
    about = {"space": {}, "objectives": [], "seed": 0, "strategy": "random"}
    return Store(folder / "x.journal", "x", ["maximize"], about)


def test_a_trial_of_a_living_search_is_left_to_it(tmp_path: Path) -> None:
    one, two = store_in(tmp_path), store_in(tmp_path)
    with one.presence, two.presence:
        trial = one.create({}, {}, {})
        assert two.orphans() == ([], False)
    # The search is over, and its trial is not.
    with two.presence:
        taken, unknown = two.orphans()
        assert ([found.number for found in taken], unknown) == ([trial.number], False)
        assert two.orphans() == ([], False)  # it is one's own now


def test_only_one_of_two_searches_takes_a_trial_over(tmp_path: Path) -> None:
    dead = store_in(tmp_path)
    with dead.presence:
        for _ in range(5):
            dead.create({}, {}, {})
    stores = [store_in(tmp_path) for _ in range(3)]
    found: list[list[int]] = [[], [], []]
    ready = threading.Barrier(3)

    def take(place: int) -> None:
        ready.wait()
        found[place] = [trial.number for trial in stores[place].orphans()[0]]

    for store in stores:
        store.presence.__enter__()
    threads = [threading.Thread(target=take, args=(place,)) for place in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for store in stores:
        store.presence.__exit__()
    assert sorted(number for numbers in found for number in numbers) == [0, 1, 2, 3, 4]


def owner_elsewhere(name: str = "other") -> dict[str, Any]:
    return {"id": name, "machine": "elsewhere", "pid": 1, "started": "1"}


def test_a_search_on_another_machine_is_dead_once_it_has_been_silent_for_long_enough() -> None:
    clock, beats = [0.0], {"alive:other": 1.0}
    watch = OwnerWatch(lambda: beats, clock=lambda: clock[0])
    assert watch.is_alive(owner_elsewhere()) is None
    clock[0] = presence.GRACE_SECONDS - 1
    assert watch.is_alive(owner_elsewhere()) is None
    clock[0] = presence.GRACE_SECONDS
    assert watch.is_alive(owner_elsewhere()) is False


def test_a_search_on_another_machine_is_alive_while_it_says_so() -> None:
    clock, beats = [0.0], {"alive:other": 1.0}
    watch = OwnerWatch(lambda: beats, clock=lambda: clock[0])
    watch.is_alive(owner_elsewhere())
    clock[0], beats["alive:other"] = 10.0, 2.0
    assert watch.is_alive(owner_elsewhere()) is True
    clock[0] = 20.0
    assert watch.is_alive(owner_elsewhere()) is True
    clock[0] = 10.0 + presence.GRACE_SECONDS
    assert watch.is_alive(owner_elsewhere()) is False


def test_a_search_says_that_it_is_alive_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "BEAT_SECONDS", 0.01)
    said: list[str] = []
    with Heartbeat(lambda name, value: said.append(name)) as present:
        while len(said) < 3:
            time.sleep(0.005)
    count = len(said)
    assert set(said) == {f"alive:{present.identity}"}
    time.sleep(0.05)
    assert len(said) == count


def test_a_process_is_known_by_its_number_and_its_beginning() -> None:
    watch = OwnerWatch(dict)
    own = {"id": "x", "machine": machine(), "pid": os.getpid(), "started": process_start(os.getpid())}
    assert watch.is_alive(own) is False  # this process, but no search of it
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    theirs = {"id": "y", "machine": machine(), "pid": child.pid, "started": process_start(child.pid)}
    assert watch.is_alive(theirs) is True
    assert watch.is_alive({**theirs, "started": "another time"}) is False
    child.kill()
    child.wait()
    assert watch.is_alive(theirs) is False


def test_trials_of_another_machine_are_taken_over_after_the_grace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from treadle.search import run as running

    search = search_in(tmp_path / "search", trials=2)
    store = search._opened()
    with store.presence:
        distributions = {label: one.distribution() for label, one in search.searched.dimensions.items()}
        trial = store.create(search.searched.stored(dict.fromkeys(distributions, "a")), distributions, {})
        store.note(trial, OWNER, owner_elsewhere())
    monkeypatch.setattr(presence, "GRACE_SECONDS", 0.05)
    monkeypatch.setattr(running, "TICK", 0.01)
    with caplog.at_level("INFO"):
        results = search_in(tmp_path / "search", trials=2).run()
    assert numbers(results) == [0, 1]
    assert "waiting to see whether a search on another machine is still running" in caplog.messages


@pytest.mark.slow
def test_one_holds_the_mutex_of_a_database_at_a_time(tmp_path: Path) -> None:
    import optuna

    storage = optuna.storages.RDBStorage(database(tmp_path))
    inside, most = [0], [0]

    def enter() -> None:
        for _ in range(5):
            with lock_study(storage, "x"):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                time.sleep(0.002)
                inside[0] -= 1

    threads = [threading.Thread(target=enter) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]
    assert storage.get_all_studies() == []


@pytest.mark.slow
def test_a_mutex_whose_holder_died_is_taken_after_a_while(tmp_path: Path) -> None:
    import optuna
    from optuna.study import StudyDirection

    storage = optuna.storages.RDBStorage(database(tmp_path))
    storage.create_new_study([StudyDirection.MINIMIZE], "x")
    with lock_study(storage, "x", stale=0.1):
        assert len(storage.get_all_studies()) == 1
    assert storage.get_all_studies() == []


def test_optunas_own_logs_are_quiet_and_its_level_is_put_back(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.INFO)
    try:
        search_in(tmp_path, trials=2).run()
        assert optuna.logging.get_verbosity() == optuna.logging.INFO
    finally:
        optuna.logging.set_verbosity(before)
    assert "A new study" not in capfd.readouterr().err


def test_the_password_of_a_store_is_never_shown() -> None:
    url = "nosuchdialect://user:secretpw@db.example/trials"
    with pytest.raises(
        nas.SearchError, match=r"nosuchdialect://user:\*\*\*@db.example/trials' cannot be open"
    ) as caught:
        Store(url, "search", ["maximize"], {"space": {}, "objectives": [], "seed": 0})
    assert "secretpw" not in "".join(traceback.format_exception(caught.value))


def test_the_password_of_a_store_with_another_search_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: Any = optuna.storages.InMemoryStorage()
    monkeypatch.setattr(stores_module, "_opened", lambda place: kept)
    url = "mysql+pymysql://user:secretpw@db.example/trials"
    Store(url, "search", ["maximize"], {"space": {}, "objectives": [], "seed": 0})
    with pytest.raises(
        nas.SearchError, match=r"mysql\+pymysql://user:\*\*\*@db.example/trials holds a search 'search' wi"
    ):
        Store(url, "search", ["maximize"], {"space": {}, "objectives": [], "seed": 1})
