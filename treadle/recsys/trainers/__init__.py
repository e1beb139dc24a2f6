"""Trainers of recommenders, by RecBole's names."""

from treadle.recsys.trainers.abstract_trainer import AbstractTrainer
from treadle.recsys.trainers.recvae_trainer import RecVAETrainer
from treadle.recsys.trainers.registry import get_trainer, register_trainer
from treadle.recsys.trainers.results import calculate_valid_score, early_stopping
from treadle.recsys.trainers.traditional_trainer import TraditionalTrainer
from treadle.recsys.trainers.trainer import Trainer

__all__ = [
    "AbstractTrainer",
    "RecVAETrainer",
    "TraditionalTrainer",
    "Trainer",
    "calculate_valid_score",
    "early_stopping",
    "get_trainer",
    "register_trainer",
]
