"""Models of clicks and ratings, from the fields of a row."""

from treadle.recsys.models.context_aware_recommender.dcn import DCN
from treadle.recsys.models.context_aware_recommender.dcnv2 import DCNv2
from treadle.recsys.models.context_aware_recommender.deepfm import DeepFM
from treadle.recsys.models.context_aware_recommender.fm import FM
from treadle.recsys.models.context_aware_recommender.lr import LR
from treadle.recsys.models.context_aware_recommender.widedeep import WideDeep

DCNV2 = DCNv2
"""What RecBole calls it."""

__all__ = ["DCN", "DCNV2", "FM", "LR", "DCNv2", "DeepFM", "WideDeep"]
