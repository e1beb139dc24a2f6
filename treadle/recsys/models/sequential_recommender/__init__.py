"""Models of what comes next in a sequence."""

from treadle.recsys.models.sequential_recommender.bert4rec import BERT4Rec
from treadle.recsys.models.sequential_recommender.caser import Caser
from treadle.recsys.models.sequential_recommender.dien import DIEN
from treadle.recsys.models.sequential_recommender.din import DIN
from treadle.recsys.models.sequential_recommender.esasrec import eSASRec
from treadle.recsys.models.sequential_recommender.gru4rec import GRU4Rec
from treadle.recsys.models.sequential_recommender.gsasrec import gSASRec
from treadle.recsys.models.sequential_recommender.hstu import HSTU
from treadle.recsys.models.sequential_recommender.narm import NARM
from treadle.recsys.models.sequential_recommender.s3rec import S3Rec
from treadle.recsys.models.sequential_recommender.sasrec import SASRec

__all__ = ["DIEN", "DIN", "HSTU", "NARM", "BERT4Rec", "Caser", "GRU4Rec", "S3Rec", "SASRec", "eSASRec", "gSASRec"]
