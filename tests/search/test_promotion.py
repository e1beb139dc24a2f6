"""Promotion: who gets more budget, and that a trial which was paused has the bits of one that never was."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from tests.search.support import Killed, numbers, without_clocks
from treadle import Trainer, search
from treadle.callback import TrainerCallback
from treadle.errors import ConfigError
from treadle.search.promotion import make_promotion
from treadle.search.promotion.base import (
    COMPLETE,
    FAILED,
    PAUSED,
    RUNNING,
    Copy,
    End,
    Member,
    New,
    Promote,
    Wait,
)

EPOCHS = 4
SPACE = {"lr": search.log_uniform(1e-3, 1e-1)}
points = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
SAMPLES = list(zip(points, points[:, :1] * 2, strict=True))


class Epochs(TrainerCallback):
    """Writes down where each start of a run began, and every epoch that it made; dies in one of them if it is told."""

    dies_in: tuple[int, int] | None = None

    def __init__(self, told: list[tuple[Any, ...]]) -> None:
        self.told = told

    def on_training_run_start(self, trainer: Any, **kwargs: Any) -> None:
        self.told.append(("begins", search.this_trial().number, trainer.progress.epoch))

    def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
        if Epochs.dies_in == (search.this_trial().number, trainer.progress.step):
            Epochs.dies_in = None
            raise Killed

    def on_training_run_epoch_end(self, trainer: Any, **kwargs: Any) -> None:
        self.told.append(("epoch", search.this_trial().number, trainer.progress.epoch))


def trained(told: list[tuple[Any, ...]] | None = None) -> Any:
    """Return a trial that trains a network with dropout and a schedule; what it does is written down."""

    def train(setting: dict[str, Any]) -> float:
        model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.3), nn.Linear(4, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=setting["lr"])
        run_dir = search.this_trial().run_dir
        callbacks = () if told is None else (Epochs(told),)
        trainer = Trainer(model, nn.MSELoss(), optimizer, callbacks=callbacks, run_dir=run_dir, execution="eager")
        return search.train_to_budget(
            trainer,
            SAMPLES,
            EPOCHS,
            eval_dataset=SAMPLES,
            per_device_batch_size=8,
            create_scheduler_fn=lambda one: torch.optim.lr_scheduler.CosineAnnealingLR(one, EPOCHS * 2),
            settings={"lr": setting["lr"]},
        )

    return train


def search_in(folder: Path, promotion: Any, told: Any = None, **options: Any) -> search.Search:
    options = {"trials": 4, "objectives": "minimize", **options}
    return search.Search(SPACE, trained(told), promotion=promotion, run_dir=folder, **options)


def weights(folder: Path, number: int) -> dict[str, torch.Tensor]:
    """Return all tensors of the last checkpoint of a trial: weights, optimizer and random numbers."""
    run = folder / "trials" / f"{number:04d}" / "checkpoints"
    return load_file(run / (run / "last").read_text().strip() / "rank_0.safetensors")


def assert_same_bits(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> None:
    assert one.keys() == two.keys()
    assert [name for name in one if not torch.equal(one[name], two[name])] == []


@pytest.fixture(scope="module")
def unpaused(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four trials that are trained to their end at once."""
    folder = tmp_path_factory.mktemp("unpaused")
    search_in(folder, None).run()
    return folder


@pytest.mark.parametrize("promotion", [search.Halving(1, EPOCHS, 2), search.Asha(1, EPOCHS, 2)])
def test_a_promoted_trial_has_the_bits_of_one_that_was_never_paused(
    tmp_path: Path, unpaused: Path, promotion: Any
) -> None:
    told: list[tuple[Any, ...]] = []
    results = search_in(tmp_path, promotion, told).run()
    [best] = numbers(results)
    assert_same_bits(weights(tmp_path, best), weights(unpaused, best))
    assert [event[2] for event in told if event[:2] == ("begins", best)] == [0, 1, 2]
    # Nothing is trained twice: each epoch of each trial once, and as many as the rungs have.
    made = [event for event in told if event[0] == "epoch"]
    assert len(made) == len(set(made)) == 4 * 1 + 2 * 1 + 1 * 2
    assert [step for step, _ in results["trials"][best]["curve"]] == [0, 1, 2, 3]


