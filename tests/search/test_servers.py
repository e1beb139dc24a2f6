"""Searches in databases of real servers: restarts, kills, and programs that start together."""

import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.forking.starting import run
from tests.search.server_program import STEPS, make, said
from tests.search.servers import MariaDb, PostgreSql, Server
from tests.search.support import letters, noisy, numbers, without_clocks
from treadle import nas
from treadle.search.store import database, turns
from treadle.search.store.database import DatabaseGoneError
from treadle.search.store.store import Store

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="the servers are those of Linux")]
ROOT = Path(__file__).parents[2]
LONG = pytest.mark.skipif("TREADLE_LONG" not in os.environ, reason="minutes of kills; `make long` runs it")


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    with PostgreSql.running() as server:
        yield server


@pytest.fixture(scope="session")
def mariadb() -> Iterator[Server]:
    with MariaDb.running() as server:
        yield server


@pytest.fixture(params=["postgresql", "mariadb"])
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(request.param)
    return found


def search_at(url: str, folder: Path, trainer: Any = noisy, **options: Any) -> nas.Search:
    return nas.Search(letters(), trainer, store=url, run_dir=folder, name="search", **{"trials": 6, **options})


def test_a_server_gives_the_same_search_as_a_journal(server: Server, tmp_path: Path) -> None:
    options: dict[str, Any] = {"trials": 12, "strategy": nas.Nsga2(4), "name": "search"}
    journal = nas.Search(letters(), noisy, run_dir=tmp_path / "a", **options).run()
    stored = nas.Search(letters(), noisy, run_dir=tmp_path / "b", store=server.new_database(), **options).run()
    assert without_clocks(stored) == without_clocks(journal)
    assert (tmp_path / "b" / "panels" / "trials.svg").is_file()


