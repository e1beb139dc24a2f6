"""What trials report, in order and of every kind (behaviours 1 to 10 of the section on reporting)."""

import json
import logging
import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
import torch
from torch import nn

from tests.search.support import (
    Judge,
    Killed,
    Net,
    dying_at,
    letters,
    noisy,
    numbers,
    search_in,
    vowels,
    without_clocks,
)
from treadle import Trainer, TrainerCallback, nas, search
from treadle.errors import ConfigError, NonFiniteError, TreadleError


def run_one(trainer: Any, **options: Any) -> dict[str, Any]:
    """Run one trial, and return it."""
    search = nas.Search(letters(1), trainer, **{"trials": 1, "store": "memory", "max_failures": None, **options})
    trial: dict[str, Any] = search.run()["trials"][0]
    return trial


def test_behaviour_1_intermediate_reports_arrive_in_order_from_step_0() -> None:
    def trainer(taken: Any) -> float:
        for value in (3.0, 1.0, 2.0):
            nas.report_intermediate_result(value)
        return 4.0

    assert run_one(trainer)["curve"] == [[0, 3.0], [1, 1.0], [2, 2.0]]


def test_behaviour_1_a_step_of_ones_own_must_grow() -> None:
    def growing(taken: Any) -> float:
        nas.report_intermediate_result(1.0, step=10)
        nas.report_intermediate_result(2.0)
        return 1.0

    def falling(taken: Any) -> float:
        nas.report_intermediate_result(1.0, step=10)
        nas.report_intermediate_result(2.0, step=10)
        return 1.0

    assert run_one(growing)["curve"] == [[10, 1.0], [11, 2.0]]
    failed = run_one(falling)
    assert failed["error"]["message"] == "step=10 was reported after step 10; steps must grow"
    with pytest.raises(nas.ReportError, match=r"step=-1\): a step is a whole number from 0 up"):
        nas.report_intermediate_result(1.0, step=-1)


@pytest.mark.parametrize(
    ("objectives", "message"),
    [
        (["acc"], "the final result has ['accuracy', 'loss'], but not 'acc' or 'default', which drives the search"),
        (
            ["acc", "loss"],
            "the final result has ['accuracy', 'loss'], but the search has the objectives ['acc', 'loss']; add ['acc']",
        ),
    ],
)
def test_a_search_for_what_no_trial_reports_ends_with_the_first_and_lists_what_is(
    objectives: list[str], message: str
) -> None:
    tried = []

    def trainer(taken: Any) -> dict[str, float]:
        tried.append(taken)
        return {"accuracy": 0.5, "loss": 1.0}

    with pytest.raises(nas.SearchError) as caught:
        nas.Search(letters(1), trainer, trials=5, store="memory", objectives=objectives).run()
    assert str(caught.value) == (
        f"{message}: no trial has reported it; search for what is reported, by objectives= or -m NAME, in another "
        "folder (max_failures=None lets this search continue in any case)"
    )
    assert len(tried) == 1


def test_a_trial_that_leaves_out_what_others_report_fails_alone() -> None:
    def trainer(taken: Any) -> dict[str, float]:
        tried.append(taken)
        return {"loss": 1.0} if len(tried) == 2 else {"accuracy": 0.5}

    tried: list[Any] = []
    search = nas.Search(letters(1), trainer, trials=3, store="memory", objectives=["accuracy"], strategy="random")
    trials = [trial for trial in search.run()["trials"] if "replayed_from" not in trial]
    assert [trial["state"] for trial in trials] == ["complete", "failed", "complete"]


def test_behaviour_2_outside_a_search_a_report_is_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        nas.report_intermediate_result(torch.tensor(0.5))
        nas.report_final_result({"default": 0.75, "loss": 1})
    assert caplog.messages == [
        "intermediate result (no search is running): 0.5",
        "final result (no search is running): default 0.75, loss 1",
    ]