@pytest.mark.slow
def test_a_trial_that_is_killed_at_any_rung_resumes_from_its_own_checkpoint(tmp_path: Path, unpaused: Path) -> None:
    whole: list[tuple[Any, ...]] = []
    undisturbed = search_in(tmp_path / "whole" / "s", search.Halving(1, EPOCHS, 2), whole).run()
    [best] = numbers(undisturbed)
    # In the second of two steps: of the first epoch, of the one after the first promotion, and in the last rung.
    for step in (2, 4, 8):
        told: list[tuple[Any, ...]] = []
        folder = tmp_path / str(step) / "s"
        Epochs.dies_in = (best, step)
        with pytest.raises(Killed):
            search_in(folder, search.Halving(1, EPOCHS, 2), told).run()
        begun = len(told)
        results = search_in(folder, search.Halving(1, EPOCHS, 2), told).run()
        # It resumes where it was saved last, at the end of the epoch before.
        assert told[begun] == ("begins", best, step // 2 - 1)
        assert [event for event in told if event[0] == "epoch"] == [event for event in whole if event[0] == "epoch"]
        assert without_clocks(results) == without_clocks(undisturbed)
        assert_same_bits(weights(folder, best), weights(unpaused, best))


def test_a_trial_that_had_reported_all_of_its_rung_when_it_was_killed_has_the_curve_of_one_that_was_not(
    tmp_path: Path,
) -> None:
    dies = [0]

    def judge(setting: dict[str, Any]) -> float:
        trial = search.this_trial()
        assert trial.run_dir is not None
        assert trial.budget is not None
        state = trial.run_dir / "state"
        trial.run_dir.mkdir(parents=True, exist_ok=True)
        for at in range(int(state.read_text()) if state.exists() else 0, trial.budget):
            search.report_intermediate_result(setting["lr"], step=at)
            state.write_text(str(at + 1))
        if dies[0] == trial.budget:
            dies[0] = 0
            raise Killed
        return float(setting["lr"])

    def made(folder: Path) -> search.Search:
        return search.Search(SPACE, judge, promotion="halving(2, 4, 2)", run_dir=folder / "s", trials=2)

    whole = without_clocks(made(tmp_path / "whole").run())
    for budget in (2, 4):
        dies[0] = budget
        with pytest.raises(Killed):
            made(tmp_path / str(budget)).run()
        assert without_clocks(made(tmp_path / str(budget)).run()) == whole


@pytest.mark.parametrize("name", ["halving(1, 4, 2)", "asha(1, 4, 2)", "hyperband(1, 4, 2)", "pbt(1, 4)"])
def test_every_write_of_a_search_with_promotion_may_be_its_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    from treadle.search.store.journal import Journal

    original, left = Journal.append_logs, [10**6]

    def append(journal: Journal, logs: list[dict[str, Any]]) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise Killed
        original(journal, logs)

    def judge(setting: dict[str, Any]) -> float:
        trial = search.this_trial()
        assert trial.run_dir is not None
        assert trial.budget is not None
        state = trial.run_dir / "state"
        done = int(state.read_text()) if state.exists() else 0
        for at in range(done, trial.budget):
            state.parent.mkdir(parents=True, exist_ok=True)
            state.write_text(str(at + 1))
        return float(setting["lr"] * int(state.read_text()))

    def made(folder: Path) -> search.Search:
        return search.Search(SPACE, judge, promotion=name, run_dir=folder / "s", trials=5)

    monkeypatch.setattr(Journal, "append_logs", append)
    whole = without_clocks(made(tmp_path / "whole").run())
    writes = 10**6 - left[0]
    for write in range(2 + len(name) % 5, writes, 8):
        left[0] = write
        with pytest.raises(Killed):
            made(tmp_path / str(write)).run()
        left[0] = 10**6
        assert without_clocks(made(tmp_path / str(write)).run()) == whole, f"killed at write {write}"


def test_a_copy_of_population_based_training_begins_with_the_bits_of_its_source(tmp_path: Path) -> None:
    told: list[tuple[Any, ...]] = []
    population = search_in(tmp_path, search.Pbt(2, EPOCHS), told)
    results = population.run()["trials"]
    [copy] = [trial for trial in results if "copied_from" in trial]
    source, loser = results[copy["copied_from"]], results[copy["replaces"]]
    assert (loser["state"], source["state"], copy["state"]) == ("pruned", "complete", "complete")
    assert copy["parameters"]["lr"] != source["parameters"]["lr"]
    assert ("begins", copy["number"], 2) in told
    kept = [tmp_path / "trials" / f"{number:04d}" / "checkpoints" / "step_00000004" for number in (4, source["number"])]
    assert (kept[0] / "rank_0.safetensors").read_bytes() == (kept[1] / "rank_0.safetensors").read_bytes()
    # Its optimizer goes by its own rate, of which the schedule is at the end.
    state = json.loads((kept[0].with_name("step_00000008") / "rank_0.json").read_text())
    assert repr(copy["parameters"]["lr"]) in json.dumps(state)
    assert not list((tmp_path / "trials").glob("*.copying"))
    again = search_in(tmp_path / "again" / tmp_path.name, search.Pbt(2, EPOCHS)).run()["trials"]
    kept_of = [[(one["parameters"], one["values"], one["curve"]) for one in found] for found in (results, again)]
    assert kept_of[0] == kept_of[1]


# Who is promoted, decided without training anything ----------------------------------------------------------------


def at(number: int, *results: float, state: str = PAUSED) -> Member:
    """Return a trial with results at rungs from the first one."""
    goal = len(results) - 1 + (state in (RUNNING, FAILED))
    return Member(number, state, goal, dict(enumerate(results)))


def test_asha_promotes_from_the_highest_rung_down_and_never_waits_for_a_cohort() -> None:
    asha = search.Asha(1, 4, 2)
    assert asha.next([at(0, 1.0)], 8) == New()
    assert asha.next([at(0, 1.0), at(1, 0.5)], 8) == Promote(1)
    running = at(1, 0.5, state=RUNNING)
    assert asha.next([at(0, 1.0), running], 8) == New()
    assert asha.next([at(0, 1.0), running, at(2, 0.7), at(3, 0.9)], 8) == Promote(2)
    assert asha.next([at(0, 1.0), at(1, 0.5, 0.4), at(2, 0.7, 0.2), at(3, 0.6)], 8) == Promote(2)
    assert asha.next([at(0, 1.0), running], 2) == Wait()
    assert asha.next([at(0, 1.0), at(1, 0.5, 0.4)], 2) is None


def test_halving_waits_for_its_cohort_ends_the_others_and_begins_the_next_cohort_meanwhile() -> None:
    halving = search.Halving(1, 4, 2, cohort=4)
    waiting = [at(0, 1.0), at(1, 0.5), at(2, 0.7), at(3, state=RUNNING)]
    assert halving.next(waiting, 8) == New()
    assert halving.next(waiting, 4) == Wait()
    assert halving.next([*waiting[:3], at(3, 0.1)], 4) == End(0)
    assert halving.next([at(0, 1.0, state="ended"), *waiting[1:3], at(3, 0.1)], 4) == Promote(1)
    # One that fails is never promoted, and the others are not made more by it.
    failed = [at(0, 1.0, state="ended"), at(1, 0.5), at(2, 0.7), at(3, state=FAILED)]
    assert halving.next(failed, 4) == Promote(1)
    done = [at(0, 1.0, state="ended"), at(1, 0.5, 0.4, 0.3, state=COMPLETE), at(2, 0.7, 0.6, state="ended")]
    assert halving.next([*done, at(3, state=FAILED)], 4) is None


def test_hyperband_begins_later_cohorts_with_larger_budgets() -> None:
    cohorts = search.Hyperband(1, 9, 3).cohorts()
    assert [next(cohorts) for _ in range(4)] == [(9, 0), (5, 1), (3, 2), (9, 0)]
    assert search.Hyperband(1, 9, 3).next([at(number, 0.0, state=RUNNING) for number in range(9)], 20) == New(1)


def test_a_population_copies_its_best_while_they_wait_and_then_promotes_all_but_the_worst() -> None:
    pbt = search.Pbt(1, 3, quantile=0.25)
    four = [at(0, 1.0), at(1, 0.5), at(2, 0.7), at(3, 0.9)]
    assert pbt.next(four[:3], 4) == New()
    assert pbt.next([*four[:3], at(3, state=RUNNING)], 4) == Wait()
    assert pbt.next(four, 4) == Copy(1, 0, 0)
    copied = [*four, Member(4, RUNNING, 1, {}, (1, 0, 0))]
    assert pbt.next(copied, 4) == End(0)
    assert pbt.next([at(0, 1.0, state="ended"), *copied[1:]], 4) == Promote(1)
    # One that failed is replaced first.
    assert pbt.next([*four[:3], at(3, state=FAILED)], 4) == Copy(1, 0, 3)


MISTAKES: list[tuple[Any, str]] = [
    (lambda: search.Halving(1, 1), r"^min_budget=1 and max_budget=1 must be whole numbers, 1 <= min_budget < max_budg"),
    (lambda: search.Asha(2, 3), r"^min_budget=2, max_budget=3, reduction=3: there is only one rung; take a smaller"),
    (lambda: search.Asha(1, 9, 1), r"^reduction=1 must be a whole number from 2 up$"),
    (lambda: search.Asha(1, 9, budgets=[1, 9]), r"^give either min_budget and max_budget, or budgets$"),
    (
        lambda: search.Asha(budgets=[9, 1]),
        r"^budgets=\[9, 1\] must be two or more whole numbers from 1 up, each l",
    ),
    (lambda: search.Halving(1, 9, cohort=1), r"^cohort=1 must be a whole number from 2 up$"),
    (lambda: search.Pbt(5, 5), r"^interval=5 and max_budget=5 must be whole numbers, 1 <= interval < max_budget$"),
    (lambda: search.Pbt(1, 5, quantile=0.6), r"^quantile=0.6 must be above 0 and at most 0.5$"),
    (lambda: search.Pbt(1, 5, resample=2), r"^resample=2 must be between 0 and 1$"),
    (lambda: make_promotion("ahsa(1, 9)"), r"^promotion='ahsa\(1, 9\)' is unknown; did you mean 'asha'"),
    (lambda: make_promotion("asha"), r"^promotion='asha' cannot be read; write its budgets: 'asha\(1, 27\)'$"),
    (
        lambda: make_promotion(3),
        r"^promotion=3 is unknown; write one of \['halving', 'asha', 'hyperband', 'pbt'\]",
    ),
    (
        lambda: search.Search(SPACE, trained(), promotion="asha(1, 9)", trials=8),
        r"^trials=8: with 3 rungs \[1, 3, 9\] and reduction=3 no trial comes to the last one before there are 9; take",
    ),
    (
        lambda: search.Search(SPACE, trained(), promotion="pbt(1, 9)", trials=3),
        r"^trials=3: of such a population quantile=0.25 replaces nobody; take at least 4$",
    ),
    (
        lambda: search.Search(SPACE, trained(), promotion="asha(1, 9)", pruner="median"),
        r"^promotion= and pruner= both end trials early; give one of them$",
    ),
    (
        lambda: search.Search(SPACE, trained(), promotion="asha(1, 9)", objectives=["a", "b"]),
        r"^promotion compares trials by one number; with several objectives, set promotion=None$",
    ),
    (lambda: search.StopAtBudgetCallback("day"), r"^StopAtBudgetCallback\(unit='day'\): a budget counts one of"),
]


@pytest.mark.parametrize(("mistake", "message"), MISTAKES)
def test_what_cannot_be_promoted_is_refused(mistake: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        mistake()


@pytest.mark.parametrize(
    ("epochs", "has_folder", "message"),
    [
        (9, True, "train_to_budget(num_epochs=9): the largest budget of the search is 4; train for as many epochs"),
        (4, False, "a trial that may be promoted resumes in its folder; make the trainer with run_dir=search.this_"),
    ],
)
def test_a_trial_that_could_not_be_promoted_fails_by_what_is_wrong(
    tmp_path: Path, epochs: int, has_folder: bool, message: str
) -> None:
    def train(setting: dict[str, Any]) -> float:
        model = nn.Linear(4, 1)
        run_dir = search.this_trial().run_dir if has_folder else None
        trainer = Trainer(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1), run_dir=run_dir)
        return search.train_to_budget(trainer, SAMPLES, epochs, eval_dataset=SAMPLES)

    found = search.Search(
        SPACE, train, promotion="halving(1, 4, 2)", trials=2, run_dir=tmp_path, max_failures=None
    ).run()["trials"]
    assert [trial["error"]["message"].startswith(message) for trial in found] == [True, True]


def test_a_copy_whose_optimizer_has_no_such_setting_fails_by_its_name() -> None:
    from treadle.search.trial.budget import set_options

    trainer = Trainer(nn.Linear(1, 1), nn.MSELoss(), torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1))
    with pytest.raises(ConfigError, match=r"^settings of a copy: SGD takes no 'rate', but \['dampening', "):
        set_options(trainer, {"rate": 0.1})


