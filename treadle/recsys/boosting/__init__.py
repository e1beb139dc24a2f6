"""Boosting runs of other libraries, round by round: what a trainer needs to count, save and go on with them."""

from treadle.recsys.boosting.boosting import Boosting, Evaluation
from treadle.recsys.boosting.features import TreeFeatures
from treadle.recsys.boosting.lightgbm_boosting import LightGBMBoosting
from treadle.recsys.boosting.rounds import Rounds
from treadle.recsys.boosting.rows import LabelledRows, rows_of
from treadle.recsys.boosting.xgboost_boosting import XGBoostBoosting

__all__ = [
    "Boosting",
    "Evaluation",
    "LabelledRows",
    "LightGBMBoosting",
    "Rounds",
    "TreeFeatures",
    "XGBoostBoosting",
    "rows_of",
]
