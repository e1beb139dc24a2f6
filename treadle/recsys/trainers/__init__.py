"""Trainers of recommenders, by RecBole's names."""

from treadle.recsys.trainers.abstract_trainer import AbstractTrainer, Pass
from treadle.recsys.trainers.alternating_trainers import NCLTrainer, RecVAETrainer
from treadle.recsys.trainers.decision_tree_trainer import DecisionTreeTrainer, LightGBMTrainer, XGBoostTrainer
from treadle.recsys.trainers.kg_trainer import KGATTrainer, KGTrainer, MKRTrainer
from treadle.recsys.trainers.pretrain_trainer import PretrainTrainer, RaCTTrainer, S3RecTrainer
from treadle.recsys.trainers.registry import get_trainer, register_trainer
from treadle.recsys.trainers.results import calculate_valid_score, early_stopping
from treadle.recsys.trainers.traditional_trainer import TraditionalTrainer
from treadle.recsys.trainers.trainer import Trainer

__all__ = [
    "AbstractTrainer",
    "DecisionTreeTrainer",
    "KGATTrainer",
    "KGTrainer",
    "LightGBMTrainer",
    "MKRTrainer",
    "NCLTrainer",
    "Pass",
    "PretrainTrainer",
    "RaCTTrainer",
    "RecVAETrainer",
    "S3RecTrainer",
    "TraditionalTrainer",
    "Trainer",
    "XGBoostTrainer",
    "calculate_valid_score",
    "early_stopping",
    "get_trainer",
    "register_trainer",
]
