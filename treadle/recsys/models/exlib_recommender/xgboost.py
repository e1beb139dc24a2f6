"""XGBoost as a recommender."""

from treadle.recsys.models.bases.tree import DecisionTreeRecommender
from treadle.recsys.models.boosting.xgboost_boosting import SavedXGBoost


class XGBoost(DecisionTreeRecommender):
    """Trees that XGBoost grows (Chen and Guestrin, 2016); `xgb_params` are its parameters."""

    saved_class = SavedXGBoost
