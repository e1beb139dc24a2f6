"""What all models of a benchmark share: the split, the evaluation, the data."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from treadle.errors import ConfigError
from treadle.recsys.compat.names import ROOT
from treadle.recsys.config import Config
from treadle.recsys.enums import ModelType
from treadle.recsys.model_registry import locate_model

SHARED = ("eval_args", "metrics", "topk", "valid_metric", "repeatable", "cold_users")
"""Settings that decide what is measured, and on what: the same for every model."""
LABELLED = (ModelType.CONTEXT, ModelType.DECISIONTREE)
Settings = dict[str, Any]


class Protocol:
    """The settings of each model of a benchmark, made so that their results can stand in one table.

    What is measured follows from what the kinds of the models have by default, unless it is given: a sequential model
    among them has all tested on the last items in the order of time, and models of clicks alone are tested by labels.
    Models with a knowledge graph keep the items that are not in it, as all others do. The parts of the data are the
    same for every seed.

    Args:
        models: Names of models, full names of classes, or texts such as `recbole:ENMF` and `my_model.py:MyModel`.
        dataset: The name of the data set.
        config_file_list: YAML files with settings.
        config_dict: Settings by name; `BPR.embedding_size` is one of the model BPR alone.

    Attributes:
        models: What the models are called in the table: as their classes are, and a model of RecBole's package
            `recbole-ENMF`, so that it can stand beside Treadle's own.
        named: For each of these the text that it was named by.
        shared: What they share.

    Raises:
        ConfigError: There is no such model, or one is named twice, or settings are given for a model that is not there.
    """

    def __init__(
        self,
        models: Sequence[str],
        dataset: str | None,
        config_file_list: Sequence[str | os.PathLike[str]] = (),
        config_dict: Mapping[str, Any] | None = None,
    ) -> None:
        self.dataset, self.files = dataset, [os.fspath(file) for file in config_file_list]
        classes = [locate_model(name) for name in models]
        self.models = [_shown(name, found) for name, found in zip(models, classes, strict=True)]
        self._classes = dict(zip(self.models, classes, strict=True))
        if not models or len(self._classes) < len(models):
            raise ConfigError(f"models={list(models)} must name at least one model, and each once")
        self.named = dict(zip(self.models, models, strict=True))
        self._common, self._own = self._divided(config_dict or {})
        self.shared = self._settle()

    def _divided(self, given: Mapping[str, Any]) -> tuple[Settings, dict[str, Settings]]:
        """Return the settings for all, and those for single models."""
        common: Settings = {}
        own: dict[str, Settings] = {name: {} for name in self.models}
        for name, value in given.items():
            model, dot, setting = name.partition(".")
            if not dot:
                common[name] = value
            elif model in own:
                own[model][setting] = value
            else:
                raise ConfigError(f"{name}={value!r}: {model!r} is not among the models {self.models}")
        for model, settings in own.items():
            wrong = next((name for name in settings if name in SHARED), None)
            if wrong is not None:
                raise ConfigError(f"{model}.{wrong}: what is measured is the same for all models; give it without name")
        return common, own

    def _settle(self) -> Settings:
        """Return what is measured, by the settings of the model whose kind decides."""
        kinds = {name: kind.type for name, kind in self._classes.items()}
        ranking = [name for name in self.models if kinds[name] not in LABELLED]
        in_order = [name for name in ranking if kinds[name] is ModelType.SEQUENTIAL]
        deciding = (in_order or ranking or self.models)[0]
        config = Config(self._classes[deciding], self.dataset, self.files, self._common)
        self.dataset = config.dataset
        self.bigger = bool(config["valid_metric_bigger"])
        plain = config.plain()
        return {
            **{name: plain[name] for name in SHARED},
            "split_seed": config.seed_of_split,
            "kg_unlinked_items": plain["kg_unlinked_items"] if "kg_unlinked_items" in self._common else "keep",
        }

    def settings(self, model: str, seed: int | None = None) -> Settings:
        """Return the settings of a model that go over its defaults."""
        seeded = {} if seed is None else {"seed": seed}
        return {**self._common, **self.shared, **self._own[model], **seeded}

    def config(self, model: str, seed: int | None = None, **more: Any) -> Config:
        """Return all settings of a model.

        Raises:
            ConfigError: They do not go together.
        """
        return Config(self._classes[model], self.dataset, self.files, {**self.settings(model, seed), **more})

    def seed(self) -> int:
        """Return the seed that everything has if nobody says otherwise."""
        return int(self.shared["split_seed"])


def _shown(name: str, model: type) -> str:
    """Return what a model is called in the table, and in the names of its files."""
    return f"{ROOT}-{model.__name__}" if name.startswith((f"{ROOT}:", f"{ROOT}.")) else model.__name__
