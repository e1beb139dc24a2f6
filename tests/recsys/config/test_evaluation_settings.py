"""Metrics, cut-offs, splits, modes and negatives: brought into one form, or refused before any work."""

from typing import Any

import pytest

from tests.recsys.data.small import Context, General, Sequential
from treadle.errors import ConfigError, UnknownMetricError
from treadle.recsys import Config, EvaluatorType
from treadle.recsys.evaluation import register_metric


def made(model: Any = General, **settings: Any) -> Config:
    return Config(model, "toy", config_dict=settings)


def test_one_metric_and_one_cut_off_become_lists() -> None:
    config = made(metrics="ndcg", topk=5, valid_metric="ndcg@5")
    assert (config["metrics"], config["topk"]) == (["ndcg"], [5])


def test_a_metric_of_ones_own_can_be_asked_for() -> None:
    @register_metric("Tasteless", smaller=True, replace=True)
    def tasteless(ranking: Any, k: int) -> Any: ...

    config = made(metrics=["Recall", "Tasteless"], valid_metric="Tasteless@10")
    assert config["valid_metric_bigger"] is False


@pytest.mark.parametrize(("metric", "bigger"), [("AUC", True), ("LogLoss", False), ("RMSE", False)])
def test_whether_bigger_is_better_follows_from_the_metric(metric: str, bigger: bool) -> None:
    config = made(Context, metrics=[metric], valid_metric=metric, valid_metric_bigger=not bigger)
    assert config["valid_metric_bigger"] is bigger
    assert config["eval_type"] is EvaluatorType.VALUE


def test_a_valid_metric_that_is_not_computed_is_an_error_before_training() -> None:
    with pytest.raises(UnknownMetricError) as error:
        made(metrics=["Recall", "NDCG"], topk=[10], valid_metric="NDCG@20")
    assert str(error.value) == (
        "valid_metric='NDCG@20' is not calculated, but ['recall@10', 'ndcg@10'] are; add 20 to topk"
    )
    with pytest.raises(UnknownMetricError, match=r"valid_metric='MRR@10' is not calculated.*choose one of these"):
        made(metrics=["Recall"])
    with pytest.raises(UnknownMetricError, match="did you mean 'recall@10'"):
        made(metrics=["Recall"], valid_metric="recal@10")


