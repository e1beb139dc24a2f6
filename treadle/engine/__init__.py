"""The config-driven door: trainers built from a config, hooks around their steps, evaluators, checkpoints."""

from treadle.engine import dist, evaluation, hooks
from treadle.engine.arguments import default_argument_parser, default_setup
from treadle.engine.checkpointer import Checkpointer
from treadle.engine.default_trainer import DefaultTrainer
from treadle.engine.default_writers import default_writers
from treadle.engine.eager_trainer import EagerTrainer
from treadle.engine.evaluation import DatasetEvaluator, inference_on_dataset
from treadle.engine.graph import Graph
from treadle.engine.graph_trainer import GraphTrainer
from treadle.engine.hook_base import HookBase
from treadle.engine.launching import launch
from treadle.engine.logs import setup_logger
from treadle.engine.simple_trainer import AMPTrainer, SimpleTrainer, create_ddp_model
from treadle.engine.trainer_base import TrainerBase

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
