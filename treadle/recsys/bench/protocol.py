"""What all models of a benchmark share: the split, the evaluation, the data."""

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from treadle.errors import ConfigError
from treadle.recsys.compat.name_table import ROOT
from treadle.recsys.config.configurator import Config
from treadle.recsys.config.evaluation import JUDGED, MEASURED, decided_by
from treadle.recsys.enums import InputType, ModelType
from treadle.recsys.model_registry import locate_model

ONE_FOR_ALL = (*MEASURED, *JUDGED, "seed")
"""Settings that no model has of its own: what is measured, on what, and the seeds of the trainings."""
LABELLED = (ModelType.CONTEXT, ModelType.DECISIONTREE)
Settings = dict[str, Any]


class Protocol:
    """The settings of each model of a benchmark, made so that their results can stand in one table.

    What is measured is what the data set, the files and the command say; a default that all models have in common holds
    too, so that models of clicks alone are tested by labels. Where their defaults differ, none of them decides for the
    others: what everything has by default counts. Only the parts of the data follow from who takes part: a sequential
    model among them has all tested on the last items in the order of time, for it can be tested in no other way. Models
    with a knowledge graph keep the items that are not in it, as all others do. The parts of the data are the same for
    every seed.

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
        notes: For each of these that some of the models have otherwise by default, which ones, and what counts.

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
            wrong = next((name for name in settings if name in ONE_FOR_ALL), None)
            if wrong is not None:
                what = "the seed" if wrong == "seed" else decided_by(wrong)
                raise ConfigError(f"{model}.{wrong}: {what} is the same for all models; give it without name")
        return common, own

    def _settle(self) -> Settings:
        """Return what is measured: what is given or common to all models, and otherwise what no single one decides."""
        kinds = {kind.type for kind in self._classes.values()}
        sequential = ModelType.SEQUENTIAL in kinds
        others = ModelType.CONTEXT if kinds <= set(LABELLED) else ModelType.GENERAL
        own = self._defaults()
        shared = _common_to(own.values()) or self._for_anybody(own.values(), others, sequential=sequential)
        # Whether all this goes together is judged as for a model of the kind that asks for most.
        settled = self._contest(ModelType.SEQUENTIAL if sequential else others, shared)
        rows = [name for name in JUDGED if name not in ("split_seed", "kg_unlinked_items")]
        shared |= {name: settled[name] for name in rows if any(one[name] != settled[name] for one in own.values())}
        self.notes = _differences(shared, own)
        self.dataset = settled.dataset
        self.bigger = bool(settled["valid_metric_bigger"])
        unlinked = settled["kg_unlinked_items"] if "kg_unlinked_items" in self._common else "keep"
        return {**shared, "split_seed": settled.seed_of_split, "kg_unlinked_items": unlinked}

    def _for_anybody(self, own: Collection[Settings], kind: ModelType, *, sequential: bool) -> Settings:
        """Return what is measured of models whose defaults differ: where they do, what everything has by default."""
        base = self._contest(kind).plain()
        parts = base["eval_args"]
        if sequential:
            parts = {**self._contest(ModelType.SEQUENTIAL).plain()["eval_args"], "mode": parts["mode"]}
        args = {name: _agreed([one["eval_args"][name] for one in own], value) for name, value in parts.items()}
        return {name: _agreed([one[name] for one in own], base[name]) for name in MEASURED} | {"eval_args": args}

    def _contest(self, kind: ModelType, shared: Mapping[str, Any] | None = None) -> Config:
        """Return the settings that any model of a kind has: those of the data, the files and the command."""
        anybody = type("Anybody", (), {"type": kind, "input_type": InputType.POINTWISE})
        return Config(anybody, self.dataset, self.files, {**self._common, **(shared or {})})

    def _defaults(self) -> dict[str, Settings]:
        """Return what each model would be measured by, alone; one with other mistakes is told when its turn comes."""
        found = {}
        for name, kind in self._classes.items():
            with suppress(ConfigError):
                found[name] = Config(kind, self.dataset, self.files, self._common).plain()
        return found

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


def _common_to(own: Collection[Settings]) -> Settings | None:
    """Return what all models would be measured by alone; None if they differ, or there is none."""
    wanted = [{name: one[name] for name in MEASURED} for one in own]
    return wanted[0] if wanted and all(one == wanted[0] for one in wanted) else None


def _agreed(values: Sequence[Any], otherwise: Any) -> Any:
    """Return the value that all have, or another one if they differ or there is none."""
    return values[0] if values and all(value == values[0] for value in values) else otherwise


def _differences(shared: Mapping[str, Any], own: Mapping[str, Settings]) -> list[str]:
    """Return, in words, which settings hold for all though some models have others by default."""
    found = []
    for name, value in shared.items():
        others: dict[str, list[str]] = {}
        for model, settings in own.items():
            if settings[name] != value:
                others.setdefault(repr(settings[name]), []).append(model)
        told = "; ".join(f"{', '.join(models)} alone would have {text}" for text, models in others.items())
        if told:
            found.append(f"{name} is {value!r} for all models: {told}.")
    return found


def _shown(name: str, model: type) -> str:
    """Return what a model is called in the table, and in the names of its files."""
    return f"{ROOT}-{model.__name__}" if name.startswith((f"{ROOT}:", f"{ROOT}.")) else model.__name__