def test_labels_and_ranks_can_be_asked_for_together_where_negatives_are_drawn() -> None:
    config = made(metrics=["Recall", "AUC"], valid_metric="AUC", eval_args={"mode": "uni100"})
    assert config["eval_type"] is EvaluatorType.RANKING


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"metrics": ["Recal"]}, "there is no metric 'Recal'; did you mean 'recall'?"),
        ({"metrics": []}, "metrics is empty; name at least one, such as 'NDCG'"),
        ({"topk": [0]}, "topk=[0]: 0 is no length of a list; give whole numbers from 1 on"),
        ({"topk": [5, 1.5]}, "topk=[5, 1.5]: 1.5 is no length of a list; give whole numbers from 1 on"),
        ({"topk": []}, "topk=[] must be a whole number from 1, or a list of them"),
        ({"topk": None}, "topk=None must be a whole number from 1, or a list of them"),
        (
            {"metrics": ["AUC"], "valid_metric": "AUC"},
            "eval_args.mode is 'full' for valid, and metrics has ['AUC'], which need labels; rank among sampled items "
            "('uni100') or use 'labeled'",
        ),
        (
            {"eval_args": {"mode": {"valid": "uni5", "test": "labeled"}}, "metrics": ["MRR"]},
            "eval_args.mode is 'labeled' for test, and metrics has ['MRR'], which rank items; use 'full' or 'uni100', "
            "or metrics such as AUC",
        ),
        ({"eval_args": "full"}, "eval_args='full' must be a dict with the keys ['split', 'order', 'group_by', 'mode']"),
        ({"eval_args": {"modes": "full"}}, "eval_args has no 'modes'; did you mean 'mode'?"),
        ({"eval_args": {"order": "random"}}, "eval_args.order='random' does not exist; there are ['RO', 'TO']"),
        ({"eval_args": {"group_by": "users"}}, "eval_args.group_by='users' does not exist; did you mean 'user'?"),
        (
            {"eval_args": {"mode": "uni"}},
            "evaluation mode 'uni': choose 'full', 'labeled', 'uniN' or 'popN' with the number of negatives for each "
            "positive, such as 'uni100'",
        ),
        (
            {"eval_args": {"mode": {"vaild": "full"}}},
            "eval_args.mode has no 'vaild'; did you mean 'valid'?",
        ),
        ({"eval_args": {"mode": 3}}, "eval_args.mode=3 must be text, or a dict with the keys valid and test"),
        (
            {"eval_args": {"split": {"RS": [0.8, 0.2]}}},
            "eval_args.split.RS=[0.8, 0.2] must be three shares, for train, valid and test",
        ),
        (
            {"eval_args": {"split": {"RS": [0, 0.5, 0.5]}}},
            "eval_args.split.RS=[0, 0.5, 0.5] must be three shares, for train, valid and test",
        ),
        (
            {"eval_args": {"split": {"LS": "both"}}},
            "eval_args.split.LS='both' does not exist; there are ['valid_and_test', 'valid_only', 'test_only']",
        ),
        (
            {"eval_args": {"split": {"RS": [1, 1, 1], "LS": "test_only"}}},
            "eval_args.split={'RS': [1, 1, 1], 'LS': 'test_only'} must be one of {'RS': [0.8, 0.1, 0.1]}, "
            "{'LS': 'valid_and_test'} and {'TS': [0.8, 0.1, 0.1]}",
        ),
        ({"cold_users": "ignore"}, "cold_users='ignore' does not exist; there are ['error', 'drop', 'keep']"),
        (
            {"train_neg_sample_args": "uniform"},
            "train_neg_sample_args='uniform' must be a dict, such as {'distribution': 'uniform'}",
        ),
        (
            {"train_neg_sample_args": {"distribution": "uniformly"}},
            "train_neg_sample_args.distribution='uniformly' does not exist; did you mean 'uniform'?",
        ),
        (
            {"train_neg_sample_args": {"sample_nums": 3}},
            "train_neg_sample_args has no 'sample_nums'; did you mean 'sample_num'?",
        ),
        (
            {"train_neg_sample_args": {"sample_num": 0}},
            "train_neg_sample_args.sample_num=0 must be a whole number from 1",
        ),
        (
            {"train_neg_sample_args": {"dynamic": True}},
            "train_neg_sample_args.candidate_num=0 must be a whole number from 1",
        ),
        (
            {"train_neg_sample_args": {"distribution": "popularity", "alpha": "x"}},
            "train_neg_sample_args.alpha='x' must be a number from 0",
        ),
        (
            {"train_neg_sample_args": None},
            "train_neg_sample_args=None: General learns from pairs of an item and a sampled one; leave it out, or give "
            "a distribution",
        ),
        (
            {"train_neg_sample_args": {"layout": "square"}},
            "train_neg_sample_args.layout='square' does not exist; there are ['matrix', 'flat']",
        ),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        made(**settings)
    assert str(error.value) == message


def test_one_mode_of_two_stands_for_both() -> None:
    assert made(eval_args={"mode": {"test": "uni9"}})["eval_args"]["mode"] == {"valid": "uni9", "test": "uni9"}


def test_a_sequential_model_cannot_be_evaluated_in_random_order() -> None:
    with pytest.raises(ConfigError, match="order='RO': a sequential model needs the order of time, 'TO'"):
        made(Sequential, loss_type="CE", eval_args={"order": "RO"})


def test_data_that_is_split_already_needs_no_split() -> None:
    config = made(benchmark_filename=["train", "test"], eval_args={"split": None, "group_by": None})
    assert config["eval_args"]["group_by"] == "none"
    with pytest.raises(ConfigError, match=r"eval_args\.split=None must be one of"):
        made(eval_args={"split": None})
