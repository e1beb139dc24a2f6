"""From a config to the trainer that it names."""

from collections.abc import Callable
from functools import partial
from typing import Any

from treadle.config import instantiate, locate, try_get_key
from treadle.config.nodes import is_lazy, location
from treadle.engine.trainers.default import DefaultTrainer
from treadle.errors import ConfigError


def build_trainer(cfg: Any) -> Callable[[Any], DefaultTrainer]:
    """Return what makes the trainer of a config: `DefaultTrainer`, or what its key `trainer` says.

    The key is the full name of a class, or a lazy call of it without its first argument, the config:
    `trainer = L(MyTrainer)(patience=3)`.

    Raises:
        ConfigError: It is neither, or no `DefaultTrainer`.
    """
    node = try_get_key(cfg, "trainer")
    if node is None:
        return DefaultTrainer
    if is_lazy(node):
        make = instantiate(node, _partial_=True)
    elif isinstance(node, str):
        make = _located(cfg, node)
    else:
        raise ConfigError(f"{location(cfg, 'trainer')} is {node!r}; give the full name of a class, or a LazyCall of it")
    kind = make.func if isinstance(make, partial) else make
    if isinstance(kind, type) and not issubclass(kind, DefaultTrainer):
        raise ConfigError(f"{location(cfg, 'trainer')}: {kind.__name__} is no DefaultTrainer; derive it from that")
    return make  # type: ignore[no-any-return]


def _located(cfg: Any, name: str) -> Any:
    try:
        return locate(name)
    except ConfigError as error:
        raise ConfigError(f"{location(cfg, 'trainer')}: {error}") from error
