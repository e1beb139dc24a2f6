"""The config-driven door: trainers built from a config, hooks around their steps, evaluators, checkpoints."""

from treadle.engine import dist, evaluation, hooks
from treadle.engine.checkpointer import Checkpointer
from treadle.engine.evaluation import DatasetEvaluator, inference_on_dataset
from treadle.engine.hooks.base import HookBase
from treadle.engine.log import default_writers
from treadle.engine.setup import default_argument_parser, default_setup, launch, setup_logger
from treadle.engine.trainers.base import TrainerBase
from treadle.engine.trainers.default import DefaultTrainer
from treadle.engine.trainers.eager import EagerTrainer
from treadle.engine.trainers.graph import Graph, GraphTrainer
from treadle.engine.trainers.simple import AMPTrainer, SimpleTrainer, create_ddp_model

__all__ = [
    "AMPTrainer",
    "Checkpointer",
    "DatasetEvaluator",
    "DefaultTrainer",
    "EagerTrainer",
    "Graph",
    "GraphTrainer",
    "HookBase",
    "SimpleTrainer",
    "TrainerBase",
    "create_ddp_model",
    "default_argument_parser",
    "default_setup",
    "default_writers",
    "dist",
    "evaluation",
    "hooks",
    "inference_on_dataset",
    "launch",
    "setup_logger",
]