def test_behaviour_3_default_drives_the_search_and_the_rest_is_stored() -> None:
    def trainer(taken: Any) -> None:
        nas.report_intermediate_result({"default": 1.0, "loss": 0.5})
        nas.report_final_result({"default": 2.0, "loss": 0.25})

    trial = run_one(trainer)
    assert trial["values"] == {"default": 2.0}
    assert trial["metrics"] == {"default": 2.0, "loss": 0.25}
    assert trial["curve"] == [[0, 1.0]]
    assert trial["reports"] == {"0": {"default": 1.0, "loss": 0.5}}


def test_behaviour_3_the_name_of_the_objective_drives_the_search() -> None:
    trial = run_one(lambda taken: {"accuracy": 0.5, "loss": 1.0}, objectives={"accuracy": "max"})
    assert trial["values"] == {"accuracy": 0.5}


def test_behaviour_3_a_mapping_without_what_drives_the_search_is_an_error() -> None:
    assert run_one(lambda taken: {"loss": 1.0})["error"]["message"] == (
        "the final result has ['loss'], but not 'default', which drives the search"
    )
    message = run_one(lambda taken: {"a": 1.0}, objectives={"a": "max", "b": "min"})["error"]["message"]
    assert message == "the final result has ['a'], but the search has the objectives ['a', 'b']; add ['b']"


@pytest.mark.parametrize(
    "value",
    [
        1,
        np.float32(1),
        np.int64(1),
        np.array([1.0]),
        torch.tensor(1),
        torch.tensor([[1.0]]),
        torch.tensor(1.0, dtype=torch.bfloat16),
        torch.tensor(1.0, requires_grad=True),
    ],
    ids=repr,
)
def test_behaviour_4_scalars_of_every_kind_are_accepted_as_floats(value: Any) -> None:
    assert run_one(lambda taken: value)["values"] == {"default": 1.0}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("x", r"^report_final_result\('x'\) is no number; report a number, a tensor or array of one number, or a map"),
        (True, r"^report_final_result\(True\) is no number"),
        (None, r"^report_final_result\(None\) is no number"),
        (1j, r"^report_final_result\(1j\) is no number"),
        (
            torch.zeros(3),
            r"^report_final_result\(tensor\(\[0., 0., 0.\]\)\) holds 3 numbers; report one, such as their",
        ),
        (np.zeros(0), r"holds 0 numbers"),
        ({}, r"^report_final_result\({}\): the mapping is empty; give a number, or numbers by name"),
        ({1: 2.0}, r"^report_final_result: the key 1 is no text; metrics are named by text"),
        ({"a": "b"}, r"^report_final_result: 'a' is 'b', which is no number"),
    ],
)
def test_behaviour_4_what_is_no_number_is_refused_in_a_search_or_not(value: Any, message: str) -> None:
    with pytest.raises(nas.ReportError, match=message):
        nas.report_final_result(value)


@pytest.mark.parametrize("value", [math.nan, math.inf, torch.tensor(math.nan)], ids=str)
def test_behaviour_4_a_final_result_that_is_not_finite_fails_the_trial_by_default(value: Any) -> None:
    trial = run_one(lambda taken: value)
    assert trial["state"] == "failed"
    assert trial["error"]["kind"] == NonFiniteError.__name__
    assert trial["error"]["message"].startswith("the final result of trial 0 is not finite: ")
    assert trial["nonfinite"] == [[None, ["default"]]]


def test_behaviour_4_an_intermediate_result_that_is_not_finite_is_flagged(caplog: pytest.LogCaptureFixture) -> None:
    def trainer(taken: Any) -> float:
        nas.report_intermediate_result({"default": math.nan, "loss": 1.0})
        nas.report_intermediate_result({"default": 2.0, "loss": math.inf})
        return 1.0

    trial = run_one(trainer, pruner="median")
    assert trial["state"] == "complete"
    assert trial["nonfinite"] == [[0, ["default"]], [1, ["loss"]]]
    assert "trial 0 reported default nan, loss 1 at step 0, which is not finite" in caplog.messages


