"""All names that `treadle.config` exports, in one import."""

from treadle.config.from_config import configurable
from treadle.config.instantiation import InstantiationError, instantiate
from treadle.config.lazy_call import LazyCall
from treadle.config.lazy_config import LazyConfig
from treadle.config.locating import locate
from treadle.config.nodes import ConfigDict, ConfigList, ConfigTuple
from treadle.config.packaged import get_config
from treadle.config.selection import try_get_key

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
