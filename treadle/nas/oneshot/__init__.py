"""Trainers that train a space and search it at the same time."""

from treadle.nas.oneshot.darts import DartsTrainer
from treadle.nas.oneshot.enas import EnasTrainer
from treadle.nas.oneshot.gumbel import GumbelDartsTrainer
from treadle.nas.oneshot.proxyless import ProxylessTrainer
from treadle.nas.oneshot.spos import SposTrainer
from treadle.nas.oneshot.trainer import BaseOneShotTrainer, Found
from treadle.nas.viz.weight_history import WeightHistory, weights_over_time

__all__ = [
    "BaseOneShotTrainer",
    "DartsTrainer",
    "EnasTrainer",
    "Found",
    "GumbelDartsTrainer",
    "ProxylessTrainer",
    "SposTrainer",
    "WeightHistory",
    "weights_over_time",
]
