"""The steps of `data_preparation` by RecBole's names, for programs that take them one by one."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from treadle.errors import ConfigError
from treadle.recsys.compat.samplers import RepeatableSampler, Sampler
from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataloader import (
    FullSortEvalDataLoader,
    KnowledgeBasedDataLoader,
    NegSampleEvalDataLoader,
    PackedSequenceDataLoader,
    SequenceTrainDataLoader,
    TrainDataLoader,
    UserDataLoader,
)
from treadle.recsys.data.dataset import NAMES, Dataset
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.data.knowledge_dataset import KnowledgeBasedDataset
from treadle.recsys.data.sequential_dataset import TARGET, SequentialDataset
from treadle.recsys.data.transforms import BatchTransform, construct_transform
from treadle.recsys.enums import InputType, ModelType

# Transforms of batches as RecBole calls them: made of settings, called with the data set and a batch


__all__ = [
    "CropItemSequence",
    "Equal",
    "InverseItemSequence",
    "MaskItemSequence",
    "ReorderItemSequence",
    "UserDefinedTransform",
    "construct_transform",
]


class Equal(BatchTransform):
    """Leaves a batch as it is."""

    transform_name: str | None = None

    def __init__(self, config: Config) -> None:
        super().__init__(config, self.transform_name)


class MaskItemSequence(Equal):
    """Hides some items of each sequence, for a model to find."""

    transform_name = "mask_itemseq"


class InverseItemSequence(Equal):
    """Puts the zeros of each sequence before it."""

    transform_name = "inverse_itemseq"


class CropItemSequence(Equal):
    """Keeps a stretch of each sequence."""

    transform_name = "crop_itemseq"


class ReorderItemSequence(Equal):
    """Shuffles a stretch of each sequence."""

    transform_name = "reorder_itemseq"


class UserDefinedTransform:
    """Calls a function of the user's: the setting `transform`, or what a subclass defines as `__call__`."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def __call__(self, dataset: Any, interaction: Interaction) -> Interaction:
        """Return the batch, transformed.

        Raises:
            ConfigError: The setting `transform` is no function.
        """
        given = self._config["transform"]
        if not callable(given):
            raise ConfigError(f"transform={given!r} is no function of the data set and a batch; set it to one")
        found: Interaction = given(dataset, interaction)
        return found


# Data sets as single models of RecBole's expect them


class ListedDataset(SequentialDataset):
    """A sequential data set whose interactions have their histories as columns, which costs memory for every row.

    Rows that are asked for have them anyway; this is for models that look through all interactions when they are built.
    """

    def _part(self, rows: np.ndarray[Any, Any]) -> Dataset:
        part = super()._part(rows)
        assert isinstance(part, SequentialDataset)
        if part.flat is not None:
            places, lengths = part.inter_feat[TARGET], part.inter_feat[self.item_list_length_field]
            part.inter_feat.update(part.windows(places - lengths, lengths))
        return part


class KGSeqDataset(SequentialDataset, KnowledgeBasedDataset):
    """Histories, and a knowledge graph of their items."""


class GRU4RecKGDataset(KGSeqDataset):
    """The data set that RecBole gives the model GRU4RecKG."""


class KSRDataset(KGSeqDataset):
    """The data set that RecBole gives the model KSR."""


class DecisionTreeDataset(Dataset):
    """The data set of trees, which take it as it is: tokens are categories of the library."""


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
        if config["sequence_layout"] is not None:
            return PackedSequenceDataLoader
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
