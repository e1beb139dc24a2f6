"""From settings to a data set, and from a data set to loaders."""

import logging
from collections.abc import Mapping
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from treadle.data.seeds import fold_seed
from treadle.errors import ConfigError, DataError, some_of
from treadle.recsys.config.configurator import Config
from treadle.recsys.data.cache import (
    cache_path,
    content_key,
    load_prepared,
    load_split,
    save_prepared,
    save_split,
    split_key,
    split_path,
)
from treadle.recsys.data.dataloader import (
    AbstractDataLoader,
    FullSortEvalDataLoader,
    KnowledgeBasedDataLoader,
    Negatives,
    NegSampleEvalDataLoader,
    PackedSequenceDataLoader,
    SequenceTrainDataLoader,
    TrainDataLoader,
    UserDataLoader,
)
from treadle.recsys.data.dataset import NAMES, Dataset
from treadle.recsys.data.dataset_steps import has_custom_filter
from treadle.recsys.data.knowledge_dataset import KnowledgeBasedDataset
from treadle.recsys.data.sampling.evaluation_negatives import EvaluationMode, evaluation_negatives
from treadle.recsys.data.sampling.user_items import UserItems, seen_by_phase
from treadle.recsys.data.sequential_dataset import SequentialDataset
from treadle.recsys.data.tables.sources import Sources
from treadle.recsys.enums import InputType, ModelType

logger = logging.getLogger(__name__)
Loaders = tuple[AbstractDataLoader, AbstractDataLoader | None, AbstractDataLoader | None]


def create_dataset(config: Config, **tables: Any) -> Dataset:
    """Return the data set that the settings describe.

    With `save_dataset` the prepared data is kept on disk, and found again as long as the files and the settings that it
    was made of are the same.

    Args:
        config: The settings.
        tables: Tables to use in the place of files: `inter`, `user`, `item`, one of `additional_feat_suffix`, and with
            a model of a knowledge graph `kg` and `link`. Each is a path, an Arrow table, a pandas data frame or a dict
            of columns. Interactions that are split already are a list of tables.

    Raises:
        ConfigError: A setting cannot be meant for this data.
        DataError: The data cannot be used.
    """
    if not isinstance(config, Config):
        raise ConfigError(f"create_dataset takes settings, not {config!r:.40}: create_dataset(Config(model, dataset))")
    kind = dataset_class(config)
    sources = Sources(config, tables, kind.needed_tables)
    kept = config["save_dataset"] or config["dataset_save_path"] is not None
    if kept and has_custom_filter(kind):
        # What its method does is no setting: who changes it would be given the data of before.
        logger.warning("save_dataset keeps nothing: %s has its own _data_filtering", kind.__name__)
    if not kept or has_custom_filter(kind):
        return kind(config, prepared=kind.prepare(config, sources))
    key = content_key(config, sources)
    path = cache_path(config, kind.__name__, key)
    prepared = load_prepared(path, key)
    if prepared is None:
        prepared = kind.prepare(config, sources)
        if config["save_dataset"]:
            save_prepared(path, key, prepared)
    return kind(config, prepared=prepared)


def dataset_class(config: Config) -> type[Dataset]:
    """Return the class of data set that the model wants: its own `dataset_class`, or the one of its kind."""
    own = getattr(config.model_class, "dataset_class", None)
    if own is not None:
        if not (isinstance(own, type) and issubclass(own, Dataset)):
            raise ConfigError(f"{config.model}.dataset_class is {own!r}, which is no Dataset")
        return own
    kinds: dict[ModelType, type[Dataset]] = {
        ModelType.SEQUENTIAL: SequentialDataset,
        ModelType.KNOWLEDGE: KnowledgeBasedDataset,
    }
    return kinds.get(config["MODEL_TYPE"], Dataset)


def data_preparation(config: Config, dataset: Dataset) -> Loaders:
    """Divide a data set, and return the loaders for training, validation and test; None for a part that is not wanted.

    Raises:
        ConfigError: The settings do not fit the data.
        DataError: A part has no rows, or users of an evaluation have none to train on.
    """
    if not isinstance(config, Config):
        raise ConfigError(
            f"data_preparation({type(config).__name__}, {type(dataset).__name__}): the settings come first, and the "
            "data second: data_preparation(config, dataset)"
        )
    parts = _parts(config, dataset)
    train = parts[0]
    assert train is not None, "there is always something to train on"
    _check_cutoffs(config, dataset)
    evaluated = [
        None if part is None else _with_known_users(config, train, part, name)
        for part, name in zip(parts[1:], NAMES[1:], strict=True)
    ]
    loaders = _Loaders(config, [train, *evaluated])
    made = (loaders.training(), loaders.evaluation("valid"), loaders.evaluation("test"))
    logger.info("training: %d rows in batches of %d", made[0].sample_size, made[0].step)
    return made