def test_a_server_that_restarts_during_a_trial_costs_nothing(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url, ran = server.new_database(), []

    def train(taken: Any) -> float:
        ran.append(nas.current_trial())
        for step in range(3):
            if (len(ran), step) == (2, 1):
                server.restart()
            nas.report_intermediate_result(float(step))
        if len(ran) == 3:
            server.stop()
            threading.Timer(0.5, server.start).start()
        return noisy(taken)

    results = search_at(url, tmp_path / "a", train).run()
    undisturbed = nas.Search(letters(), lambda taken: noisy(taken), run_dir=tmp_path / "b", trials=6).run()
    assert ran == [0, 1, 2, 3, 4, 5]
    assert [trial["values"] for trial in results["trials"]] == [trial["values"] for trial in undisturbed["trials"]]
    assert [trial["curve"] for trial in results["trials"]] == [[[0, 0.0], [1, 1.0], [2, 2.0]]] * 6
    assert [trial["state"] for trial in results["trials"]] == ["complete"] * 6
    assert not (tmp_path / "a" / "unstored").exists()
    assert any("does not answer" in message for message in caplog.messages)
    assert any("answers again" in message for message in caplog.messages)


def test_a_result_that_could_not_be_stored_is_kept_on_the_disk_and_stored_by_the_next_start(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, ran = server.new_database(), []
    monkeypatch.setattr(database, "OUTAGE_SECONDS", 0.3)

    def train(taken: Any) -> float:
        ran.append(nas.current_trial())
        if len(ran) == 2:
            server.stop()
        return 10.0 + len(ran)

    with pytest.raises(DatabaseGoneError) as caught:
        search_at(url, tmp_path, train, trials=3).run()
    shown = url.replace("mysql:", "mysql+pymysql:").replace("postgresql:", "postgresql+psycopg:")
    assert str(caught.value).startswith(f"the store {shown} has not answered for 0 s: ")
    assert str(caught.value).endswith("Start the search again when it does: finished trials are kept")
    kept = json.loads((tmp_path / "unstored" / "1.json").read_text())
    assert kept["final"] == {"default": 12.0}
    server.start()
    results = search_at(url, tmp_path, train, trials=3).run()
    assert ran == [0, 1, 2]
    assert [trial["values"]["default"] for trial in results["trials"]] == [11.0, 12.0, 13.0]
    assert not (tmp_path / "unstored").exists()


def test_programs_that_start_together_on_a_fresh_database_all_find_their_tables(server: Server, tmp_path: Path) -> None:
    assert len(worked_on(server.new_database(), tmp_path, trials=6, workers=3)) == 6


@contextmanager
def stores_of(url: str, count: int = 1) -> Iterator[list[Store]]:
    about = {"space": {}, "objectives": [], "seed": 0, "strategy": "random"}
    stores = [Store(url, "x", ["maximize"], about) for _ in range(count)]
    yield stores
    for store in stores:
        store.close()


def test_one_search_of_a_server_has_its_turn_at_a_time(server: Server) -> None:
    url = server.new_database()
    inside, most = [0], [0]

    def enter(require: Any) -> None:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.005)
        require()
        inside[0] -= 1

    def take_turns(store: Store) -> None:
        for _ in range(5):
            store.in_turn(enter)

    with stores_of(url, 3) as stores:
        threads = [threading.Thread(target=take_turns, args=(store,)) for store in stores]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert most == [1]


def test_a_turn_is_lost_with_the_connection_and_taken_again(server: Server) -> None:
    turns = []

    def once_interrupted(require: Any) -> int:
        turns.append(1)
        if len(turns) == 1:
            server.restart()
            store.create({}, {}, {})
        require()
        return len(turns)

    with stores_of(server.new_database()) as (store,), store.presence:
        assert store.in_turn(once_interrupted) == 2
        assert store.trials() == []


def test_a_turn_that_lasts_is_not_lost_to_others(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    # A slow link once made others think that the holder was dead.
    monkeypatch.setattr(turns, "STALE_SECONDS", 0.05)
    events, inside = [], threading.Event()

    def last(require: Any) -> None:
        inside.set()
        time.sleep(0.4)
        require()
        events.append("slow")

    with stores_of(server.new_database(), 2) as (slow, other):

        def wait() -> None:
            inside.wait()
            other.in_turn(lambda require: events.append("other"))

        waiting = threading.Thread(target=wait)
        waiting.start()
        slow.in_turn(last)
        waiting.join()
    assert events == ["slow", "other"]


def test_the_text_of_an_error_fits_into_every_database(server: Server, tmp_path: Path) -> None:
    def fail(taken: Any) -> float:
        raise ValueError("\u2028" * 70_000)

    results = search_at(server.new_database(), tmp_path, fail, trials=2, max_failures=None).run()
    assert numbers(results, "failed") == [0, 1]


# Many workers on one server, killed again and again ----------------------------------------------------------------


def worked_on(url: str, folder: Path, trials: int, *, workers: int, kills: int = 0, strategy: str = "random") -> Any:
    """Run a search by workers that are killed so often, and return its trials but for replays."""
    job = {"url": url, "folder": str(folder), "trials": trials, "strategy": strategy, "workers": workers}
    done = run("-m", "tests.search.server_program", json.dumps({**job, "kills": kills}), cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    found = make(url, folder, trials, strategy).results()["trials"]
    assert [trial["number"] for trial in found] == list(range(len(found)))
    assert {trial["state"] for trial in found} == {"complete"}
    return [trial for trial in found if "replayed_from" not in trial]


@pytest.mark.parametrize(("trials", "kills"), [(60, 6), pytest.param(200, 20, marks=LONG)])
def test_workers_of_one_server_that_are_killed_lose_no_trial_and_count_none_twice(
    postgresql: Server, tmp_path: Path, trials: int, kills: int
) -> None:
    found = worked_on(postgresql.new_database(), tmp_path, trials, workers=4, kills=kills)
    assert len(found) == trials
    # Each result is what its values give, whoever brought it to an end, and a resumed one began where it had been cut.
    for trial in found:
        assert trial["values"]["default"] == sum(value == "a" for value in trial["parameters"].values())
        assert [step for step, _ in trial["curve"]] == [*range(STEPS)]
    begun, steps = Counter(said(tmp_path, "begun")), Counter(said(tmp_path, "steps"))
    assert set(begun) == {str(trial["number"]) for trial in found}
    assert begun.total() <= trials + kills
    assert set(steps) == {f"{trial['number']} {step}" for trial in found for step in range(STEPS)}
    assert steps.total() <= STEPS * trials + kills


def test_a_search_on_a_server_that_is_killed_equals_one_in_memory_that_was_not(
    postgresql: Server, tmp_path: Path
) -> None:
    cut = worked_on(postgresql.new_database(), tmp_path / "cut", 40, workers=1, kills=4, strategy="nsga2")
    whole = make("memory", tmp_path / "whole", 40, "nsga2").run()["trials"]
    assert len(said(tmp_path / "cut", "begun")) <= 44
    kept = ("number", "parameters", "values", "state", "curve")
    assert [{name: trial[name] for name in kept} for trial in cut] == [
        {name: trial[name] for name in kept} for trial in whole if "replayed_from" not in trial
    ]


def test_promoted_trials_whose_workers_are_killed_resume_from_their_own_checkpoints(
    server: Server, tmp_path: Path
) -> None:
    url, promotion = server.new_database(), "asha(1, 4, 2)"
    job = {"url": url, "folder": str(tmp_path), "trials": 16, "strategy": "random", "workers": 3, "kills": 4}
    done = run("-m", "tests.search.server_program", json.dumps({**job, "promotion": promotion}), cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    found = make(url, tmp_path, 16, "random", promotion).results()["trials"]
    steps, reached = Counter(said(tmp_path, "steps")), {}
    for trial in found:
        assert trial["state"] in ("paused", "complete")
        reached[trial["number"]] = 4 if trial["state"] == "complete" else 2 ** max(map(int, trial["rungs"]))
        assert [step for step, _ in trial["curve"]] == [*range(reached[trial["number"]])]
    # Each step of each trial was made, and again only where a kill came between the step and its checkpoint.
    assert set(steps) == {f"{number} {step}" for number, budget in reached.items() for step in range(budget)}
    assert steps.total() <= sum(reached.values()) + job["kills"]
    # Of 16 at the first rung 8 or more were promoted, and of those half or more again.
    assert sum(budget > 1 for budget in reached.values()) >= 8
    assert sum(budget > 2 for budget in reached.values()) >= 4
