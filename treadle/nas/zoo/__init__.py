"""Spaces that are ready to be searched."""

from treadle.nas.zoo.darts import DartsSpace
from treadle.nas.zoo.nasbench201 import NasBench201Space, from_nasbench201, to_nasbench201
from treadle.nas.zoo.proxyless import ProxylessSpace

__all__ = ["DartsSpace", "NasBench201Space", "ProxylessSpace", "from_nasbench201", "to_nasbench201"]
