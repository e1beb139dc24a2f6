"""Spaces that are ready to be searched."""

from treadle.nas.spaces.darts import DartsSpace
from treadle.nas.spaces.nasbench201 import NasBench201Space, from_nasbench201, to_nasbench201
from treadle.nas.spaces.proxyless import ProxylessSpace

__all__ = ["DartsSpace", "NasBench201Space", "ProxylessSpace", "from_nasbench201", "to_nasbench201"]
