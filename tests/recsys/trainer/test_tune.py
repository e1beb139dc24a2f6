"""A search over settings: what it may try, that it judges by validation, prunes, and goes on after a kill."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.recsys.trainer.runs import interactions, settings
from treadle.errors import ConfigError, TreadleError
from treadle.recsys.models.general_recommender import BPR
from treadle.recsys.quick_start import build
from treadle.recsys.trainers import Trainer
from treadle.recsys.tune.search import Search, trial_folder
from treadle.recsys.tune.space import parse_space, read_space, space_of
from treadle.runs.reader import is_search
from treadle.search import SearchError

SPACE = {"learning_rate": ("log", 1e-3, 1e-1), "embedding_size": [4, 8]}

SEQUENTIAL = {
    "hidden_size": 8,
    "embedding_size": 8,
    "train_neg_sample_args": None,
    "load_col": {"inter": ["user_id", "item_id", "timestamp"]},
}
"""Settings of a small sequential model."""


def make(folder: Path, space: Any = None, **given: Any) -> Search:
    own = {
        key: given.pop(key)
        for key in ("prune", "startup_trials", "seed", "strategy", "workers", "launcher", "promotion")
        if key in given
    }
    return Search(
        space_of(SPACE if space is None else space),
        folder / "search",
        model=given.pop("model", "BPR"),
        dataset="toy",
        config_dict=settings(folder, **{"epochs": 2, **given}),
        tables={"inter": interactions()},
        **{"startup_trials": 2, **own},
    )


def test_a_search_finds_the_trial_with_the_best_validation_score(tmp_path: Path) -> None:
    told: list[str] = []
    found = make(tmp_path).run(3, tell=told.append)
    assert [trial.number for trial in found.trials] == [0, 1, 2]
    assert found.best.score == max(trial.score for trial in found.trials if trial.score is not None)
    assert found.best.result["ndcg@5"] == round(found.best.score, 4)
    assert all(1e-3 <= trial.params["learning_rate"] <= 1e-1 for trial in found.trials)
    assert len(told) == 3
    assert re.match(r"trial 0  [\d.]+s  valid_score 0\.\d+  learning_rate=", told[0])
    assert json.loads((tmp_path / "search" / "best.json").read_text())["params"] == found.best.params


def test_the_model_of_the_best_trial_is_kept_and_no_other(tmp_path: Path) -> None:
    found = make(tmp_path).run(3)
    files = sorted((tmp_path / "search" / "trials").rglob("*.pth"))
    assert [str(file) for file in files] == [found.best.model_file]


def test_the_test_part_is_never_looked_at(tmp_path: Path, monkeypatch: Any) -> None:
    evaluated: list[Any] = []
    plain = Trainer._evaluate_loader

    def noting(self: Any, loader: Any) -> Any:
        evaluated.append(loader)
        return plain(self, loader)

    monkeypatch.setattr(Trainer, "_evaluate_loader", noting)
    loaders: list[Any] = []
    monkeypatch.setattr("treadle.recsys.tune.search.build", lambda *args: loaders.append(build(*args)) or loaders[-1])
    make(tmp_path).run(2)
    assert set(evaluated) == {made[3] for made in loaders}


def summary(result: Any) -> list[Any]:
    return [(trial.number, trial.params, trial.score, trial.state, trial.result) for trial in result.trials]


def test_a_promoted_recommender_has_the_bits_of_one_that_was_never_paused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Search, "_delete_other_models", lambda search: None)
    promoted = make(tmp_path / "a", epochs=4, promotion="halving(1, 4, 2)").run(4)
    unpaused = make(tmp_path / "b", epochs=4, prune=False).run(4)
    [best] = [trial for trial in promoted.trials if trial.state == "complete"]
    assert [trial.state for trial in promoted.trials].count("pruned") == 3
    same = unpaused.trials[best.number]
    assert (best.params, best.score, best.result) == (same.params, same.score, same.result)
    own = tmp_path / "a" / "search" / "trials" / f"{best.number:04d}"
    last = [
        sorted(folder.rglob("rank_0.safetensors"))[-1]
        for folder in (own, trial_folder(tmp_path / "b" / "search", best.params))
    ]
    assert last[0].parent.name == last[1].parent.name == "step_00000016"
    assert last[0].read_bytes() == last[1].read_bytes()
    log = next(own.rglob("log.txt")).read_text()
    assert [int(step) for step in re.findall(r"resuming from step (\d+)", log)] == [4, 8]


class Killed(BaseException):
    """What a search dies of, as others die of a kill."""


@pytest.mark.parametrize("epoch", [0, 1])
def test_a_search_that_is_killed_in_the_middle_of_a_trial_ends_as_one_that_was_not(
    tmp_path: Path, monkeypatch: Any, epoch: int
) -> None:
    whole = make(tmp_path / "whole").run(4)
    plain = Trainer._valid_epoch
    evaluations: list[int] = []

    def dying(self: Any, *args: Any, **kwargs: Any) -> Any:
        evaluations.append(1)
        if len(evaluations) == 2 * 2 + 1 + epoch:
            raise Killed
        return plain(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_valid_epoch", dying)
        with pytest.raises(Killed):
            make(tmp_path / "cut").run(4)
    told: list[str] = []
    resumed = make(tmp_path / "cut").run(4, tell=told.append)
    assert told[0] == "trial 2 was cut short and is resumed"
    assert summary(resumed) == summary(whole)
    assert resumed.best.params == whole.best.params


def test_a_finished_search_goes_on_with_more_trials(tmp_path: Path) -> None:
    make(tmp_path).run(2)
    longer = make(tmp_path).run(4)
    whole = make(tmp_path / "other").run(4)
    assert summary(longer) == summary(whole)


def test_a_seed_gives_the_trials_that_it_always_gave(tmp_path: Path) -> None:
    space = {
        "learning_rate": ("log", 1e-3, 1e-1),
        "embedding_size": ("int", 4, 8),
        "weight_decay": ("loguniform", -6, -2),
        "train_batch_size": ("choice", [32, 64]),
    }
    found = make(tmp_path, space, seed=7, epochs=5, stopping_step=100, startup_trials=3).run(7)
    assert [list(trial.params.values()) for trial in found.trials] == [
        pytest.approx([0.0059190566, 8, 0.069924137, 32]),
        pytest.approx([0.0017001457, 8, 0.018449594, 32]),
        pytest.approx([0.0038012354, 5, 0.104195055, 64]),
        pytest.approx([0.0031933847, 7, 0.0047484520, 32]),
        pytest.approx([0.072548128, 5, 0.015035295, 32]),
        pytest.approx([0.059619041, 4, 0.0098277144, 32]),
        pytest.approx([0.061081500, 4, 0.069969233, 32]),
    ]
    assert [trial.state for trial in found.trials] == ["complete"] * 6 + ["pruned"]
    scores = [0.255874799, 0.258763276, 0.232646577, 0.10201913, 0.446682669, 0.286309106, 0.14368580]
    assert [trial.score for trial in found.trials] == pytest.approx(scores, rel=1e-3)


def test_settings_that_were_tried_are_not_trained_again(tmp_path: Path) -> None:
    told: list[str] = []
    found = make(tmp_path, {"embedding_size": [4, 8]}, epochs=1).run(6, tell=told.append)
    assert sorted(trial.params["embedding_size"] for trial in found.trials) == [4, 8]
    assert len(told) == 2


@pytest.mark.parametrize("strategy", ["exhaustive", "random", "grid", "tpe", "evolution", "nsga2"])
def test_every_strategy_of_a_search_tries_settings(tmp_path: Path, strategy: str) -> None:
    space = {"embedding_size": [4, 8], "train_batch_size": [32, 64]}
    found = make(tmp_path, space, epochs=1, strategy=strategy).run(3)
    tried = [(trial.params["embedding_size"], trial.params["train_batch_size"]) for trial in found.trials]
    assert len(set(tried)) == 3
    assert {trial.state for trial in found.trials} == {"complete"}
    if strategy == "exhaustive":
        assert tried == [(4, 32), (4, 64), (8, 32)]


@pytest.mark.slow
def test_trials_run_in_several_processes(tmp_path: Path) -> None:
    space = {"embedding_size": [4, 8], "train_batch_size": [32, 64]}
    found = make(tmp_path, space, strategy="exhaustive", workers=2, prune=False).run(4)
    alone = make(tmp_path / "alone", space, strategy="exhaustive", prune=False).run(4)
    assert sorted(summary(found)) == sorted(summary(alone))
    assert found.best.params == alone.best.params
    assert found.best.model_file is not None


def test_what_no_other_process_could_make_again_is_refused_before_any_trial(tmp_path: Path) -> None:
    class Own(BPR):
        pass

    with pytest.raises(ConfigError, match=r"the trainer, 'model' cannot be found again by another process"):
        make(tmp_path, model=Own, workers=2)


def test_a_mistake_in_a_model_ends_the_search_and_its_trial_is_made_once_it_is_mended(tmp_path: Path) -> None:
    class Mistaken(BPR):
        broken = True

        def __init__(self, config: Any, dataset: Any) -> None:
            if self.broken:
                raise KeyError("nothing of this name")
            super().__init__(config, dataset)

    with pytest.raises(KeyError, match="nothing of this name"):
        make(tmp_path, model=Mistaken, epochs=1).run(2)
    Mistaken.broken = False
    found = make(tmp_path, model=Mistaken, epochs=1).run(2)
    assert [(trial.number, trial.state) for trial in found.trials] == [(0, "complete"), (1, "complete")]


def test_a_search_is_found_by_who_looks_for_searches(tmp_path: Path) -> None:
    make(tmp_path, epochs=1).run(2)
    assert is_search(tmp_path / "search")
    assert {path.name for path in (tmp_path / "search" / "panels").iterdir()} == {
        "best_trials.json", "parallel_coordinates.svg", "trials.svg"
    }  # fmt: skip


def test_what_a_folder_was_begun_with_is_gone_on_with(tmp_path: Path) -> None:
    make(tmp_path, epochs=1).run(1)
    with pytest.raises(SearchError, match=r"holds a search 'BPR-toy-NDCG@5' with another seed \(0, now 3\)"):
        make(tmp_path, epochs=1, seed=3).run(2)
    older = tmp_path / "older" / "search"
    older.mkdir(parents=True)
    (older / "journal.log").touch()
    with pytest.raises(ConfigError, match=r"holds a search of an earlier version of Treadle.* in journal.log; use"):
        make(tmp_path / "older").run(1)


def test_trials_that_are_worse_than_others_are_given_up(tmp_path: Path, monkeypatch: Any) -> None:
    # The first five trials score high; those after them low from the start.
    trials: list[int] = []
    monkeypatch.setattr("treadle.recsys.tune.search.build", lambda *args: trials.append(1) or build(*args))

    def scripted(self: Any, *args: Any, **kwargs: Any) -> tuple[float, dict[str, float]]:
        score = 0.9 if len(trials) <= 5 else 0.1
        return score + 0.01 * len(self.train_loss_dict), {"ndcg@5": score}

    monkeypatch.setattr(Trainer, "_valid_epoch", scripted)
    found = make(tmp_path, epochs=8, stopping_step=100).run(6)
    assert [trial.state for trial in found.trials] == ["complete"] * 5 + ["pruned"]
    assert make(tmp_path / "never", epochs=8, stopping_step=100, prune=False).run(2).trials[1].state == "complete"


def test_a_trial_whose_settings_do_not_go_together_fails_and_the_search_goes_on(tmp_path: Path) -> None:
    found = make(tmp_path, {"embedding_size": ("choice", [-1, 8])}, seed=1).run(4)
    states = {trial.params["embedding_size"]: trial.state for trial in found.trials}
    assert states == {-1: "failed", 8: "complete"}
    assert found.best.params == {"embedding_size": 8}


def test_a_search_in_which_nothing_works_says_why(tmp_path: Path) -> None:
    with pytest.raises(TreadleError, match=r"none of 2 trials came to its end: ConfigError: embedding_size=-1"):
        make(tmp_path, {"embedding_size": [-1]}).run(2)


@pytest.mark.parametrize(
    ("space", "given", "message"),
    [
        (
            {"learning_rat": ("log", 1e-3, 1e-1)},
            {},
            r"learning_rat=0\.001 in the search space: nothing reads it; did you mean 'learning_rate'\?",
        ),
        (
            {"embedding_size": [4, 8]},
            {"epohcs": 1},
            r"epohcs=1 in config_dict: nothing reads it; did you mean 'epochs'\?",
        ),
    ],
    ids=["space", "settings"],
)
def test_a_misspelt_setting_is_told_once_and_before_any_trial(
    tmp_path: Path, space: Any, given: dict[str, Any], message: str
) -> None:
    told: list[str] = []
    with pytest.raises(ConfigError, match=message):
        make(tmp_path, space, **given).run(2, tell=told.append)
    assert not told
    assert not (tmp_path / "search").exists()


def test_settings_of_ones_own_model_can_be_searched_over(tmp_path: Path) -> None:
    class Tempered(BPR):
        def __init__(self, config: Any, dataset: Any) -> None:
            super().__init__(config, dataset)
            assert config["temperatur"] > 0

    found = make(tmp_path, {"temperatur": [1.0]}, model=Tempered, embedding_size=4, epochs=1).run(1)
    assert [trial.state for trial in found.trials] == ["complete"]


def test_settings_of_data_can_be_searched_over(tmp_path: Path) -> None:
    space = {"MAX_ITEM_LIST_LENGTH": [3, 6], "train_batch_size": [32, 64]}
    found = make(tmp_path, space, model="GRU4Rec", **SEQUENTIAL).run(3)
    assert {trial.state for trial in found.trials} == {"complete"}
    assert {trial.params["MAX_ITEM_LIST_LENGTH"] for trial in found.trials} == {3, 6}


def test_a_search_does_not_compare_scores_that_were_measured_differently(tmp_path: Path) -> None:
    for name, choices, what in (
        ("eval_args", [{"mode": "full"}, {"mode": "uni100"}], "what is measured"),
        ("topk", [[5], [10]], "what is measured"),
        ("repeatable", [True, False], "what is measured"),
        ("user_inter_num_interval", ["[0,inf)", "[5,inf)"], "which rows are judged"),
        ("split_seed", ("int", 1, 9), "which rows are judged"),
    ):
        with pytest.raises(ConfigError, match=f"{name} cannot be searched over: it decides {what}, .* one value"):
            make(tmp_path, {name: choices if isinstance(choices, tuple) else ("choice", choices)})
    assert make(tmp_path, {"repeatable": [True]}).space


def test_a_seed_is_searched_over_only_where_the_split_has_its_own(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"seed cannot be searched over while it decides the split too: .*split_seed"):
        make(tmp_path, {"seed": [1, 2]})
    found = make(tmp_path, {"seed": [1, 2]}, split_seed=5, embedding_size=4, epochs=1).run(2)
    assert {trial.state for trial in found.trials} == {"complete"}
    assert make(tmp_path, {"seed": [1, 2], "split_seed": [5]}).space


def test_a_search_goes_on_with_its_own_settings_alone(tmp_path: Path) -> None:
    make(tmp_path, train_batch_size=32).run(1)
    for given, message in (
        ({"train_batch_size": 64}, r"holds a search with train_batch_size=32, and now it is 64: .* another folder"),
        ({"repeatable": True, "train_batch_size": 32}, r"holds a search with repeatable=False, and now it is True"),
        (
            {"space": {"learning_rate": ("log", 1e-3, 1e-1)}, "train_batch_size": 32, "embedding_size": 8},
            r"searched={'learning_rate': 'log', 'embedding_size': \[4, 8\]}, and now it is {'learning_rate': 'log'}",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            make(tmp_path, **given).run(2)
    found = make(tmp_path, train_batch_size=32, show_progress=True, state="WARNING", worker=0).run(2)
    assert len(found.trials) == 2


def test_a_search_judges_all_trials_on_the_same_rows(tmp_path: Path) -> None:
    def search(number: int) -> Search:
        return Search(
            space_of({"learning_rate": [1e-3, 1e-2]}),
            tmp_path / "search",
            model="BPR",
            dataset="toy",
            config_dict=settings(tmp_path, epochs=1, embedding_size=4),
            tables={"inter": {name: column[:number] for name, column in interactions().items()}},
        )

    before = search(200).run(1)
    with pytest.raises(ConfigError, match=r"the trials before were judged on other rows of toy than this one, and"):
        search(180).run(2)
    after = search(200).run(2)
    assert summary(after)[:1] == summary(before)
    assert [trial.state for trial in after.trials] == ["complete"] * 2


def test_other_values_of_a_searched_setting_need_another_folder(tmp_path: Path) -> None:
    make(tmp_path).run(1)
    with pytest.raises(ConfigError, match=r"'embedding_size': \[4, 8\].*\[4, 8, 16\].* another folder"):
        make(tmp_path, {**SPACE, "embedding_size": [4, 8, 16]}).run(2)
    wider = make(tmp_path, {**SPACE, "learning_rate": ("log", 1e-4, 1e-1)}).run(2)
    assert len(wider.trials) == 2


def test_lists_can_be_chosen_from(tmp_path: Path) -> None:
    space = {"mlp_hidden_size": ("choice", [[8], [8, 4]])}
    found = make(tmp_path, space, model="MultiVAE", latent_dimension=4).run(2)
    assert all(trial.params["mlp_hidden_size"] in ([8], [8, 4]) for trial in found.trials)


# The space ----------------------------------------------------------------------------------------------------

LINES = """
learning_rate loguniform -8,0   # as in RecBole
embedding_size choice [64, 96, 128]
mlp_hidden_size choice ['[64, 64]','[128]']
dropout quniform 0,0.5,0.1
weight_decay log 1e-6,1e-2
n_layers int 1,4
"""


def test_recboles_lines_are_read_without_evaluating_them(tmp_path: Path) -> None:
    (tmp_path / "hyper.test").write_text(LINES)
    space = {one.name: (one.kind, one.values) for one in read_space(tmp_path / "hyper.test")}
    assert space == {
        "learning_rate": ("loguniform", (-8, 0)),
        "embedding_size": ("choice", (64, 96, 128)),
        "mlp_hidden_size": ("choice", ([64, 64], [128])),
        "dropout": ("quniform", (0, 0.5, 0.1)),
        "weight_decay": ("log", (1e-6, 1e-2)),
        "n_layers": ("int", (1, 4)),
    }


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("learning_rate loguniorm -8,0", "learning_rate: the search knows no 'loguniorm'; did you mean 'loguniform'?"),
        ("learning_rate log 0,1", "learning_rate log '0,1': give low,high, two numbers of which the first is lower"),
        ("dropout quniform 0,1", "dropout quniform '0,1': give low,high,step"),
        ("size choice 64", "size choice '64': give a list of values"),
        ("size choice", "lines: 'size choice' is no setting to search; write `name kind values`"),
        ("size int 1,2\nsize int 1,3", "lines: size is there twice; give each setting one line"),
        ("# nothing", "lines: there is nothing to search"),
    ],
)
def test_a_line_that_cannot_be_meant_is_refused(line: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_space(line.splitlines(), where="lines")
    assert str(caught.value).startswith(message)


def test_what_a_search_cannot_do_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="checkpoint_dir cannot be searched over"):
        make(tmp_path, {"checkpoint_dir": ["a"]})
    with pytest.raises(ConfigError, match="eval_step=0: a search judges by validation"):
        make(tmp_path, eval_step=0)
    with pytest.raises(ConfigError, match=r"strategy='bays' is unknown; did you mean 'bayes'\?"):
        make(tmp_path, strategy="bays")
    with pytest.raises(ConfigError, match="trials=0: make at least one"):
        make(tmp_path).run(0)
    with pytest.raises(ConfigError, match="the search space is empty"):
        make(tmp_path, {})
    with pytest.raises(ConfigError, match=r"the search space .*nowhere cannot be read"):
        read_space(tmp_path / "nowhere")
