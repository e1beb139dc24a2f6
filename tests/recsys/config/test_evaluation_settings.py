"""Metrics, cut-offs, splits, modes and negatives: brought into one form, or refused before any work."""

from datetime import date
from typing import Any

import pytest

from tests.recsys.data.small import Context, General, Sequential
from treadle.errors import ConfigError, UnknownMetricError
from treadle.recsys import Config, EvaluatorType
from treadle.recsys.config.evaluation import time_points
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
            "{'LS': 'valid_and_test'}, {'TS': [0.8, 0.1, 0.1]}, {'TP': ['2001-01-01', '2001-07-01']}, "
            "{'CU': [0.8, 0.1, 0.1]} and {'CI': [0.8, 0.1, 0.1]}",
        ),
        *(
            (
                {"eval_args": {"split": {"TP": moments}}},
                f"eval_args.split.TP={moments!r} must be two moments in order, the first of validation and the first "
                "of the test: numbers as in TIME_FIELD, or dates such as '2001-01-31'",
            )
            for moments in ([3, 2], [1], ["soon", 5], 7, [True, 2])
        ),
        (
            {"eval_args": {"split": {"CU": [0.8, 0.1, 0.1]}}},
            "eval_args.split.CU holds out whole users, who have no training row, and cold_users='error' would leave "
            "none of them; set cold_users: keep",
        ),
        ({"first_stage_topk": 0}, "first_stage_topk=0: 0 is no length of a list; give whole numbers from 1 on"),
        (
            {"user_groups": {"age": 4}},
            "user_groups={'age': 4} must be names of divisions or of fields, such as [activity]",
        ),
        ({"item_groups": [3]}, "item_groups=[3] must be names of divisions or of fields, such as [popularity]"),
        (
            {"metrics": ["NDCG", "UserRecallGap", "UserRecallRatio"], "valid_metric": "NDCG@10"},
            "metrics has ['UserRecallGap', 'UserRecallRatio'], and user_groups is not set; name what divides users, "
            "such as user_groups: [activity]",
        ),
        (
            {"metrics": ["NDCG", "ItemExposureGap"], "valid_metric": "NDCG@10"},
            "metrics has ['ItemExposureGap'], and item_groups is not set; name what divides items, such as "
            "item_groups: [popularity]",
        ),
        (
            {"metrics": ["NDCG", "Miscalibration", "IntraListDiversity"], "valid_metric": "NDCG@10"},
            "metrics has ['Miscalibration', 'IntraListDiversity'], and item_category_field is not set; name the field "
            "of items that has their categories, such as item_category_field: genre",
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


def test_a_metric_of_a_first_stage_may_decide_by_a_length_of_its_own() -> None:
    found = made(metrics=["FirstStageRecall"], first_stage_topk=[5, 9], valid_metric="FirstStageRecall@9")
    assert found["valid_metric_bigger"] is True
    with pytest.raises(UnknownMetricError, match=r"; add 10 to first_stage_topk$"):
        made(metrics=["FirstStageRecall"], first_stage_topk=[5, 9], valid_metric="FirstStageRecall@10")


def test_moments_are_numbers_or_dates_in_universal_time() -> None:
    assert time_points((1, 2.5)) == (1.0, 2.5)
    # 978307200 is the beginning of the year 2001; YAML makes dates of what looks like one.
    assert time_points([date(2001, 1, 1), "2001-01-01T01:00:00+00:00"]) == (978307200.0, 978310800.0)
