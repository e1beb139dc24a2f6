"""Models of users and items."""

from treadle.recsys.models.general_recommender.bpr import BPR
from treadle.recsys.models.general_recommender.cdae import CDAE
from treadle.recsys.models.general_recommender.dmf import DMF
from treadle.recsys.models.general_recommender.ease import EASE
from treadle.recsys.models.general_recommender.elsa import ELSA
from treadle.recsys.models.general_recommender.gcmc import GCMC
from treadle.recsys.models.general_recommender.gfcf import GFCF
from treadle.recsys.models.general_recommender.ials import IALS
from treadle.recsys.models.general_recommender.itemknn import ItemKNN
from treadle.recsys.models.general_recommender.lightgcn import LightGCN
from treadle.recsys.models.general_recommender.multivae import MultiVAE
from treadle.recsys.models.general_recommender.ncl import NCL
from treadle.recsys.models.general_recommender.neumf import NeuMF
from treadle.recsys.models.general_recommender.ngcf import NGCF
from treadle.recsys.models.general_recommender.pop import Pop
from treadle.recsys.models.general_recommender.recvae import RecVAE
from treadle.recsys.models.general_recommender.rp3beta import RP3beta
from treadle.recsys.models.general_recommender.sgl import SGL
from treadle.recsys.models.general_recommender.simplex import SimpleX
from treadle.recsys.models.general_recommender.slim import SLIM
from treadle.recsys.models.general_recommender.spectralcf import SpectralCF
from treadle.recsys.models.general_recommender.ultragcn import UltraGCN
from treadle.recsys.models.general_recommender.userknn import UserKNN

SLIMElastic = SLIM
"""What RecBole calls it."""

__all__ = [
    "BPR",
    "CDAE",
    "DMF",
    "EASE",
    "ELSA",
    "GCMC",
    "GFCF",
    "IALS",
    "NCL",
    "NGCF",
    "SGL",
    "SLIM",
    "ItemKNN",
    "LightGCN",
    "MultiVAE",
    "NeuMF",
    "Pop",
    "RP3beta",
    "RecVAE",
    "SLIMElastic",
    "SimpleX",
    "SpectralCF",
    "UltraGCN",
    "UserKNN",
]
