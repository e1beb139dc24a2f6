"""LightGBM as a recommender."""

from treadle.recsys.models.bases.tree import DecisionTreeRecommender
from treadle.recsys.models.boosting.lightgbm_boosting import SavedLightGBM


class LightGBM(DecisionTreeRecommender):
    """Trees that LightGBM grows (Ke et al., 2017); `lgb_params` are its parameters."""

    saved_class = SavedLightGBM
