"""LightGBM as a recommender."""

from treadle.recsys.boosting.lightgbm_boosting import SavedLightGBM
from treadle.recsys.models.tree_recommender import DecisionTreeRecommender


class LightGBM(DecisionTreeRecommender):
    """Trees that LightGBM grows (Ke et al., 2017); `lgb_params` are its parameters."""

    saved_class = SavedLightGBM
