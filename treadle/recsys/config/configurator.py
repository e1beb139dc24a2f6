"""The settings of a run: what comes with Treadle, and over it files, a dict and the command line."""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from treadle.errors import ConfigError, did_you_mean
from treadle.recsys.config.core_options import SETTINGS, checked_setting
from treadle.recsys.config.defaults import (
    MERGED,
    all_known_names,
    default_settings,
    framework_defaults,
    merge,
)
from treadle.recsys.config.defaults import read_settings_file as read_file
from treadle.recsys.config.evaluation import check_model_type, resolve_evaluation, resolve_training
from treadle.recsys.config.values import (
    check_least,
    log_level,
    model_value,
    parse_arguments,
    parse_literal,
    typed_value,
)
from treadle.recsys.enums import ModelType
from treadle.recsys.model_registry import get_model

logger = logging.getLogger(__name__)
COMMAND_LINE = "the command line"
DICT = "config_dict"
DERIVED = (
    "MODEL_TYPE",
    "MODEL_INPUT_TYPE",
    "eval_type",
    "device",
    "single_spec",
    "local_rank",
    "world_size",
    "valid_neg_sample_args",
    "test_neg_sample_args",
)
"""Settings that follow from the others."""


class Config:
    """The settings of a run, by RecBole's names.

    The command line goes over `config_dict`, that over the files, later files over earlier ones, and all of them over
    what comes with Treadle: for the model, for its kind, for the data set, for everything. `config["name"]` is None if
    nobody has set it. Settings that Treadle does not know are kept for the model; `check_unread_keys` tells which of
    them nobody has read.

    Args:
        model: A model class, which may bring `default_settings` of its own; or its name: of a model that Treadle knows,
            `recbole:ENMF` for one of RecBole's package, `my_model.py:MyModel` for one of a file. None looks for `model`
            among the settings; without one the config serves to prepare data only.
        dataset: The name of the data set. None looks for `dataset` among the settings.
        config_file_list: YAML files.
        config_dict: Settings by name; text is parsed where the setting is not text.
        argv: Arguments of a command line, `--name=value`. The program's own are read only if they are handed over.

    Attributes:
        model: The name of the model.
        model_class: Its class.
        dataset: The name of the data set.
        internal_config_dict: What comes with Treadle.
        external_config_dict: What was given.
        final_config_dict: All settings, and what follows from them.

    Raises:
        ConfigError: A setting cannot be meant.
        UnknownMetricError: `valid_metric` is not among the metrics.
    """

    def __init__(
        self,
        model: Any = None,
        dataset: str | None = None,
        config_file_list: Sequence[str | os.PathLike[str]] | None = None,
        config_dict: Mapping[str, Any] | None = None,
        *,
        argv: Sequence[str] | None = None,
    ) -> None:
        self._read: set[str] = set()
        given, self._origins = _collect(config_file_list or (), _checked_dict(config_dict), argv or ())
        chosen = model if model is not None else given.get("model")
        self.model_class: Any = None if chosen is None else get_model(chosen)
        self.model = str(getattr(self.model_class, "__name__", "none"))
        self.dataset = _dataset_name(dataset, given)
        self._kind = _model_type(self.model_class)
        brought = getattr(self.model_class, "default_settings", None)
        self.internal_config_dict = default_settings(self._kind.name.lower(), self._ancestry(), self.dataset, brought)
        self.external_config_dict = self._typed(given)
        self.final_config_dict: dict[str, Any] = {}
        self._settle()

    def _ancestry(self) -> list[str]:
        return [] if self.model_class is None else [kind.__name__ for kind in self.model_class.__mro__]

    def _typed(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return what was given, each value in the type that it must have."""
        framework = framework_defaults()
        typed = {}
        for name, value in given.items():
            where = self._origins[name]
            if name in framework:
                typed[name] = typed_value(name, value, self.internal_config_dict.get(name, framework[name]), where)
            elif name in self.internal_config_dict:
                typed[name] = model_value(name, value, self.internal_config_dict[name], where)
            elif isinstance(value, str) and where in (DICT, COMMAND_LINE):
                typed[name] = parse_literal(value)
            else:
                typed[name] = value
            if name in SETTINGS:
                typed[name] = checked_setting(name, typed[name], where)
        return typed

    def _settle(self) -> None:
        settings = self.final_config_dict
        merge(settings, self.internal_config_dict)
        merge(settings, self.external_config_dict)
        settings |= {"model": self.model, "dataset": self.dataset, "MODEL_TYPE": self._kind}
        if isinstance(settings["additional_feat_suffix"], str):
            settings["additional_feat_suffix"] = [settings["additional_feat_suffix"]]
        check_least(settings)
        log_level(settings["state"])
        resolve_training(settings, self.model_class, self.external_config_dict)
        resolve_evaluation(settings)
        check_model_type(settings)
        self._data_root = str(settings["data_path"])
        settings["data_path"] = str(_data_folder(self._data_root, self.dataset, "data_path" in self._origins))
        settings |= _place(settings["use_gpu"], settings["gpu_id"])

    def __getitem__(self, name: str) -> Any:
        self._read.add(name)
        return self.final_config_dict.get(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a setting, or `default` if nobody has set it."""
        self._read.add(name)
        return self.final_config_dict.get(name, default)

    def __getattr__(self, name: str) -> Any:
        settings = self.__dict__.get("final_config_dict", {})
        if name in settings:
            self._read.add(name)
            return settings[name]
        raise AttributeError(f"there is no setting {name!r}{did_you_mean(name, settings)}")

    def __setitem__(self, name: str, value: Any) -> None:
        if not isinstance(name, str):
            raise ConfigError(f"a setting is named by text, not by {type(name).__name__}")
        self.final_config_dict[name] = value

    def __contains__(self, name: object) -> bool:
        if isinstance(name, str):
            self._read.add(name)
        return name in self.final_config_dict

    def __iter__(self) -> Iterator[str]:
        return iter(self.final_config_dict)

    @property
    def seed_of_split(self) -> int:
        """What decides the parts of the data, and the items that an evaluation draws: `split_seed`, or `seed`."""
        own = self["split_seed"]
        return int(self["seed"] if own is None else own)

    def require_model(self) -> None:
        """Make sure that there is a model to train.

        Raises:
            ConfigError: The settings name none.
        """
        if self.model_class is None:
            raise ConfigError(_missing("model", "model", self.external_config_dict))

    def check_unread_keys(self, origins: Mapping[str, str] | None = None) -> list[str]:
        """Complain about settings that were given and that nothing has read; call it when all parts are built.

        Args:
            origins: Where settings come from, for messages, if the config does not know better.

        Returns:
            Those that nothing read and that are like no setting that there is; each is logged as a warning.

        Raises:
            ConfigError: One of them is nearly a setting that there is: it must be a slip.
        """
        known = {*self.internal_config_dict, *DERIVED, *SETTINGS, "model", "dataset"}
        unread = [name for name in self.external_config_dict if name not in self._read and name not in known]
        elsewhere = all_known_names()
        places = {**self._origins, **(origins or {})}
        for name in unread:
            near = did_you_mean(name, sorted((known | self._read) - {name}))
            if near and name not in elsewhere:
                raise ConfigError(
                    f"{name}={self.external_config_dict[name]!r} in {places[name]}: nothing reads it{near}"
                )
            logger.warning("%s in %s: nothing in %s reads it%s", name, places[name], self.model, near)
        return unread

    def plain(self) -> dict[str, Any]:
        """Return the settings as plain data: `Config(model, dataset, config_dict=plain)` is the same config again."""
        settings = {name: value for name, value in self.final_config_dict.items() if name not in DERIVED}
        del settings["data_path"]
        if "data_path" in self._origins:
            settings["data_path"] = self._data_root
        if settings["train_neg_sample_args"]["distribution"] == "none":
            settings["train_neg_sample_args"] = None
            if "train_neg_sample_args" not in self._origins:
                # To take the negatives away from a model that learns from pairs is refused where somebody asks for it.
                del settings["train_neg_sample_args"]
        return settings

    def __repr__(self) -> str:
        return f"Config(model={self.model!r}, dataset={self.dataset!r})"

    def __str__(self) -> str:
        lines = [f"{self.model} on {self.dataset}; * marks what was given"]
        for name, value in self.final_config_dict.items():
            lines.append(f"{'*' if name in self.external_config_dict else ' '} {name} = {value}")
        return "\n".join(lines)


def _collect(
    files: Sequence[str | os.PathLike[str]], settings: Mapping[str, Any], argv: Sequence[str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return everything that was given, and where each setting was given last."""
    given: dict[str, Any] = {}
    origins: dict[str, str] = {}
    if isinstance(files, (str, os.PathLike)):
        raise ConfigError(f"config_file_list={os.fspath(files)!r} must be a list of files")
    layers: list[tuple[str, Mapping[str, Any]]] = [(os.fspath(file), read_file(file)) for file in files]
    layers += [(DICT, settings), (COMMAND_LINE, parse_arguments(argv))]
    for where, layer in layers:
        # What a text stands for must be known before parts of it can be merged.
        readable = {name: parse_literal(value) if _holds_parts(name, value) else value for name, value in layer.items()}
        merge(given, readable)
        origins |= dict.fromkeys(layer, where)
    return given, origins


def _checked_dict(given: Any) -> Mapping[str, Any]:
    """Return the settings of a dict, having made sure that it is one, of names."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ConfigError(f"config_dict={given!r} must be a dict of settings by name, such as {{'epochs': 5}}")
    wrong = [name for name in given if not isinstance(name, str)]
    if wrong:
        raise ConfigError(f"config_dict has the key {wrong[0]!r}; a setting is named by text, such as 'epochs'")
    return given


def _holds_parts(name: str, value: Any) -> bool:
    return name in MERGED and isinstance(value, str)


def _dataset_name(dataset: str | None, given: Mapping[str, Any]) -> str:
    name = dataset if dataset is not None else given.get("dataset")
    if name is None:
        raise ConfigError(_missing("data set", "dataset", given))
    return str(name)


def _missing(what: str, name: str, given: Mapping[str, Any]) -> str:
    """Return, in words, that a setting is missing, and which one was perhaps meant for it."""
    near = next((f"; {one!r} is given: did you mean {name!r}?" for one in given if did_you_mean(one, [name])), "")
    return f"there is no {what}: pass {name}=, or set it in a file, the dict or the command line{near}"


def _model_type(model: Any) -> ModelType:
    kind = ModelType.GENERAL if model is None else getattr(model, "type", None)
    if not isinstance(kind, ModelType):
        raise ConfigError(f"{model.__name__}.type is {kind!r}; a model says with type= which ModelType it is")
    return kind


def _data_folder(root: str, dataset: str, chosen: bool) -> Path:
    """Return the folder of the data set; where nobody has chosen one, TREADLE_DATA may name it."""
    folder = Path(root).expanduser() / dataset
    elsewhere = os.environ.get("TREADLE_DATA")
    if not chosen and elsewhere and not folder.is_dir():
        return Path(elsewhere).expanduser() / dataset
    return folder


def _place(use_gpu: bool, gpu_id: Any) -> dict[str, Any]:
    """Return where this process trains: on the GPU that is its own, or on the CPU."""
    numbers = [part for part in _gpu_numbers(gpu_id).split(",") if part]
    size, local = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("LOCAL_RANK", "0"))
    settings: dict[str, Any] = {"single_spec": size == 1, "local_rank": local, "world_size": size}
    if not use_gpu or not numbers or not torch.cuda.is_available():
        return {**settings, "device": torch.device("cpu")}
    if any(not part.isdecimal() for part in numbers):
        raise ConfigError(f"gpu_id={gpu_id!r} must be numbers of GPUs, such as '0' or '0,1', or '' for the CPU")
    chosen = int(numbers[local]) if len(numbers) > local else local
    if chosen >= torch.cuda.device_count():
        raise ConfigError(f"gpu_id={gpu_id!r}: there is no GPU {chosen}; this machine has {torch.cuda.device_count()}")
    return {**settings, "device": torch.device("cuda", chosen)}


def _gpu_numbers(gpu_id: Any) -> str:
    if gpu_id is None:
        return ""
    if isinstance(gpu_id, (list, tuple)):
        return ",".join(map(str, gpu_id))
    return str(gpu_id).replace(" ", "")
