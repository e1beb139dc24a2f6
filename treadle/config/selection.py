"""Keys that a config may or may not have."""

from typing import Any

from omegaconf import OmegaConf

_ABSENT = object()


def try_get_key(config: Any, *keys: str, default: Any = None) -> Any:
    """Return the value of the first of `keys` that the config has, or `default` if it has none of them.

    A key that is there with the value None counts as there: the answer is None, not `default`. A key whose value is
    still to be given (`???`) counts as absent.

    >>> from treadle.config.nodes import ConfigDict
    >>> config = ConfigDict({"train": {"seed": None, "steps": 10}})
    >>> try_get_key(config, "train.max_iter", "train.steps", default=0)
    10
    >>> try_get_key(config, "train.seed", default=1234) is None
    True

    Args:
        config: where to look.
        keys: dotted names, such as `train.scheduler.alpha`.
        default: what to return if the config has none of them.
    """
    for key in keys:
        value = OmegaConf.select(config, key, default=_ABSENT)
        if value is not _ABSENT:
            return value
    return default