def test_behaviour_4_nonfinite_prune_stops_a_trial_at_the_first() -> None:
    def trainer(taken: Any) -> float:
        nas.report_intermediate_result(1.0)
        nas.report_intermediate_result(math.nan)
        raise AssertionError("it went on")

    trial = run_one(trainer, nonfinite="prune")
    assert (trial["state"], trial["values"]) == ("pruned", None)
    assert run_one(lambda taken: math.nan, nonfinite="prune")["state"] == "pruned"


def test_behaviour_5_a_second_final_result_is_an_error() -> None:
    def trainer(taken: Any) -> None:
        nas.report_final_result(1.0)
        nas.report_final_result(2.0)

    trial = run_one(trainer)
    assert trial["state"] == "failed"
    assert trial["error"]["message"] == (
        "a final result was reported twice (first [1.0], then 2); report it once, at the end, and others by "
        "report_intermediate_result"
    )


def test_behaviour_5_an_intermediate_result_after_the_final_one_is_an_error() -> None:
    def trainer(taken: Any) -> None:
        nas.report_final_result(1.0)
        nas.report_intermediate_result(2.0)

    message = run_one(trainer)["error"]["message"]
    assert message == "an intermediate result (2) came after the final one; report it before"


def test_behaviour_5_what_fit_returns_counts_only_where_nothing_was_reported() -> None:
    def trainer(taken: Any) -> Any:
        nas.report_final_result(1.0)
        return ["a history, say"]

    assert run_one(trainer)["values"] == {"default": 1.0}
    assert run_one(lambda taken: None)["error"]["message"] == (
        "the trial ended without a final result; call nas.report_final_result(...) at the end of fit(), or return the "
        "result"
    )


def test_behaviour_6_a_crash_keeps_the_traceback_and_the_partial_curve() -> None:
    def crashing(taken: Any) -> float:
        nas.report_intermediate_result(0.5)
        raise RuntimeError("out of luck")

    trial = run_one(crashing)
    assert (trial["state"], trial["values"], trial["curve"]) == ("failed", None, [[0, 0.5]])
    assert (trial["error"]["kind"], trial["error"]["message"]) == ("RuntimeError", "out of luck")
    assert 'raise RuntimeError("out of luck")' in trial["error"]["traceback"]


DIRECTED = {"evolution": nas.Evolution(8, 4), "tpe": nas.Tpe(8), "nsga2": nas.Nsga2(8)}


@pytest.mark.parametrize("strategy", ["random", "grid", *DIRECTED])
@pytest.mark.parametrize(("direction", "best"), [("maximize", 3.0), ("minimize", 0.0)])
def test_behaviour_7_every_strategy_honours_the_direction(strategy: str, direction: str, best: float) -> None:
    chosen = DIRECTED.get(strategy, strategy)
    search = nas.Search(letters(3), vowels, strategy=chosen, objectives=direction, trials=50, store="memory")
    assert search.run()["best"]["values"] == {"default": best}


@pytest.mark.parametrize("strategy", DIRECTED)
@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_behaviour_7_a_strategy_moves_in_the_direction(strategy: str, direction: str) -> None:
    chosen = DIRECTED[strategy]
    search = nas.Search(letters(6), vowels, strategy=chosen, objectives=direction, trials=60, store="memory")
    late = [trial["values"]["default"] for trial in search.run()["trials"][-20:]]
    mean = sum(late) / len(late)  # drawn at random, a word of six letters out of four has 1.5 of the good one
    assert mean > 2.5 if direction == "maximize" else mean < 0.75


@pytest.mark.parametrize("strategy", ["random", "grid", *DIRECTED])
def test_behaviour_7_every_strategy_finds_the_front_of_two_objectives(strategy: str) -> None:
    def two(taken: dict[str, int]) -> dict[str, float]:
        return {"size": float(taken["x"]), "error": float((9 - taken["x"]) + (taken["y"] != 0))}

    chosen = DIRECTED.get(strategy, strategy)
    space = {"x": nas.integer(0, 9), "y": nas.one_of(0, 1)}
    objectives = {"size": "minimize", "error": "minimize"}
    search = nas.Search(space, two, strategy=chosen, objectives=objectives, trials=20, store="memory")
    results = search.run()
    front = [results["trials"][number] for number in results["pareto"]]
    assert len(front) >= 6
    assert all(trial["parameters"]["y"] == 0 for trial in front) or strategy != "grid"
    sizes = [trial["values"]["size"] for trial in front]
    assert sizes == sorted(sizes)


