"""Models of users, items and a knowledge graph."""

from treadle.recsys.models.knowledge_aware_recommender.cfkg import CFKG
from treadle.recsys.models.knowledge_aware_recommender.cke import CKE
from treadle.recsys.models.knowledge_aware_recommender.kgat import KGAT
from treadle.recsys.models.knowledge_aware_recommender.kgcn import KGCN
from treadle.recsys.models.knowledge_aware_recommender.kgin import KGIN
from treadle.recsys.models.knowledge_aware_recommender.ktup import KTUP
from treadle.recsys.models.knowledge_aware_recommender.mkr import MKR
from treadle.recsys.models.knowledge_aware_recommender.ripplenet import RippleNet

__all__ = ["CFKG", "CKE", "KGAT", "KGCN", "KGIN", "KTUP", "MKR", "RippleNet"]
