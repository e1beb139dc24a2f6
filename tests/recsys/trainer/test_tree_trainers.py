"""Trainers of trees: one boosting run, by rounds, equal to the library called by hand, and exactly resumable."""

import builtins
import json
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pytest
import xgboost

from tests.interrupting import CutError, metric_lines
from tests.recsys.trainer.runs import interactions
from tests.recsys.trainer.trees import LIBRARIES, SAMPLING, cut_and_resumed, make, table
from treadle.callback import TrainerCallback
from treadle.errors import CheckpointError, ConfigError, DataError, MissingDependencyError
from treadle.recsys import (
    Config,
    DecisionTreeTrainer,
    create_dataset,
    data_preparation,
    get_model,
    get_trainer,
    load_data_and_model,
)

PREFIX = {"LightGBM": "lgb", "XGBoost": "xgb"}


def by_hand(run: Any, part: str) -> tuple[Any, Any]:
    """Return the rows of a part as somebody would make them who knows nothing of Treadle but the split."""
    data = getattr(run, part).dataset
    appeared = dict.fromkeys(one for one in table()["colour"] if one is not None)
    known = {one: place for place, one in enumerate(appeared, start=1)}
    colours = [known.get(str(one), np.nan) for one in data.id2token("colour", data.inter_feat["colour"])]
    columns = [data.inter_feat["price"].numpy(), np.array(colours, np.float32)]
    return np.stack(columns, axis=1).astype(np.float32), data.inter_feat["label"].numpy()


def hand_trained(name: str, run: Any, rounds: int, **more: Any) -> Any:
    """Return the library's own booster, trained by its own `train` on those rows."""
    parameters = dict(run.trainer._params)
    features, labels = by_hand(run, "train")
    watched, answers = by_hand(run, "valid")
    if name == "LightGBM":
        train = lightgbm.Dataset(features, labels, categorical_feature=[1])
        valid = lightgbm.Dataset(watched, answers, reference=train)
        return lightgbm.train(parameters, train, rounds, valid_sets=[valid], **more)
    kinds = {"feature_types": ["q", "c"], "enable_categorical": True}
    train, valid = xgboost.DMatrix(features, labels, **kinds), xgboost.DMatrix(watched, answers, **kinds)
    return xgboost.train(parameters, train, rounds, evals=[(valid, "valid")], verbose_eval=False, **more)


def hand_predictions(name: str, booster: Any, run: Any, rounds: int) -> Any:
    features, _ = by_hand(run, "test")
    if name == "LightGBM":
        return booster.predict(features, num_iteration=rounds)
    rows = xgboost.DMatrix(features, feature_types=["q", "c"], enable_categorical=True)
    return booster.predict(rows, iteration_range=(0, rounds))


def predictions(run: Any) -> Any:
    return run.model.predict(run.test.dataset[np.arange(len(run.test.dataset))]).numpy()


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_run_is_the_library_called_by_hand(name: str, tmp_path: Path) -> None:
    run = make(tmp_path, name)
    run.fit()
    expected = hand_predictions(name, hand_trained(name, run, 8), run, 8)
    np.testing.assert_array_equal(predictions(run), expected.astype(np.float32))
    assert run.model.grown().rounds() == 8


@pytest.mark.parametrize("name", LIBRARIES)
def test_the_library_itself_stops_early_on_the_validation_part(name: str, tmp_path: Path) -> None:
    given = {f"{PREFIX[name]}_num_boost_round": 60, f"{PREFIX[name]}_early_stopping_rounds": 3}
    run = make(tmp_path, name, **given)
    score, result = run.fit()
    callbacks = {
        "LightGBM": lambda: lightgbm.early_stopping(3, first_metric_only=True, verbose=False),
        "XGBoost": lambda: xgboost.callback.EarlyStopping(rounds=3),
    }
    hand = hand_trained(name, run, 60, callbacks=[callbacks[name]()])
    best = hand.best_iteration + (name == "XGBoost")
    assert run.model.grown().rounds() == best < run.trainer.rounds.done == best + 3 < 60
    np.testing.assert_array_equal(predictions(run), hand_predictions(name, hand, run, best).astype(np.float32))
    # What the library said of its best round, and what the trainer's own evaluation says of the best booster.
    watched = {one.metric: one.value for one in run.trainer.rounds.evaluations[best - 1]}
    assert score == pytest.approx(watched["auc"], abs=1e-6)
    assert result.exact["auc"] == score


