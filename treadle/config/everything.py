"""All names that `treadle.config` exports, in one import."""

from treadle.config.from_config import configurable
from treadle.config.instantiation import InstantiationError, instantiate
from treadle.config.lazy_config import LazyCall, LazyConfig
from treadle.config.nodes import ConfigDict, ConfigList, ConfigTuple
from treadle.config.packaged import get_config
from treadle.config.selection import try_get_key
from treadle.config.targets import locate

__all__ = [
    "ConfigDict",
    "ConfigList",
    "ConfigTuple",
    "InstantiationError",
    "LazyCall",
    "LazyConfig",
    "configurable",
    "get_config",
    "instantiate",
    "locate",
    "try_get_key",
]