def _parts(config: Config, dataset: Dataset) -> list[Dataset | None]:
    """Return the three parts of a data set, as its `build` divides it."""
    if "rows" in signature(dataset.build).parameters:
        return dataset.build(_rows(config, dataset))
    kind = type(dataset).__name__
    if config["save_dataloaders"] or config["dataloaders_save_path"] is not None:
        logger.warning("save_dataloaders keeps nothing: %s.build divides the data itself", kind)
    built = list(dataset.build())
    if len(built) != len(NAMES) or not built[0]:
        sizes = [0 if part is None else len(part) for part in built]
        raise DataError(f"{kind}.build returned parts of {sizes} rows; it returns three, and the first is trained on")
    # A part without rows is one that is not wanted, as those of `valid_only` and `test_only` are.
    return [part or None for part in built]


def _rows(config: Config, dataset: Dataset) -> list[Any]:
    """Return the rows of each part; kept on disk, if the settings want it."""
    if not config["save_dataloaders"] and config["dataloaders_save_path"] is None:
        return dataset.split_rows()
    path, key = split_path(config), split_key(config, dataset)
    rows = load_split(path, key)
    if rows is None:
        rows = dataset.split_rows()
        if config["save_dataloaders"]:
            save_split(path, key, rows)
    return rows


def _check_cutoffs(config: Config, dataset: Dataset) -> None:
    """Make sure that no list is to be longer than there are items."""
    ranked = any(mode != "labeled" for mode in config["eval_args"]["mode"].values())
    if ranked and max(config["topk"]) > dataset.item_num - 1:
        raise ConfigError(
            f"topk={config['topk']}: {max(config['topk'])} is more than the {dataset.item_num - 1} items of "
            f"{dataset.dataset_name!r}; choose a smaller k"
        )


def _with_known_users(config: Config, train: Dataset, part: Dataset, phase: str) -> Dataset | None:
    """Return a part of the data, with or without users that nothing is trained on, as `cold_users` says."""
    policy = config["cold_users"]
    labelled = config["eval_args"]["mode"][phase] == "labeled"
    if policy == "keep" or labelled or isinstance(train, SequentialDataset):
        return part
    known = torch.zeros(train.user_num, dtype=torch.bool)
    known[train.user_item_pairs()[0]] = True
    users = part.inter_feat[str(part.uid_field)]
    cold = torch.unique(users[~known[users]])
    if not len(cold):
        return part
    if policy == "drop":
        logger.info("%d users of the %s part have no training row and are left out", len(cold), phase)
        left = part.copy(part.inter_feat[known[users]])
        if not len(left):
            raise DataError(f"no user of the {phase} part has a training row, so that cold_users='drop' leaves nobody")
        return left
    names = some_of(list(map(repr, part.id2token(str(part.uid_field), cold).tolist())), 5)
    grouped = "" if train.file_size_list is not None else ", or eval_args.group_by to 'user'"
    raise DataError(
        f"users {names} of the {phase} part have no training row; set cold_users to 'drop' to leave them out, or "
        f"to 'keep' to evaluate them all the same{grouped}"
    )


