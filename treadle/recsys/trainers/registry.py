"""Trainers by the models they are for."""

from typing import Any, TypeVar

from treadle.errors import ConfigError
from treadle.recsys.config.configurator import Config
from treadle.recsys.enums import ModelType
from treadle.recsys.trainers.abstract_trainer import AbstractTrainer
from treadle.recsys.trainers.alternating_trainers import NCLTrainer, RecVAETrainer
from treadle.recsys.trainers.decision_tree_trainer import DecisionTreeTrainer, LightGBMTrainer, XGBoostTrainer
from treadle.recsys.trainers.kg_trainer import KGATTrainer, KGTrainer, MKRTrainer
from treadle.recsys.trainers.pretrain_trainer import RaCTTrainer, S3RecTrainer
from treadle.recsys.trainers.traditional_trainer import TraditionalTrainer
from treadle.recsys.trainers.trainer import Trainer

Kind = TypeVar("Kind", bound=type)
SUFFIX = "Trainer"
NAMED = (RecVAETrainer, RaCTTrainer, KGATTrainer, MKRTrainer, NCLTrainer, S3RecTrainer, LightGBMTrainer, XGBoostTrainer)
_trainers: dict[str, type] = {one.__name__: one for one in NAMED}
_by_type: dict[ModelType, type] = {
    ModelType.TRADITIONAL: TraditionalTrainer,
    ModelType.KNOWLEDGE: KGTrainer,
    ModelType.DECISIONTREE: DecisionTreeTrainer,
}


def register_trainer(trainer: Kind) -> Kind:
    """Make a trainer known: `MyModelTrainer` is then the one that `get_trainer` gives the model `MyModel`.

    Raises:
        ConfigError: Its name does not end with `Trainer`.
    """
    if not trainer.__name__.endswith(SUFFIX) or trainer.__name__ == SUFFIX:
        raise ConfigError(f"{trainer.__name__}: a trainer is named after its model, such as MyModelTrainer for MyModel")
    _trainers[trainer.__name__] = trainer
    return trainer


def trainer_class(model_type: ModelType | None, model_name: str) -> Any:
    """Return the class of trainer for a model: the one named after it, or the one of its kind."""
    named = _trainers.get(f"{model_name}{SUFFIX}")
    if named is not None:
        return named
    return Trainer if model_type is None else _by_type.get(model_type, Trainer)


def get_trainer(first: Any, second: Any) -> Any:
    """Return the trainer of a model.

    Args:
        first: The settings; or the kind of model, a `ModelType`.
        second: The model; or its name.

    Returns:
        The trainer, made for settings and a model; or, for a kind and a name, its class, as RecBole does it.

    Raises:
        ConfigError: The arguments are neither.
    """
    if isinstance(first, Config):
        made: AbstractTrainer = trainer_class(first["MODEL_TYPE"], type(second).__name__)(first, second)
        return made
    if isinstance(second, str) and (first is None or isinstance(first, ModelType)):
        return trainer_class(first, second)
    raise ConfigError(
        f"get_trainer takes settings and a model, or a ModelType and a name; not {type(first).__name__} and "
        f"{type(second).__name__}"
    )
