"""`HyperTuning` as programs written for RecBole use it."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.recsys.data.small import write_table
from tests.recsys.trainer.runs import interactions, settings
from treadle.errors import ConfigError
from treadle.recsys import compat, objective_function

with compat.recbole_names():
    from recbole.quick_start import objective_function as recbole_objective
    from recbole.trainer import HyperTuning
    from recbole.trainer.hyper_tuning import ExhaustiveSearchError, exhaustive_search

Trials = list[dict[str, Any]]


def counting(made: Trials, *, bigger: bool = True) -> Any:
    """Return an objective that is best where `a` is 2 and `b` is near 0.3, and notes what it was asked."""

    def objective(config_dict: Any, config_file_list: Any) -> dict[str, Any]:
        made.append({**config_dict, "files": config_file_list})
        score = -((config_dict["a"] - 2) ** 2) - abs(config_dict.get("b", 0.3) - 0.3)
        return {
            "model": "BPR",
            "best_valid_score": score if bigger else -score,
            "valid_score_bigger": bigger,
            "best_valid_result": {"ndcg@5": score},
            "test_result": {"ndcg@5": score - 1},
        }

    return objective


@pytest.mark.parametrize("bigger", [True, False])
def test_all_combinations_are_tried_and_the_best_is_kept(bigger: bool, tmp_path: Path, capsys: Any) -> None:
    made: Trials = []
    (tmp_path / "hyper.test").write_text("a choice [1,2,3]\nb quniform 0.1,0.3,0.1\n")
    tuning = HyperTuning(
        objective_function=counting(made, bigger=bigger),
        algo="exhaustive",
        early_stop=10,
        max_evals=100,
        params_file=tmp_path / "hyper.test",
        fixed_config_file_list=["own.yaml"],
        display_file=tmp_path / "trials.html",
    )
    assert tuning.max_evals == 9
    tuning.run()
    assert [(one["a"], round(one["b"], 1)) for one in made] == [(a, b) for a in (1, 2, 3) for b in (0.1, 0.2, 0.3)]
    assert made[0]["files"] == ["own.yaml"]
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].endswith(", the best so far")
    assert printed[-1].startswith("trial 9: a:3, b:")
    assert tuning.best_params["a"] == 2
    assert tuning.best_params["b"] == pytest.approx(0.3)
    assert tuning.best_score == pytest.approx(0.0, abs=1e-9)
    assert tuning.best_test_result == pytest.approx({"ndcg@5": -1.0})
    best = tuning.params2result[tuning.params2str(tuning.best_params)]
    assert best["test_result"] == tuning.best_test_result
    tuning.export_result(output_file=tmp_path / "hyper.result")
    text = (tmp_path / "hyper.result").read_text()
    assert text.startswith("a:1, b:0.1\nValid result:\nndcg@5 : ")
    assert text.count("Test result:") == 9
    assert "BPR tuning" in (tmp_path / "trials.html").read_text()


@pytest.mark.parametrize("algo", ["random", "bayes"])
def test_a_space_without_end_is_drawn_from(algo: str) -> None:
    made: Trials = []
    params = {"choice": {"a": [1, 2]}, "uniform": {"b": [0.0, 1.0]}, "loguniform": {"c": [-3, 0]}}
    tuning = HyperTuning(counting(made), params_dict=params, algo=algo, max_evals=12, early_stop=50)
    tuning.run()
    assert len(made) == len(tuning.score_list) == 12
    assert {one["a"] for one in made} == {1, 2}
    assert all(0 <= one["b"] <= 1 and math.exp(-3) <= one["c"] <= 1 for one in made)
    assert tuning.best_score == max(tuning.score_list)
    again: Trials = []
    HyperTuning(counting(again), params_dict=params, algo=algo, max_evals=12, early_stop=50).run()
    assert again == made


def test_a_search_ends_when_the_last_trials_were_none_the_better() -> None:
    made: Trials = []
    HyperTuning(counting(made), space={"a": [2, 3, 4, 5, 6, 7]}, early_stop=3).run()
    assert [one["a"] for one in made] == [2, 3, 4, 5]


def test_what_cannot_be_searched_is_refused() -> None:
    made: Trials = []
    endless = {"uniform": {"b": [0, 1]}}
    with pytest.raises(ExhaustiveSearchError, match=r"tries all combinations, and \['b'\] have no end of values"):
        HyperTuning(counting(made), params_dict=endless)
    with pytest.raises(ConfigError, match=r"algo='grid' does not exist; there are \['exhaustive', 'random', 'bayes'\]"):
        HyperTuning(counting(made), space={"a": [1]}, algo="grid")
    with pytest.raises(ConfigError, match="there is nothing to try: pass space, params_file or params_dict"):
        HyperTuning(counting(made))
    with pytest.raises(ConfigError, match="space= takes the choices of each setting"):
        HyperTuning(counting(made), space={"a": object()})
    with pytest.raises(ConfigError, match="topk cannot be searched over: it decides what is measured"):
        HyperTuning(counting(made), space={"topk": [[5], [10]]})
    with pytest.raises(ConfigError, match="seed cannot be searched over while it decides the split too"):
        HyperTuning(counting(made), space={"seed": [1, 2]})
    assert HyperTuning(counting(made), space={"seed": [1, 2], "split_seed": [5]}).max_evals == 2
    with pytest.raises(ConfigError, match="proposes trials to hyperopt; here HyperTuning"):
        exhaustive_search([], None, None, 0)


def test_real_trainings_are_tried(tmp_path: Path) -> None:
    header = ("user_id:token", "item_id:token", "rating:float", "timestamp:float")
    write_table(tmp_path / "data" / "toy", "toy.inter", header, zip(*interactions().values(), strict=True))
    given = settings(tmp_path, data_path=str(tmp_path / "data"), embedding_size=8, epochs=1)
    lines = [f"{name}: {value!r}" for name, value in {**given, "model": "BPR", "dataset": "toy"}.items()]
    (tmp_path / "own.yaml").write_text("\n".join(lines).replace("True", "true").replace("False", "false") + "\n")
    assert recbole_objective is objective_function
    tuning = HyperTuning(
        recbole_objective,
        params_dict={"choice": {"learning_rate": [0.001, 0.05]}},
        fixed_config_file_list=[tmp_path / "own.yaml"],
    )
    tuning.run()
    assert tuning.best_params in ({"learning_rate": 0.001}, {"learning_rate": 0.05})
    assert tuning.best_score == max(tuning.score_list) > 0
    assert set(tuning.best_test_result) == {"recall@5", "ndcg@5", "mrr@5"}


@pytest.mark.parametrize(
    ("algo", "first", "last"),
    [
        ("random", (1, 0.514342231, 0.6649555013, 0.5, 1), (2, 0.601591896, 0.3001765218, 0.5, 4)),
        ("bayes", (1, 0.271835714, 0.136798831, 0.25, 2), (2, 0.207468014, 0.373668586, 1.0, 4)),
    ],
)
def test_a_seed_gives_the_trials_that_it_always_gave(algo: str, first: Any, last: Any) -> None:
    made: Trials = []
    params = {
        "choice": {"a": [1, 2, 3]},
        "uniform": {"b": [0.0, 1.0]},
        "loguniform": {"c": [-3, 0]},
        "quniform": {"d": [0, 1, 0.25]},
        "int": {"e": [1, 5]},
    }
    HyperTuning(counting(made), params_dict=params, algo=algo, max_evals=25, early_stop=50).run()
    tried = [tuple(one[name] for name in "abcde") for one in made]
    assert len(tried) == 25
    assert (tried[0], tried[-1]) == (pytest.approx(first, rel=1e-7), pytest.approx(last, rel=1e-7))


def test_what_the_objective_raises_is_raised() -> None:
    def broken(config_dict: Any, config_file_list: Any) -> dict[str, Any]:
        raise KeyError("best_valid_score")

    with pytest.raises(KeyError, match="best_valid_score"):
        HyperTuning(broken, space={"a": [1, 2]}).run()


def test_choices_may_be_numbers_of_numpy() -> None:
    made: Trials = []
    HyperTuning(counting(made), space={"a": list(np.arange(1, 4))}).run()
    assert [one["a"] for one in made] == [1, 2, 3]
