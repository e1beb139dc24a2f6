"""A search that is killed loses no finished trial, runs none again, and with one worker ends as if never killed."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.search.support import Judge, Killed, Net, letters, noisy, search_in, without_clocks
from treadle import nas
from treadle.errors import ConfigError
from treadle.search.store.journal import Journal


def pruned_trainer(taken: dict[str, str]) -> float:
    """A trainer whose results differ enough for pruners, and fail now and then."""
    level = sum(letter == "a" for letter in taken.values()) + torch.rand(()).item()
    for step in range(1, 6):
        nas.report_intermediate_result({"default": level * step, "loss": -level})
    if taken["x0"] == taken["x1"] == "b":
        raise RuntimeError("never mind")
    return level


KINDS: dict[str, dict[str, Any]] = {
    "random": {},
    "grid": {"strategy": "grid"},
    "tpe": {"strategy": nas.Tpe(startup=4)},
    "evolution": {"strategy": nas.Evolution(4, 2)},
    "nsga2": {"strategy": nas.Nsga2(4)},
    "median": {"trainer": pruned_trainer, "pruner": "median", "retries": 1},
    "halving": {"trainer": pruned_trainer, "pruner": "halving", "retries": 1},
    "hyperband": {"trainer": pruned_trainer, "pruner": "hyperband"},
}


class Saboteur:
    """Lets the process die at one of its writes to the journal: before it, after it, or in the middle of the line."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.write, self.moment, self.count = -1, "", 0
        original = Journal.append_logs

        def append(journal: Journal, logs: list[dict[str, Any]]) -> None:
            self.count += 1
            if self.count != self.write:
                original(journal, logs)
                return
            if self.moment == "after":
                original(journal, logs)
            elif self.moment == "torn":
                text = json.dumps(logs[0]).encode()
                with journal.path.open("ab") as file:
                    file.write(text[: len(text) // 2])
            raise Killed

        monkeypatch.setattr(Journal, "append_logs", append)

    def arm(self, write: int, moment: str) -> None:
        """Die at this write from now on."""
        self.write, self.moment, self.count = write, moment, 0


@pytest.fixture
def saboteur(monkeypatch: pytest.MonkeyPatch) -> Saboteur:
    return Saboteur(monkeypatch)


@pytest.mark.parametrize("moment", ["before", "after", "torn"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_search_killed_at_its_writes_ends_like_one_that_was_not(
    tmp_path: Path, saboteur: Saboteur, kind: str, moment: str
) -> None:
    options = {"trials": 8, "max_failures": None, **KINDS[kind]}
    whole = without_clocks(search_in(tmp_path / "x" / "search", **options).run())
    kills = 0
    write = 1
    while True:
        saboteur.arm(write, moment)
        try:
            results = search_in(tmp_path / "y" / "search", **options).run()
            break
        except Killed:
            kills += 1
            # Further into the run each time, so that the search gets on; never where the last one died.
            write = 2 + (kills * 7) % 37
    assert kills >= 3
    assert without_clocks(results) == whole


def test_every_write_of_a_search_may_be_its_last(tmp_path: Path, saboteur: Saboteur) -> None:
    options: dict[str, Any] = {"trials": 3, "strategy": nas.Evolution(2, 1), "trainer": pruned_trainer, "retries": 1}
    whole = without_clocks(search_in(tmp_path / "whole" / "search", **options).run())
    saboteur.arm(-1, "")
    search_in(tmp_path / "counted" / "search", **options).run()
    writes = saboteur.count
    assert writes > 20
    for write in range(1, writes + 1):
        folder = tmp_path / str(write) / "search"
        saboteur.arm(write, "after" if write % 2 else "torn")
        with pytest.raises(Killed):
            search_in(folder, **options).run()
        saboteur.arm(-1, "")
        assert without_clocks(search_in(folder, **options).run()) == whole, f"killed at write {write}"


def test_a_finished_search_runs_nothing_again(tmp_path: Path) -> None:
    ran: list[Any] = []

    def counted(taken: Any) -> float:
        ran.append(taken)
        return noisy(taken)

    first = search_in(tmp_path, trainer=counted).run()
    again = search_in(tmp_path, trainer=counted).run()
    assert len(ran) == 12
    assert again == first


def test_a_search_is_made_longer_by_more_trials(tmp_path: Path) -> None:
    short = without_clocks(search_in(tmp_path / "a" / "search", trials=5).run())
    longer = without_clocks(search_in(tmp_path / "a" / "search", trials=9).run())
    whole = without_clocks(search_in(tmp_path / "b" / "search", trials=9).run())
    assert longer["trials"][:5] == short["trials"]
    assert longer == whole


def test_a_running_trial_is_run_again_under_its_own_number_with_its_own_parameters(tmp_path: Path) -> None:
    seen: list[Any] = []

    def dying_once(taken: Any) -> float:
        seen.append(taken)
        if len(seen) == 4:
            raise Killed
        return 0.0

    with pytest.raises(Killed):
        search_in(tmp_path, trainer=dying_once).run()
    results = search_in(tmp_path, trainer=dying_once).run()
    assert seen[3] == seen[4]
    assert [trial["parameters"] for trial in results["trials"]] == seen[:4] + seen[5:]


def test_a_search_of_networks_with_inherited_weights_resumes_exactly(tmp_path: Path, saboteur: Saboteur) -> None:
    options: dict[str, Any] = {
        "space": Net,
        "trainer": Judge,
        "strategy": nas.Evolution(2, 1),
        "inherit": True,
        "duplicates": "run",
        "trials": 6,
    }
    whole = search_in(tmp_path / "a" / "search", **options)
    expected = without_clocks(whole.run())
    for write in (9, 15, 14, 20):
        saboteur.arm(write, "before")
        with pytest.raises(Killed):
            search_in(tmp_path / "b" / "search", **options).run()
    saboteur.arm(-1, "")
    cut = search_in(tmp_path / "b" / "search", **options)
    assert without_clocks(cut.run()) == expected
    one, two = whole.best_network().state_dict(), cut.best_network().state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_seeds_of_trials_do_not_depend_on_what_ran_before(tmp_path: Path) -> None:
    torch.manual_seed(1)
    one = search_in(tmp_path / "a" / "search").run()
    torch.manual_seed(2)
    before = torch.get_rng_state()
    two = search_in(tmp_path / "b" / "search").run()
    assert without_clocks(one) == without_clocks(two)
    assert torch.equal(torch.get_rng_state(), before)
    other = search_in(tmp_path / "c" / "search", seed=1).run()
    assert without_clocks(other)["trials"] != without_clocks(one)["trials"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"space": letters(4, "abce")},
            r"another space \('x0' was {'choice': \['a', 'b', 'c', 'd'\]}, and is {'choice'",
        ),
        ({"space": letters(5)}, r"another space \('x4' was not there, and is {'choice'"),
        (
            {"objectives": "minimize"},
            r"another list of objectives \(\[\['default', 'maximize'\]\], now \[\['default', 'mini",
        ),
        ({"seed": 1}, r"another seed \(0, now 1\); use the same, or give another store or name"),
    ],
)
def test_a_store_with_another_search_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    search_in(tmp_path / "search", trials=2).run()
    with pytest.raises(nas.SearchError, match=r"search.journal holds a search 'search' with " + message):
        search_in(tmp_path / "search", **change).run()


def test_another_strategy_may_go_on_with_a_search(tmp_path: Path) -> None:
    search_in(tmp_path, trials=6).run()
    results = search_in(tmp_path, trials=10, strategy=nas.Tpe(startup=4)).run()
    assert (len(results["trials"]) >= 10, results["strategy"]) == (True, "tpe")


def test_a_study_that_is_no_search_is_refused(tmp_path: Path) -> None:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    url = f"sqlite:///{tmp_path / 'trials.db'}"
    optuna.create_study(study_name="mine", storage=url, direction="maximize").optimize(lambda trial: 1.0, n_trials=1)
    with pytest.raises(nas.SearchError, match=r"holds a study 'mine' that no search of Treadle made; name another$"):
        search_in(tmp_path / "x", store=url, name="mine").run()


def test_the_journal_is_one_that_optuna_reads(tmp_path: Path) -> None:
    import optuna

    results = search_in(tmp_path / "mine", trials=4).run()
    backend = optuna.storages.journal.JournalFileBackend(str(tmp_path / "mine" / "search.journal"))
    study = optuna.load_study(study_name="mine", storage=optuna.storages.JournalStorage(backend))
    assert [trial.value for trial in study.trials] == [trial["values"]["default"] for trial in results["trials"]]
    assert study.best_value == results["best"]["values"]["default"]


def test_results_are_plain_json(tmp_path: Path) -> None:
    results = search_in(tmp_path, trainer=pruned_trainer, pruner="median", max_failures=None).run()
    assert json.loads(json.dumps(results, allow_nan=False)) == results
    assert not any(math.isnan(value) for trial in results["trials"] for _, value in trial["curve"])


@pytest.mark.parametrize("name", ["trials", "max_failures", "proxy_pool"])
def test_numbers_must_be_whole_and_positive(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{name}=0 must be a whole number from 1 up$"):
        nas.Search(letters(), noisy, **{name: 0})  # type: ignore[arg-type]


def test_the_seed_must_be_a_whole_number() -> None:
    with pytest.raises(ConfigError, match=r"^seed=0.5 must be a whole number$"):
        nas.Search(letters(), noisy, seed=0.5)  # type: ignore[arg-type]