def test_behaviour_8_a_trial_that_is_told_to_stop_ends_within_one_step_and_is_pruned() -> None:
    reports: list[tuple[str, int]] = []

    def trainer(taken: dict[str, str]) -> float:
        level = 1.0 if taken["x0"] == "a" else 0.0
        for step in range(5):
            reports.append((taken["x0"], step))
            nas.report_intermediate_result(level)
        return level

    import optuna

    pruner = optuna.pruners.MedianPruner(n_startup_trials=1, n_warmup_steps=0)
    search = nas.Search(
        {"x0": nas.one_of("a", "b")}, trainer, strategy=nas.Grid(shuffle=False), pruner=pruner, store="memory"
    )
    results = search.run()
    assert [trial["state"] for trial in results["trials"]] == ["complete", "pruned"]
    assert [step for letter, step in reports if letter == "b"] == [0]
    assert results["trials"][1]["curve"] == [[0, 0.0]]


def test_behaviour_8_a_trainer_that_swallows_the_stop_is_pruned_all_the_same() -> None:
    def stubborn(taken: Any) -> float:
        try:
            nas.report_intermediate_result(math.nan)
        except Exception:
            return 1.0
        raise AssertionError("it was not told")

    assert run_one(stubborn, nonfinite="prune")["state"] == "pruned"


def test_behaviour_10_reports_survive_a_kill_and_finished_trials_are_not_run_again(tmp_path: Path) -> None:
    ran: list[int] = []

    def trainer(taken: Any) -> float:
        ran.append(1)
        nas.report_intermediate_result(float(len(ran)))
        if len(ran) == 3:
            raise Killed
        return float(len(ran))

    with pytest.raises(Killed):
        search_in(tmp_path, trainer=trainer, trials=4).run()
    left = search_in(tmp_path, trainer=trainer, trials=4).results()
    assert numbers(left) == [0, 1]
    assert (left["trials"][2]["state"], left["trials"][2]["curve"]) == ("running", [[0, 3.0]])
    results = search_in(tmp_path, trainer=trainer, trials=4).run()
    assert numbers(results) == [0, 1, 2, 3]
    assert len(ran) == 5


def test_behaviour_10_a_trial_that_was_killed_after_its_last_word_is_not_run_again(tmp_path: Path) -> None:
    def trainer(taken: Any) -> None:
        nas.report_final_result({"default": 1.5, "loss": 2.0})
        raise Killed

    with pytest.raises(Killed):
        search_in(tmp_path, trainer=trainer, trials=1).run()
    results = search_in(tmp_path, trainer=trainer, trials=1).run()
    assert results["trials"][0]["values"] == {"default": 1.5}
    assert results["trials"][0]["metrics"] == {"default": 1.5, "loss": 2.0}


def test_reports_of_a_registered_trainer_drive_a_search_of_networks() -> None:
    results = nas.Search(Net, Judge, strategy="grid", store="memory").run()
    assert len(results["trials"]) == 4  # linear, skip, deep with two activations
    assert all(len(trial["curve"]) == 3 for trial in results["trials"])
    assert results["best"]["values"]["default"] == max(trial["values"]["default"] for trial in results["trials"])


def test_report_errors_are_errors_of_treadle() -> None:
    assert issubclass(nas.ReportError, TreadleError)
    assert issubclass(nas.SearchError, TreadleError)


def test_a_failure_in_the_middle_of_a_search_is_not_the_end_of_it() -> None:
    search = nas.Search(letters(), dying_at_error(noisy, 2), trials=6, store="memory")
    results = search.run()
    assert [trial["state"] for trial in results["trials"]].count("failed") == 1
    assert len(numbers(results)) == 5


