"""Lazy configs: calls written down in a file, changed from the command line, made when the run starts.

Importing this costs nothing: OmegaConf and Hydra are loaded when a name below is first used.
"""

from typing import TYPE_CHECKING, Any

from treadle.errors import load_module

if TYPE_CHECKING:
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


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'treadle.config' has no attribute {name!r}")
    return getattr(load_module("treadle.config.everything"), name)


def __dir__() -> list[str]:
    return __all__
