"""The recommender door: data, sampling, evaluation, models and their trainer, by RecBole's names."""

from treadle.recsys import compat
from treadle.recsys.config import Config
from treadle.recsys.dataset import Dataset
from treadle.recsys.dataset_knowledge import KnowledgeBasedDataset
from treadle.recsys.dataset_sequential import SequentialDataset
from treadle.recsys.enums import EvaluatorType, FeatureSource, FeatureType, InputType, KGDataLoaderState, ModelType
from treadle.recsys.interaction import Interaction, cat_interactions
from treadle.recsys.model_registry import (
    get_model,
    model_names,
    register_hint,
    register_model,
    register_resolver,
    register_source,
)
from treadle.recsys.models.built_in import built_in_models
from treadle.recsys.preparation import create_dataset, data_preparation
from treadle.recsys.quick_start import init_seed, load_data_and_model, objective_function, run_recbole
from treadle.recsys.recommendations import Recommendations
from treadle.recsys.recommending import Recommender
from treadle.recsys.trainers import (
    AbstractTrainer,
    DecisionTreeTrainer,
    KGATTrainer,
    KGTrainer,
    LightGBMTrainer,
    MKRTrainer,
    NCLTrainer,
    PretrainTrainer,
    RaCTTrainer,
    RecVAETrainer,
    S3RecTrainer,
    TraditionalTrainer,
    Trainer,
    XGBoostTrainer,
    get_trainer,
    register_trainer,
)

__all__ = [
    "AbstractTrainer",
    "Config",
    "Dataset",
    "DecisionTreeTrainer",
    "EvaluatorType",
    "FeatureSource",
    "FeatureType",
    "InputType",
    "Interaction",
    "KGATTrainer",
    "KGDataLoaderState",
    "KGTrainer",
    "KnowledgeBasedDataset",
    "LightGBMTrainer",
    "MKRTrainer",
    "ModelType",
    "NCLTrainer",
    "PretrainTrainer",
    "RaCTTrainer",
    "RecVAETrainer",
    "Recommendations",
    "Recommender",
    "S3RecTrainer",
    "SequentialDataset",
    "TraditionalTrainer",
    "Trainer",
    "XGBoostTrainer",
    "cat_interactions",
    "compat",
    "create_dataset",
    "data_preparation",
    "get_model",
    "get_trainer",
    "init_seed",
    "load_data_and_model",
    "model_names",
    "objective_function",
    "register_model",
    "register_trainer",
    "run_recbole",
]

register_source(built_in_models)
register_resolver(compat.resolve)
register_hint(compat.model_hint)