def test_another_promotion_does_not_continue_a_search(tmp_path: Path) -> None:
    def judge(setting: dict[str, Any]) -> float:
        return float(setting["lr"])

    search.Search(SPACE, judge, promotion="halving(1, 4, 2)", trials=2, run_dir=tmp_path / "s").run()
    with pytest.raises(search.SearchError, match=r"with another promotion \('reduction' was 2, and is 3\)"):
        search.Search(SPACE, judge, promotion="halving(1, 9, 3)", trials=2, run_dir=tmp_path / "s").run()


def test_tpe_learns_from_trials_that_were_promoted_no_further() -> None:
    def judge(setting: dict[str, Any]) -> float:
        return -abs(setting["x"] - 2.0)

    found = search.Search(
        {"x": search.uniform(-50, 50)},
        judge,
        strategy=search.Tpe(startup=9),
        promotion="asha(1, 9)",
        trials=60,
        store="memory",
    ).run()["trials"]
    last = [abs(trial["parameters"]["x"] - 2.0) for trial in found[-20:]]
    assert sorted(last)[10] < 12  # drawn at random, the median is 25


# Workers in processes of their own ---------------------------------------------------------------------------------


def in_a_process(setting: dict[str, Any]) -> float:
    """Train in the trial's folder, a line an epoch; the first start of a promoted trial kills its own process once."""
    trial = search.this_trial()
    assert trial.run_dir is not None
    assert trial.budget is not None
    trial.run_dir.mkdir(parents=True, exist_ok=True)
    epochs, killed = trial.run_dir / "epochs", trial.run_dir.parent / "killed"
    for epoch in range(len(epochs.read_text().split()) if epochs.exists() else 0, trial.budget):
        with epochs.open("a") as file:
            file.write(f"{epoch}\n")
        if trial.budget > 1 and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    return float(setting["lr"])


