"""XGBoost as a recommender."""

from treadle.recsys.boosting.xgboost_boosting import SavedXGBoost
from treadle.recsys.models.tree_recommender import DecisionTreeRecommender


class XGBoost(DecisionTreeRecommender):
    """Trees that XGBoost grows (Chen and Guestrin, 2016); `xgb_params` are its parameters."""

    saved_class = SavedXGBoost
