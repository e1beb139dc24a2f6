"""Evaluation of recommenders on the device: full and sampled ranking, labels, every metric at once.

`MetricPlan` says what to calculate, `FullRanking`, `SampledRanking` and `LabelledEvaluation` calculate it,
`EvaluationResult` holds it, `compare_runs` tells whether two results differ by more than chance. `register_metric` adds
a metric of your own.
"""

from treadle.recsys.evaluation import beyond_accuracy as beyond_accuracy
from treadle.recsys.evaluation.breakdown import Groups, groups_by_count, groups_by_quantile
from treadle.recsys.evaluation.full_ranking import FullRanking, recommend_items, relevance_by_key
from treadle.recsys.evaluation.inputs import NO_ITEM, Catalogue, GroupRates, LabelledRows, OrderedPairs, Ranking
from treadle.recsys.evaluation.labelled import LabelledEvaluation
from treadle.recsys.evaluation.metrics import Metric, find_metric, metric_names, register_metric
from treadle.recsys.evaluation.plan import Measure, MetricPlan
from treadle.recsys.evaluation.ranking_state import RankingState
from treadle.recsys.evaluation.result import EvaluationResult, PerUser
from treadle.recsys.evaluation.sampled_ranking import SampledRanking
from treadle.recsys.evaluation.scoring import Scorer, scores_from_pairs, top_items
from treadle.recsys.evaluation.significance import (
    Comparison,
    Interval,
    adjust,
    compare_models,
    compare_runs,
    mean_intervals,
)

__all__ = [
    "NO_ITEM",
    "Catalogue",
    "Comparison",
    "EvaluationResult",
    "FullRanking",
    "GroupRates",
    "Groups",
    "Interval",
    "LabelledEvaluation",
    "LabelledRows",
    "Measure",
    "Metric",
    "MetricPlan",
    "OrderedPairs",
    "PerUser",
    "Ranking",
    "RankingState",
    "SampledRanking",
    "Scorer",
    "adjust",
    "compare_models",
    "compare_runs",
    "find_metric",
    "groups_by_count",
    "groups_by_quantile",
    "mean_intervals",
    "metric_names",
    "recommend_items",
    "register_metric",
    "relevance_by_key",
    "scores_from_pairs",
    "top_items",
]