@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("given", ["plain", "restarts"])
def test_a_run_that_is_cut_ends_with_the_booster_of_one_that_is_not(name: str, given: str, tmp_path: Path) -> None:
    settings = {} if given == "plain" else {**SAMPLING[name], "restart_rounds": 3}
    whole = make(tmp_path / "whole", name, **settings, run_dir=str(tmp_path / "whole" / "run"))
    whole.fit()
    resumed = cut_and_resumed(tmp_path / "cut", name, 5, **settings)
    assert metric_lines(tmp_path / "cut" / "run") == metric_lines(tmp_path / "whole" / "run")
    assert resumed.model.grown().text == whole.model.grown().text
    assert resumed.trainer.rounds.evaluations == whole.trainer.rounds.evaluations
    assert resumed.trainer.best_valid_score == whole.trainer.best_valid_score


def test_a_run_that_is_cut_behind_its_last_round_has_nothing_left_but_its_end(tmp_path: Path) -> None:
    class AtTheEnd(TrainerCallback):
        def on_train_epoch_end(self, trainer: Any, **kwargs: Any) -> None:
            raise CutError

    given = {"run_dir": str(tmp_path / "run"), "save_every": "8 steps"}
    cut = make(tmp_path, "LightGBM", AtTheEnd(), **given)
    with pytest.raises(CutError):
        cut.fit()
    resumed = make(tmp_path, "LightGBM", **given)
    resumed.fit()
    assert resumed.updates == (8, 0)
    assert resumed.model.grown().text == cut.model.grown().text


def test_a_forest_which_lightgbm_cannot_add_to_is_grown_again(tmp_path: Path) -> None:
    params = {**SAMPLING["LightGBM"]["lgb_params"], "boosting": "rf"}
    whole = make(tmp_path / "whole", "LightGBM", lgb_params=params)
    whole.fit()
    resumed = cut_and_resumed(tmp_path / "cut", "LightGBM", 5, lgb_params=params)
    assert resumed.model.grown().text == whole.model.grown().text


@pytest.mark.parametrize("name", LIBRARIES)
def test_early_stopping_goes_on_where_a_cut_left_it(name: str, tmp_path: Path) -> None:
    given = {f"{PREFIX[name]}_num_boost_round": 60, f"{PREFIX[name]}_early_stopping_rounds": 3}
    whole = make(tmp_path / "whole", name, **given)
    whole.fit()
    last = whole.trainer.rounds.done - 1
    resumed = cut_and_resumed(tmp_path / "cut", name, last, **given)
    assert resumed.trainer.rounds.done == last + 1
    assert resumed.model.grown().text == whole.model.grown().text


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_resume_that_is_not_exact_says_so(name: str, tmp_path: Path) -> None:
    cut_and_resumed(tmp_path, name, 4, **SAMPLING[name])
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "resumed, but not bit for bit: with these parameters the library draws random numbers" in log
    assert "set restart_rounds, such as 50" in log


def test_a_run_without_sampling_says_nothing_of_the_kind(tmp_path: Path) -> None:
    cut_and_resumed(tmp_path, "LightGBM", 4)
    assert "not bit for bit" not in (tmp_path / "run" / "log.txt").read_text()


def test_a_run_of_other_parameters_is_not_gone_on_with(tmp_path: Path) -> None:
    given = {"run_dir": str(tmp_path / "run")}
    make(tmp_path, "LightGBM", **given).fit()
    with pytest.raises(CheckpointError, match=r"num_leaves is 5 now and was 7|num_leaves"):
        make(tmp_path, "LightGBM", **given, lgb_params={"num_leaves": 5}).fit()


