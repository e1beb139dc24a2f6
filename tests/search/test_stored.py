"""A search by its store alone: what it says of itself, and what may be asked of it while it runs or later."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.search.support import letters, search_in
from treadle import search
from treadle.cli.application import app
from treadle.search import run
from treadle.search.errors import SearchError
from treadle.search.stored import StoredSearch


def half_fails(taken: dict[str, str]) -> float:
    """Return a result, or fail where the word begins with an `a`."""
    if taken["x0"] == "a":
        raise ValueError("no a")
    return float(sum(letter == "b" for letter in taken.values()))


def ran(*arguments: object) -> str:
    """Return what the command printed, which must have succeeded."""
    done = CliRunner().invoke(app, ["search", *map(str, arguments)])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A search of twelve trials, some of which failed."""
    search_in(tmp_path / "s", trainer=half_fails, max_failures=None).run()
    return tmp_path / "s"


def test_a_store_tells_what_the_search_tells(folder: Path) -> None:
    own = search_in(folder, trainer=half_fails, max_failures=None).results()
    assert StoredSearch(folder).results() == own
    assert StoredSearch(folder / "search.journal").results() == own
    numbers: dict[str, Any] = {"x": search.uniform(0, 1, step=0.25), "y": search.integer(1, 9, log=True)}
    made = search.Search(numbers, lambda at: at["x"] * at["y"], run_dir=folder.parent / "n", trials=3).run()
    assert StoredSearch(folder.parent / "n").results() == made


def test_status_and_best_say_what_there_is(folder: Path) -> None:
    results = StoredSearch(folder).results()
    failed = sum(trial["state"] == "failed" for trial in results["trials"])
    (folder / "trials" / f"{results['best']['number']:04d}").mkdir(parents=True)
    first, best = ran("status", folder).splitlines()
    assert first == f"s: 12 trials ({12 - failed} complete, {failed} failed) by random"
    assert best.startswith(f"best: trial {results['best']['number']}  ")
    line, where = ran("best", folder).splitlines()
    assert best == f"best: {line}"
    assert where == f"  in {folder}/trials/{results['best']['number']:04d}"
    assert json.loads(ran("status", folder, "--json"))["states"] == {"complete": 12 - failed, "failed": failed}
    assert json.loads(ran("best", folder, "--json")) == [results["best"]]


def test_a_running_trial_is_in_the_status(tmp_path: Path) -> None:
    seen: list[str] = []

    def looking(taken: dict[str, str]) -> float:
        search.report_intermediate_result(0.5)
        seen.append(ran("status", tmp_path / "s"))
        return 1.0

    search_in(tmp_path / "s", trainer=looking, trials=2).run()
    assert seen[1].splitlines()[:2][0] == "s: 2 trials (1 complete, 1 running) by random"
    assert seen[1].splitlines()[1].startswith("trial 1  running  0.5000 at step 0  x0=")


def test_trials_are_exported_as_json_or_as_a_table(folder: Path) -> None:
    results = StoredSearch(folder).results()
    assert json.loads(ran("export", folder)) == results
    assert ran("export", folder, folder / "all.json") == f"{folder / 'all.json'}\n"
    assert json.loads((folder / "all.json").read_text()) == results
    ran("export", folder, folder / "all.csv")
    with (folder / "all.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["state"] for row in rows] == [trial["state"] for trial in results["trials"]]
    best = results["best"]
    assert float(rows[best["number"]]["default"]) == best["values"]["default"]
    assert {label: rows[0][label] for label in letters()} == results["trials"][0]["parameters"]


def test_failed_trials_are_run_again_by_the_next_start_and_not_twice(folder: Path) -> None:
    failed = [trial["number"] for trial in StoredSearch(folder).results()["trials"] if trial["state"] == "failed"]
    assert ran("retry", folder, failed[0]) == f"run again: trial {failed[0]}\n"
    results = search_in(folder, max_failures=None).run()  # which does not fail now
    again = [trial for trial in results["trials"] if "retry_of" in trial]
    assert [(trial["retry_of"], trial["state"]) for trial in again] == [(failed[0], "complete")]
    assert ran("retry", folder) == f"run again: {', '.join(f'trial {number}' for number in failed[1:])}\n"
    for _ in range(2):
        results = search_in(folder, max_failures=None).run()
        assert sorted(trial["retry_of"] for trial in results["trials"] if "retry_of" in trial) == failed
    assert ran("retry", folder) == "run again: none, for none has failed\n"


def test_a_search_that_is_asked_to_stop_begins_no_more_trials_and_runs_when_it_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(run, "TICK", 0.0)

    def stopping(taken: dict[str, str]) -> float:
        if search.current_trial() == 2:
            assert ran("stop", tmp_path / "s").startswith("s: asked to stop; trials that are running come to")
        return 1.0

    assert len(search_in(tmp_path / "s", trainer=stopping).run()["trials"]) == 3
    assert "somebody asked the search to stop; it begins no more trials" in caplog.messages
    assert len(search_in(tmp_path / "s", trainer=stopping).run()["trials"]) == 12


def test_one_of_several_searches_in_a_store_is_named(tmp_path: Path) -> None:
    for name in ("one", "two"):
        search_in(tmp_path / name, store=tmp_path / "both.journal", trials=1).run()
    with pytest.raises(SearchError, match=r"both.journal holds the searches \['one', 'two'\]; say which by --name$"):
        StoredSearch(tmp_path / "both.journal")
    assert ran("status", tmp_path / "both.journal", "--name", "two").startswith("two: 1 trial (1 complete)")


def refused(folder: Path, *arguments: object) -> str:
    done = CliRunner().invoke(app, ["search", *map(str, arguments)])
    assert done.exit_code != 0
    return done.output


MISTAKES: list[tuple[Callable[[Path], tuple[object, ...]], str]] = [
    (lambda folder: ("status",), "treadle search status needs the folder of a search, or the URL of its store"),
    (lambda folder: ("status", folder, "x"), "treadle search status takes no 'x' after"),
    (lambda folder: ("status", folder.parent), "there is no search in"),
    (lambda folder: ("export", folder, "a.xls"), "treadle search export writes .json and .csv, and not 'a.xls'"),
    (lambda folder: ("retry", folder, "x"), "treadle search retry takes numbers of trials, and 'x' is none"),
    (lambda folder: ("retry", folder, "99"), "trial 99 of 's' has not failed; those that have are"),
]


def test_what_cannot_be_asked_is_refused(folder: Path) -> None:
    for arguments, message in MISTAKES:
        assert message in " ".join(refused(folder, *arguments(folder)).split())
