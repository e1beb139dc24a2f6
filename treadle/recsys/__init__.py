"""The recommender door: data, sampling, evaluation, models and their trainer, by RecBole's names."""

from treadle.recsys import compat
from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.interaction import Interaction, cat_interactions
from treadle.recsys.data.knowledge_dataset import KnowledgeBasedDataset
from treadle.recsys.data.preparation import create_dataset, data_preparation
from treadle.recsys.data.sequential_dataset import SequentialDataset
from treadle.recsys.enums import EvaluatorType, FeatureSource, FeatureType, InputType, KGDataLoaderState, ModelType
from treadle.recsys.model_registry import (
    get_model,
    model_names,
    register_hint,
    register_model,
    register_resolver,
    register_source,
)
from treadle.recsys.quick_start import init_seed, load_data_and_model, objective_function, run_recbole
from treadle.recsys.serve.recommender import Recommender
from treadle.recsys.serve.saved import load_recommender
from treadle.recsys.serve.tables import Recommendations
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
    "load_recommender",
    "model_names",
    "objective_function",
    "register_model",
    "register_trainer",
    "run_recbole",
]


def built_in_models() -> dict[str, type]:
    """Return the models by the names that settings and the command line may use."""
    from treadle.recsys.models import (
        context_aware_recommender,
        exlib_recommender,
        general_recommender,
        knowledge_aware_recommender,
        sequential_recommender,
    )

    found: dict[str, type] = {}
    packages = (
        general_recommender,
        sequential_recommender,
        context_aware_recommender,
        knowledge_aware_recommender,
        exlib_recommender,
    )
    for package in packages:
        found |= {name: getattr(package, name) for name in package.__all__}
    return found


register_source(built_in_models)
register_resolver(compat.resolve)
register_hint(compat.model_hint)