@pytest.mark.parametrize("name", LIBRARIES)
def test_each_round_is_a_step_with_the_metrics_of_the_library(name: str, tmp_path: Path) -> None:
    run = make(tmp_path, name, run_dir=str(tmp_path / "run"))
    run.fit()
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    curve = {line["step"]: line["valid/auc"] for line in lines if "valid/auc" in line}
    watched = [{one.metric: one.value for one in found}["auc"] for found in run.trainer.rounds.evaluations]
    assert curve == pytest.approx(dict(enumerate(watched, start=1)), abs=1e-9)
    assert run.trainer._core.progress.samples == 8 * len(run.train.dataset)


@pytest.mark.parametrize("name", LIBRARIES)
def test_the_booster_lies_beside_the_model_in_the_format_of_the_library(name: str, tmp_path: Path) -> None:
    run = make(tmp_path, name)
    run.fit()
    file = Path(run.trainer.saved_model_file)
    own = file.with_suffix({"LightGBM": ".txt", "XGBoost": ".json"}[name])
    features, _ = by_hand(run, "test")
    if name == "LightGBM":
        found = lightgbm.Booster(model_file=str(own)).predict(features)
    else:
        booster = xgboost.Booster(model_file=str(own))
        kinds = {"feature_names": ["price", "colour"], "feature_types": ["q", "c"], "enable_categorical": True}
        found = booster.predict(xgboost.DMatrix(features, **kinds))
    np.testing.assert_array_equal(predictions(run), found.astype(np.float32))
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".pkl", ".pickle")]


@pytest.mark.parametrize("name", LIBRARIES)
def test_the_file_of_a_model_brings_its_trees_back(name: str, tmp_path: Path) -> None:
    run = make(tmp_path, name)
    run.fit()
    data = run.train.dataset
    _, model, _, _, _, test = load_data_and_model(run.trainer.saved_model_file, dataset=_whole(tmp_path, name))
    assert model.grown().text == run.model.grown().text
    assert data.num("colour") == 5
    assert run.trainer.evaluate(test) == run.trainer.evaluate(run.test)


def _whole(folder: Path, name: str) -> Any:
    """Return the data set again, not divided."""
    return create_dataset(make(folder, name).trainer.config, inter=table())


@pytest.mark.parametrize("name", LIBRARIES)
def test_boosting_goes_on_from_a_file_of_the_library(name: str, tmp_path: Path) -> None:
    prefix = PREFIX[name]
    whole = make(tmp_path / "whole", name)
    whole.fit()
    first = make(tmp_path / "first", name, **{f"{prefix}_num_boost_round": 5})
    first.fit()
    start = first.model.save_booster(tmp_path / "start")
    more = {f"{prefix}_model": str(start), f"{prefix}_num_boost_round": 3}
    second = make(tmp_path / "second", name, **more)
    second.fit()
    assert second.model.grown().rounds() == 8
    np.testing.assert_array_equal(predictions(second), predictions(whole))


@pytest.mark.parametrize(("given", "told"), [(3, [3, 6, 8]), (True, list(range(1, 9))), (False, [8]), (None, [8])])
def test_a_line_is_printed_every_few_rounds_and_after_the_last(
    given: Any, told: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path, "XGBoost", xgb_verbose_eval=given).fit(verbose=True)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("round ")]
    assert [line.split()[1] for line in lines] == [f"{done}/8" for done in told]


