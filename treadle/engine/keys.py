"""The keys of a config that this door reads: each is there or misspelt, and holds what it can mean."""

import logging

from omegaconf import DictConfig

from treadle.config import LazyCall
from treadle.config.key_types import Key, Keys, check_section, origin, packaged_keys
from treadle.config.nodes import children, is_lazy
from treadle.engine.option_names import NAMES
from treadle.errors import ConfigError, did_you_mean
from treadle.spec import Refused

logger = logging.getLogger(__name__)

SECTIONS = ("model", "optim", "dataloader", "tokenization", "train", "graph", "trainer")
"""The names at the top of a config that say what is built; a file may have any others for its own use."""

RENAMED = {"max_iter": "train.train_iter", "init_checkpoint": "train.load_weight"}
"""What detectron2 calls a key of `train`, where that can be nobody's own."""

_CHECKED: dict[str, Keys | Key | str] = {
    "model": Key(LazyCall | dict),
    "optim": Key(LazyCall | dict),
    "train": "common/train.py",
    "graph": "common/models/graph.py",
    "dataloader": {"train": Key(LazyCall | list | None), "test": Key(LazyCall | dict | list | None)},
    "tokenization": {"tokenizer": Key(LazyCall | None), "make_vocab_size_divisible_by": Key(int, 1)},
}


def check_keys(cfg: DictConfig) -> list[str]:
    """Check every key that this door reads, and its value; texts such as `off` become truth values in place.

    Returns:
        The keys of these sections that nobody knows and that resemble none; they are left to the user's own code.

    Raises:
        ConfigError: A key is misspelt, or a value is none that its key takes.
    """
    unknown: list[str] = []
    _check_names(cfg)
    _check_renamed(cfg)
    for section, known in _CHECKED.items():
        if cfg.get(section) is not None and not is_lazy(cfg[section]):
            unknown += check_section(cfg, section, packaged_keys(known, section) if isinstance(known, str) else known)
    return unknown


def _check_names(cfg: DictConfig) -> None:
    """Refuse a name at the top that is nearly that of a section which is not there."""
    missing = [name for name in SECTIONS if name not in cfg]
    for name, _ in children(cfg):
        near = did_you_mean(str(name), missing) if name not in SECTIONS else ""
        if near:
            raise ConfigError(f"unknown key {name!r}{origin(cfg, str(name))}{near}")


def _check_renamed(cfg: DictConfig) -> None:
    for name, _ in children(cfg._get_node("train")):
        if name in RENAMED:
            path = f"train.{name}"
            raise ConfigError(f"unknown key {path!r}{origin(cfg, path)}; did you mean {RENAMED[name]!r}?")
        option = NAMES.get(str(name))
        if isinstance(option, Refused):
            path = f"train.{name}"
            raise ConfigError(f"unknown key {path!r}{origin(cfg, path)}: {option.reason}")


def tell_unknown(unknown: list[str]) -> None:
    """Say in one line which keys nobody but the user's own code can read."""
    if unknown:
        logger.warning("keys that Treadle does not read, left to your own code: %s", ", ".join(unknown))
