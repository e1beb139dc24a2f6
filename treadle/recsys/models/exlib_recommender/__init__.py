"""Models of other libraries."""

from treadle.recsys.models.exlib_recommender.lightgbm import LightGBM
from treadle.recsys.models.exlib_recommender.xgboost import XGBoost

__all__ = ["LightGBM", "XGBoost"]