@pytest.mark.slow
def test_two_workers_promote_asynchronously_and_one_that_is_killed_has_its_trial_resumed(tmp_path: Path) -> None:
    results = search.Search(
        SPACE, in_a_process, promotion="asha(1, 4, 2)", trials=8, run_dir=tmp_path, workers=2, launcher="processes",
        retries=1,
    ).run()  # fmt: skip
    [again] = [trial for trial in results["trials"] if "retry_of" in trial]
    assert results["trials"][again["retry_of"]]["error"]["message"] == "the worker was killed by SIGKILL"
    made = {folder.name: (folder / "epochs").read_text().split() for folder in (tmp_path / "trials").glob("0*")}
    # No epoch was made twice: the trial of the dead worker was continued in its folder.
    assert sorted(made) == [f"{one['number']:04d}" for one in results["trials"] if "retry_of" not in one]
    assert all(epochs == [str(epoch) for epoch in range(len(epochs))] for epochs in made.values())
    reached = sorted(len(epochs) for epochs in made.values())
    assert reached.count(4) >= 2
    assert sum(budget > 1 for budget in reached) >= 4
    # The best half of each rung was promoted, whoever came there first.
    rates = {trial["number"]: trial["parameters"]["lr"] for trial in results["trials"] if "retry_of" not in trial}
    best = sorted(rates, key=lambda number: -rates[number])[:4]
    assert all(len(made[f"{number:04d}"]) > 1 for number in best)