def test_trees_rank_items_too(tmp_path: Path) -> None:
    given = {
        "checkpoint_dir": str(tmp_path),
        "train_neg_sample_args": {"distribution": "uniform", "sample_num": 2},
        "eval_args": {"mode": {"valid": "uni5", "test": "full"}, "group_by": "user"},
        "metrics": ["NDCG", "Hit"],
        "topk": [5],
        "valid_metric": "NDCG@5",
        "lgb_num_boost_round": 30,
        "show_progress": False,
        "use_gpu": False,
        "lgb_params": {"min_data_in_leaf": 5},
    }
    config = Config("LightGBM", "tiny", config_dict=given)
    # Everybody takes nearly all of the first ten items and little else, which trees can see.
    pairs = [(user, item) for user in range(20) for item in range(30) if (user + item) % (9 if item < 10 else 11) == 0]
    liked = [(user, item) for user in range(20) for item in range(10) if (user + item) % 9]
    users, items = zip(*(liked + [pair for pair in pairs if pair[1] >= 10]), strict=True)
    rows = {"user_id": list(map(str, users)), "item_id": list(map(str, items))}
    train, valid, test = data_preparation(config, create_dataset(config, inter=rows))
    trainer = get_trainer(config, get_model("LightGBM")(config, train.dataset))
    score, _ = trainer.fit(train, valid, verbose=False)
    assert trainer.rounds.boosting.train.labels.mean() == pytest.approx(1 / 3)
    assert score > 0.7
    assert trainer.evaluate(test)["hit@5"] > 0.6


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_library_that_is_not_installed_is_named_with_its_extra(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make(tmp_path, name)
    known = builtins.__import__

    def without(module: str, *rest: Any) -> Any:
        if module == name.lower():
            raise ImportError(module)
        return known(module, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingDependencyError, match=rf"the model {name} needs .*pip install 'treadle\[trees\]'"):
        run.fit()


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("LightGBM", {"lgb_params": {"num_trees": 5}}, "lgb_params has 'num_trees'; set lgb_num_boost_round instead"),
        ("XGBoost", {"xgb_params": {"n_estimators": 5}}, "'n_estimators'; set xgb_num_boost_round instead"),
        ("LightGBM", {"lgb_params": {"num_class": 3}}, "num_class=3; a recommender has one score a row"),
        ("LightGBM", {"lgb_params": {"num_classes": 3}}, "num_class=3; a recommender has one score a row"),
        ("LightGBM", {"lgb_params": {"objective": "nonsense"}}, "LightGBM does not take these parameters or rows"),
        ("XGBoost", {"xgb_params": {"objective": "nonsense"}}, "XGBoost does not take these parameters"),
        ("LightGBM", {"lgb_num_boost_round": 0}, "lgb_num_boost_round=0 must be a whole number from 1$"),
        ("XGBoost", {"xgb_early_stopping_rounds": "x"}, "early_stopping_rounds='x' must be .* from 1, or nothing"),
        ("LightGBM", {"restart_rounds": 0}, "restart_rounds=0 must be a whole number from 1, or nothing"),
        ("LightGBM", {"lgb_model": "nowhere.txt"}, "lgb_model='nowhere.txt' cannot be read: No such file"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_a_setting_that_cannot_be_meant_is_refused(
    name: str, given: dict[str, Any], message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match=message):
        make(tmp_path, name, **given).fit()


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_file_that_is_no_booster_is_refused(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "start").write_text("something else")
    with pytest.raises(DataError, match=f"this is no booster of {name}"):
        make(tmp_path, name, **{f"{PREFIX[name]}_model": str(tmp_path / "start")}).fit()


def test_early_stopping_without_labels_is_refused(tmp_path: Path) -> None:
    given = {
        "train_neg_sample_args": {"distribution": "uniform"},
        "eval_args": {"mode": "full", "group_by": "user"},
        "metrics": ["NDCG"],
        "topk": [5],
        "valid_metric": "NDCG@5",
        "checkpoint_dir": str(tmp_path),
        "use_gpu": False,
    }
    config = Config("LightGBM", "tiny", config_dict=given)
    train, valid, _ = data_preparation(config, create_dataset(config, inter=interactions()))
    trainer = get_trainer(config, get_model("LightGBM")(config, train.dataset))
    with pytest.raises(ConfigError, match="lgb_early_stopping_rounds=50: the library stops early by rows with labels"):
        trainer.fit(train, valid, verbose=False)


def test_trees_that_are_not_grown_score_nothing(tmp_path: Path) -> None:
    run = make(tmp_path, "LightGBM")
    with pytest.raises(ConfigError, match="LightGBM has no trees yet; call fit of its trainer, or load a model file"):
        predictions(run)


def test_a_trainer_without_a_library_says_what_it_lacks(tmp_path: Path) -> None:
    class Own(DecisionTreeTrainer):
        prefix = "lgb"

    run = make(tmp_path, "LightGBM")
    with pytest.raises(NotImplementedError, match="Own does not say with _boosting which library grows its trees"):
        Own(run.trainer.config, run.model).fit(run.train, run.valid, verbose=False)
