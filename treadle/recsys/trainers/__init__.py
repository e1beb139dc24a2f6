"""Trainers of recommenders, by RecBole's names."""

from treadle.recsys.trainers.abstract_trainer import AbstractTrainer
from treadle.recsys.trainers.decision_tree_trainer import DecisionTreeTrainer
from treadle.recsys.trainers.kg_trainer import KGTrainer
from treadle.recsys.trainers.kgat_trainer import KGATTrainer
from treadle.recsys.trainers.lightgbm_trainer import LightGBMTrainer
from treadle.recsys.trainers.mkr_trainer import MKRTrainer
from treadle.recsys.trainers.ncl_trainer import NCLTrainer
from treadle.recsys.trainers.pretrain_trainer import PretrainTrainer
from treadle.recsys.trainers.ract_trainer import RaCTTrainer
from treadle.recsys.trainers.recvae_trainer import RecVAETrainer
from treadle.recsys.trainers.registry import get_trainer, register_trainer
from treadle.recsys.trainers.results import calculate_valid_score, early_stopping
from treadle.recsys.trainers.s3rec_trainer import S3RecTrainer
from treadle.recsys.trainers.traditional_trainer import TraditionalTrainer
from treadle.recsys.trainers.trainer import Trainer
from treadle.recsys.trainers.xgboost_trainer import XGBoostTrainer

__all__ = [
    "AbstractTrainer",
    "DecisionTreeTrainer",
    "KGATTrainer",
    "KGTrainer",
    "LightGBMTrainer",
    "MKRTrainer",
    "NCLTrainer",
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