class _Loaders:
    """Makes the loaders of a divided data set."""

    def __init__(self, config: Config, parts: list[Dataset | None]) -> None:
        self._config = config
        self._parts = dict(zip(NAMES, parts, strict=True))
        train = parts[0]
        assert train is not None
        self._train = train
        self._repeatable = bool(config["repeatable"])
        self._paired = train.uid_field is not None and train.iid_field is not None
        self._seen: Mapping[str, UserItems] = seen_by_phase(self._interactions()) if self._paired else {}

    def _interactions(self) -> dict[str, UserItems]:
        """Return the interactions of each part."""
        users, items = self._train.user_num, self._train.item_num
        there = {name: part for name, part in self._parts.items() if part is not None}
        return {name: UserItems(*_real_pairs(part), num_users=users, num_items=items) for name, part in there.items()}

    def training(self) -> AbstractDataLoader:
        """Return the loader for training, of the kind that the model wants."""
        config, shuffle = self._config, bool(self._config["shuffle"])
        if config["MODEL_INPUT_TYPE"] is InputType.USERWISE:
            return UserDataLoader(config, self._train, None, shuffle)
        if config["sequence_layout"] is not None:
            if not isinstance(self._train, SequentialDataset):
                raise ConfigError(f"sequence_layout is for sequential models, and {config.model} is none")
            return PackedSequenceDataLoader(config, self._train, shuffle)
        if config["train_all_positions"]:
            if not isinstance(self._train, SequentialDataset):
                raise ConfigError(f"train_all_positions is for sequential models, and {config.model} is none")
            return SequenceTrainDataLoader(config, self._train, self._training_negatives(), shuffle)
        if config["train_last_stretch_only"]:
            raise ConfigError("train_last_stretch_only=True has no use without train_all_positions; set that, too")
        if isinstance(self._train, KnowledgeBasedDataset) and not isinstance(self._train, SequentialDataset):
            return KnowledgeBasedDataLoader(config, self._train, self._training_negatives(), shuffle=shuffle)
        return TrainDataLoader(config, self._train, self._training_negatives(), shuffle)

    def _training_negatives(self) -> Negatives | None:
        arguments = self._config["train_neg_sample_args"]
        if arguments["distribution"] == "none":
            return None
        if not self._paired:
            raise ConfigError("train_neg_sample_args needs users and items; set it to None for data with labels")
        sequential = isinstance(self._train, SequentialDataset)
        by_target = sequential and self._repeatable
        users, _ = self._train.user_item_pairs()
        return Negatives(
            UserItems.only_itself(self._train.item_num) if by_target else self._seen["train"],
            str(self._train.iid_field if by_target else self._train.uid_field),
            distribution=arguments["distribution"],
            counts=self._item_counts(),
            alpha=float(arguments["alpha"]),
            users=torch.arange(1, self._train.item_num) if by_target else torch.unique(users),
        )

    def _item_counts(self) -> Tensor:
        """Return how often each item is used in training, and in training alone."""
        _, items = self._train.user_item_pairs()
        return torch.bincount(items, minlength=self._train.item_num)

    def evaluation(self, phase: str) -> AbstractDataLoader | None:
        """Return the loader of a part, of the kind that the mode of its evaluation wants."""
        part = self._parts[phase]
        if part is None:
            return None
        mode = EvaluationMode.parse(self._config["eval_args"]["mode"][phase])
        if mode.kind == "labeled":
            return NegSampleEvalDataLoader(self._config, part, None)
        if not self._paired:
            raise ConfigError(f"eval_args.mode={mode.kind!r} ranks items for users; data without them is 'labeled'")
        if mode.kind == "full":
            return FullSortEvalDataLoader(self._config, part, self._hidden(phase, part))
        return NegSampleEvalDataLoader(self._config, part, self._candidates(phase, part, mode))

    def _hidden(self, phase: str, part: Dataset) -> UserItems | None:
        """Return what an evaluation does not recommend: what was seen before, unless items can be repeated."""
        if self._repeatable:
            return None
        if isinstance(part, SequentialDataset):
            return UserItems(*part.seen_before(), num_users=len(part), num_items=part.item_num)
        return self._seen[phase]

    def _candidates(self, phase: str, part: Dataset, mode: EvaluationMode) -> UserItems:
        """Draw, once for all evaluations, what positives are ranked among."""
        items = part.inter_feat[str(part.iid_field)]
        if isinstance(part, SequentialDataset):
            rows = torch.arange(len(part))
            positives = UserItems(rows, items, num_users=len(part), num_items=part.item_num)
            hidden = self._hidden(phase, part)
            seen = positives if hidden is None else hidden | positives
        else:
            users = part.inter_feat[str(part.uid_field)]
            positives = UserItems(users, items, num_users=part.user_num, num_items=part.item_num)
            seen = positives if self._repeatable else self._seen[phase]
        asked = positives.counts.nonzero().flatten()
        source = Negatives(seen, "", distribution=mode.kind, counts=self._item_counts(), users=asked)
        seed = fold_seed(self._config.seed_of_split, "evaluation", phase)
        return evaluation_negatives(source.sampler(seen.device), positives, mode.negatives, seed=seed)


def _real_pairs(part: Dataset) -> tuple[Tensor, Tensor]:
    """Return the pairs of a part without padding, which files of histories may have."""
    users, items = part.user_item_pairs()
    real = items > 0
    return users[real], items[real]