def dying_at_error(function: Any, call: int) -> Any:
    dying = dying_at(function, call)

    def failing(taken: Any) -> Any:
        try:
            return dying(taken)
        except Killed:
            raise ValueError("this one fails") from None

    return failing


# Ending a search ---------------------------------------------------------------------------------------------


def test_a_trial_may_end_the_search_and_is_run_again_when_it_goes_on(tmp_path: Path) -> None:
    ran: list[int | None] = []

    def judge(taken: Any) -> float:
        ran.append(search.current_trial())
        if ran == [0, 1, 2]:
            raise search.StopSearchError("the data are not those of the trials before")
        return vowels(taken)

    with pytest.raises(search.StopSearchError, match=r"^the data are not those of the trials before$"):
        search_in(tmp_path, trainer=judge, trials=4).run()
    assert numbers(search_in(tmp_path, trainer=judge, trials=4).run()) == [0, 1, 2, 3]
    assert ran == [0, 1, 2, 2, 3]


def test_who_listens_may_stop_a_search_which_goes_on_later(tmp_path: Path) -> None:
    def told(trial: dict[str, Any]) -> None:
        if trial["number"] == 2:
            made.stop()

    made = search_in(tmp_path, on_trial=told, duplicates="run")
    assert numbers(made.run()) == [0, 1, 2]
    assert json.loads((tmp_path / "trials.json").read_text())["state"] == "unfinished"
    assert numbers(made.run(5)) == [0, 1, 2, 3, 4]
    with pytest.raises(ConfigError, match=r"^trials=0 must be a whole number from 1 up$"):
        made.run(0)


# Any trainer -------------------------------------------------------------------------------------------------


def train(settings: dict[str, Any], folder: Path, die_after: int | None = None) -> float:
    """Train a small model, and die in an epoch of the first trial."""

    class Dying(TrainerCallback):
        def on_training_run_epoch_end(self, trainer: Trainer, **kwargs: Any) -> None:
            if trainer.progress.epoch == die_after:
                raise Killed

    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=settings["lr"])
    callbacks = (search.ReportTrialCallback(), Dying())
    run_dir = folder / "trials" / f"{search.current_trial():04d}"
    data = [(torch.tensor([float(place), 1.0]), torch.tensor([float(place)])) for place in range(8)]
    trainer = Trainer(model, nn.MSELoss(), optimizer, callbacks=callbacks, run_dir=run_dir)
    trainer.train(data, 4, eval_dataset=data, per_device_batch_size=4, resume="auto", save_every=1)
    return float(trainer.run_history.get_latest_metric("eval_loss_epoch"))


def test_a_training_of_any_trainer_is_a_trial_that_goes_on_where_it_was_killed(tmp_path: Path) -> None:
    def made(name: str, die_after: int | None = None) -> search.Search:
        folder = tmp_path / name
        judge = partial(train, folder=folder, die_after=die_after)
        space = {"lr": search.log_uniform(1e-3, 1e-2)}
        return search.Search(space, judge, objectives="minimize", trials=2, run_dir=folder, name="search")

    whole = made("whole").run()
    with pytest.raises(Killed):
        made("cut", die_after=2).run()
    again = made("cut").run()
    assert without_clocks(again) == without_clocks(whole)
    assert [step for step, _ in again["trials"][0]["curve"]] == [0, 1, 2, 3]
    assert again["trials"][0]["curve"][-1][1] == again["trials"][0]["values"]["default"]


def test_a_pruned_training_ends_in_the_middle(tmp_path: Path) -> None:
    space = {"lr": search.one_of(1e-2, 1e-5)}
    pruner = optuna.pruners.ThresholdPruner(upper=10.0, n_warmup_steps=1)
    judge = partial(train, folder=tmp_path)
    made = search.Search(space, judge, strategy="grid", objectives="minimize", pruner=pruner, run_dir=tmp_path)
    curves = {trial["parameters"]["lr"]: trial["curve"] for trial in made.run()["trials"]}
    assert {rate: len(curve) for rate, curve in curves.items()} == {1e-2: 4, 1e-5: 2}
