"""`configurable`: a constructor that can also be given a whole config."""

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from omegaconf import DictConfig

from treadle.config.nodes import as_node
from treadle.errors import ConfigError


def configurable(constructor: Callable[..., None]) -> Callable[..., None]:
    """Let an `__init__` take one config in place of its arguments, which the class reads from it.

    The class says in a class method `from_config(cfg)` which arguments a config stands for.

    >>> class Decoder:
    ...     @configurable
    ...     def __init__(self, width, layers):
    ...         self.width, self.layers = width, layers
    ...     @classmethod
    ...     def from_config(cls, cfg):
    ...         return {"width": cfg.hidden_size, "layers": cfg.hidden_layers}
    >>> Decoder(cfg={"hidden_size": 8, "hidden_layers": 2}).width
    8
    >>> Decoder(width=4, layers=1).width
    4

    Args:
        constructor: the `__init__` to decorate.

    Raises:
        ConfigError: something else than an `__init__` is decorated, or the class has no `from_config`.
    """
    if getattr(constructor, "__name__", None) != "__init__":
        raise ConfigError(f"configurable is for __init__, got {constructor!r}")

    @wraps(constructor)
    def configured(self: Any, *positional: Any, **arguments: Any) -> None:
        given = _given_config(positional, arguments)
        if given is None:
            constructor(self, *positional, **arguments)
            return
        rest = {name: value for name, value in arguments.items() if name != "cfg"}
        constructor(self, **{**_read(type(self), given), **rest})

    # It takes the arguments of the constructor, `cfg`, or both, so a check by name would be wrong.
    either = inspect.signature(lambda self, *positional, **arguments: None)
    configured.__signature__ = either  # type: ignore[attr-defined]
    return configured


def _given_config(positional: tuple[Any, ...], arguments: Mapping[str, Any]) -> Any:
    given = positional[0] if len(positional) == 1 else arguments.get("cfg")
    return given if isinstance(given, (DictConfig, dict)) else None


def _read(owner: type, given: Any) -> dict[str, Any]:
    from_config = getattr(owner, "from_config", None)
    if from_config is None:
        raise ConfigError(f"{owner.__name__} was given a config, but has no class method from_config(cfg) to read it")
    arguments: dict[str, Any] = from_config(as_node(given))
    return arguments
