"""The steps of `data_preparation` by RecBole's names, for programs that take them one by one."""

from collections.abc import Sequence
from typing import Any

from treadle.errors import ConfigError
from treadle.recsys.compat.samplers import RepeatableSampler, Sampler
from treadle.recsys.config import Config
from treadle.recsys.dataset import NAMES, Dataset
from treadle.recsys.enums import InputType, ModelType
from treadle.recsys.loading import (
    FullSortEvalDataLoader,
    KnowledgeBasedDataLoader,
    NegSampleEvalDataLoader,
    SequenceTrainDataLoader,
    TrainDataLoader,
    UserDataLoader,
)

PHASES = (*NAMES, "evaluation")
NOT_PICKLED = (
    "keeps a pickle of loaders in RecBole; here the same settings make the same loaders: call data_preparation, with "
    "save_dataloaders: True to keep the split on disk"
)


def get_dataloader(config: Config, phase: str) -> Any:
    """Return the class of loader that the settings want for a phase: "train", "valid" or "test".

    Raises:
        ConfigError: There is no such phase.
    """
    if phase not in PHASES:
        raise ConfigError(f"phase={phase!r} does not exist; there are {list(PHASES)}")
    if phase == "train":
        if config["MODEL_INPUT_TYPE"] is InputType.USERWISE:
            return UserDataLoader
        if config["train_all_positions"]:
            return SequenceTrainDataLoader
        return KnowledgeBasedDataLoader if config["MODEL_TYPE"] is ModelType.KNOWLEDGE else TrainDataLoader
    mode = config["eval_args"]["mode"]["test" if phase == "evaluation" else phase]
    return FullSortEvalDataLoader if mode == "full" else NegSampleEvalDataLoader


def create_samplers(config: Config, dataset: Dataset, built_datasets: Sequence[Dataset | None]) -> tuple[Any, Any, Any]:
    """Return the samplers of training, validation and test; None where nothing is drawn.

    Args:
        config: The settings.
        dataset: The whole data set.
        built_datasets: Its three parts, as `build` returns them.
    """
    there = {name: part for name, part in zip(NAMES, built_datasets, strict=True) if part is not None}
    found: list[Any] = []
    for phase in NAMES:
        arguments = config[f"{phase}_neg_sample_args"]
        if phase not in there or arguments["distribution"] == "none":
            found.append(None)
            continue
        given = (arguments["distribution"], float(arguments.get("alpha", 1.0)))
        if config["repeatable"]:
            sampler: Any = RepeatableSampler(list(there), dataset, *given)
        else:
            sampler = Sampler(list(there), list(there.values()), *given)
        found.append(sampler.set_phase(phase))
    return found[0], found[1], found[2]


def save_split_dataloaders(config: Config, dataloaders: Any) -> None:
    """Refuse: loaders are not pickled.

    Raises:
        ConfigError: Always; it says what to do.
    """
    raise ConfigError(f"save_split_dataloaders {NOT_PICKLED}")


def load_split_dataloaders(config: Config) -> None:
    """Refuse: loaders are not pickled.

    Raises:
        ConfigError: Always; it says what to do.
    """
    raise ConfigError(f"load_split_dataloaders {NOT_PICKLED}")
