"""Stores of other kinds, and several searches that share one."""

import json
import os
import re
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
from treadle.errors import MissingDependencyError
from treadle.search.store import heartbeat as presence
from treadle.search.store import store as stores_module
from treadle.search.store.database import TurnLostError, bounded_text
from treadle.search.store.heartbeat import Heartbeat, OwnerWatch
from treadle.search.store.history import OWNER
from treadle.search.store.store import Store
from treadle.search.store.turns import lock_study


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


@pytest.mark.slow
def test_a_search_in_a_database_draws_into_a_new_folder_that_was_asked_for(tmp_path: Path) -> None:
    search_in(tmp_path / "new" / "search", store=database(tmp_path), trials=2).run()
    assert (tmp_path / "new" / "search" / "panels" / "trials.svg").is_file()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql://u@h/db", "a search in postgresql needs psycopg; pip install 'treadle[search,postgresql]'"),
        ("postgres://u@h/db", "a search in postgresql needs psycopg; pip install 'treadle[search,postgresql]'"),
        ("mysql://u@h/db", "a search in mysql needs pymysql; pip install 'treadle[search,mysql]'"),
        ("mariadb://u@h/db", "a search in mysql needs pymysql; pip install 'treadle[search,mysql]'"),
    ],
)
def test_a_database_without_its_driver_says_which_extra_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, message: str
) -> None:
    monkeypatch.setattr("treadle.search.store.database.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=f"^{re.escape(message)}$"):
        search_in(tmp_path, store=url).run()


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


HOLDER = """
import sys, time
from treadle.search.store.heartbeat import Heartbeat
with Heartbeat(lambda name, value: None) as present:
    print(present.identity, flush=True)
    time.sleep(60)
"""


def test_a_search_of_the_same_machine_is_dead_as_soon_as_its_process_is() -> None:
    watch = OwnerWatch(dict)
    child = subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    owner = {"id": child.stdout.readline().strip(), "pid": child.pid}
    assert watch.is_alive(owner) is True
    child.kill()
    child.wait()
    child.stdout.close()
    assert watch.is_alive(owner) is False


def test_a_search_of_this_process_is_dead_once_it_has_ended() -> None:
    with Heartbeat(lambda name, value: None) as present:
        assert OwnerWatch(dict).is_alive(present.owner()) is True
    assert OwnerWatch(dict).is_alive(present.owner()) is False


def test_neither_the_name_of_a_machine_nor_the_number_of_a_process_tells_a_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A container with the same host name and the same process numbers has folders of its own.
    with Heartbeat(lambda name, value: None) as present:
        monkeypatch.setattr(presence, "lease_folder", lambda: tmp_path)
        monkeypatch.setattr(presence, "_here", set())
        clock, beats = [0.0], {f"alive:{present.identity}": 1.0}
        watch = OwnerWatch(lambda: beats, clock=lambda: clock[0])
        assert watch.is_alive(present.owner()) is None
        clock[0], beats[f"alive:{present.identity}"] = 10.0, 2.0
        assert watch.is_alive(present.owner()) is True


def test_the_file_of_a_search_that_was_killed_is_removed_after_a_week(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "lease_folder", lambda: tmp_path)
    old, recent = tmp_path / ("a" * 32), tmp_path / ("b" * 32)
    for path in (old, recent):
        path.touch()
    os.utime(old, (1.0, 1.0))
    with Heartbeat(lambda name, value: None) as present:
        os.utime(tmp_path / present.identity, (1.0, 1.0))
        with Heartbeat(lambda name, value: None) as second:
            assert sorted(tmp_path.iterdir()) == sorted(
                [recent, tmp_path / present.identity, tmp_path / second.identity]
            )


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


@pytest.mark.slow
def test_a_mutex_is_not_taken_from_a_holder_that_is_slow_but_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treadle.search.store.turns.HOLD_SECONDS", 0.05)
    url, events = database(tmp_path), []
    slow, other = optuna.storages.RDBStorage(url), optuna.storages.RDBStorage(url)
    inside = threading.Event()

    def wait() -> None:
        inside.wait()
        with lock_study(other, "x", stale=0.5):
            events.append("other")

    waiting = threading.Thread(target=wait)
    waiting.start()
    with lock_study(slow, "x", stale=0.5) as require:
        inside.set()
        time.sleep(1.5)
        require()
        events.append("slow")
    waiting.join()
    assert events == ["slow", "other"]


@pytest.mark.slow
def test_a_mutex_that_was_taken_away_says_so(tmp_path: Path) -> None:
    storage = optuna.storages.RDBStorage(database(tmp_path))
    with lock_study(storage, "x") as require:
        require()
        storage.delete_study(storage.get_study_id_from_name("x"))
        with pytest.raises(TurnLostError):
            require()


def test_a_long_text_is_shortened_in_its_middle_to_what_every_database_holds() -> None:
    short = bounded_text("begin " + "\u2028" * 100_000 + " end")
    assert short.startswith("begin ")
    assert short.endswith(" end")
    assert "characters left out" in short
    assert 5_000 < len(json.dumps(short)) <= 15_000


@pytest.mark.parametrize("place", ["memory", "journal"])
def test_the_text_of_an_error_is_kept_up_to_a_length(tmp_path: Path, place: str) -> None:
    def fail(taken: Any) -> float:
        raise ValueError("x" * 100_000)

    store = {} if place == "journal" else {"store": place}
    results = search_in(tmp_path, trainer=fail, trials=1, max_failures=None, **store).run()
    assert len(results["trials"][0]["error"]["message"]) < 16_000


def test_a_result_with_too_many_metrics_for_a_store_is_refused_by_its_size(tmp_path: Path) -> None:
    metrics = {"default": 1.0} | {f"layer_{number}": 0.5 for number in range(5_000)}
    results = search_in(tmp_path, trainer=lambda taken: metrics, trials=1, max_failures=None).run()
    size = len(json.dumps(metrics))
    assert results["trials"][0]["error"]["message"] == (
        f"the final result of trial 0 has 5001 metrics, {size} bytes; a search keeps 60000: report those that compare "
        "trials, and write the others to a file"
    )


def test_a_description_that_is_too_long_for_some_stores_is_told_apart_all_the_same(tmp_path: Path) -> None:
    def space(last: str) -> Any:
        return {f"key_{number}": nas.one_of("a" * 60, last) for number in range(1_000)}

    search_in(tmp_path, space("b"), lambda taken: 1.0, trials=1).run()
    assert len(search_in(tmp_path, space("b"), lambda taken: 1.0, trials=2).run()["trials"]) == 2
    with pytest.raises(nas.SearchError, match="with another space"):
        search_in(tmp_path, space("c"), lambda taken: 1.0, trials=2).run()


def test_a_search_waits_for_the_trials_of_another_one_and_takes_them_over_when_that_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from treadle.search import run as running

    monkeypatch.setattr(running, "TICK", 0.01)
    search = search_in(tmp_path / "search", trials=2)
    store = search._opened()
    alive = Heartbeat(lambda name, value: None)
    dimensions = search.searched.dimensions
    with alive:
        store.presence = alive
        taken = dict.fromkeys(dimensions, "a")
        distributions = {label: one.distribution() for label, one in dimensions.items()}
        store.create(search.searched.stored(taken), distributions, {})
        found: list[Any] = []
        other = threading.Thread(target=lambda: found.append(search_in(tmp_path / "search", trials=2).run()))
        with caplog.at_level("INFO"):
            other.start()
            while "waiting for 1 trials that other searches are running" not in caplog.messages:
                time.sleep(0.01)
        assert not found
    other.join()
    assert numbers(found[0]) == [0, 1]


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
    monkeypatch.setattr(stores_module, "open_storage", lambda place: kept)
    url = "mysql+pymysql://user:secretpw@db.example/trials"
    Store(url, "search", ["maximize"], {"space": {}, "objectives": [], "seed": 0})
    with pytest.raises(
        nas.SearchError, match=r"mysql\+pymysql://user:\*\*\*@db.example/trials holds a search 'search' wi"
    ):
        Store(url, "search", ["maximize"], {"space": {}, "objectives": [], "seed": 1})
