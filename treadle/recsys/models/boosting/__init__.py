"""Boosting runs of other libraries, round by round: what a trainer needs to count, save and go on with them."""

from treadle.recsys.models.boosting.base import Boosting, Evaluation, Rounds
from treadle.recsys.models.boosting.features import TreeFeatures, TreeRows, labelled_rows
from treadle.recsys.models.boosting.lightgbm_boosting import LightGBMBoosting
from treadle.recsys.models.boosting.xgboost_boosting import XGBoostBoosting

__all__ = [
    "Boosting",
    "Evaluation",
    "LightGBMBoosting",
    "Rounds",
    "TreeFeatures",
    "TreeRows",
    "XGBoostBoosting",
    "labelled_rows",
]
