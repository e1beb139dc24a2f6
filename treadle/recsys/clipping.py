"""The setting `clip_grad_norm`: a number, or the arguments of torch's function of that name."""

from collections.abc import Mapping
from typing import Any

from treadle.errors import ConfigError

ARGUMENTS = frozenset({"max_norm", "norm_type", "error_if_nonfinite", "foreach"})
"""The arguments of torch's `clip_grad_norm_`."""


def clip_limit(clip: Any) -> float | None:
    """Return the bound of the norm; None for no bound.

    Raises:
        ConfigError: It is no bound.
    """
    if clip is None or clip is False:
        return None
    limit = clip.get("max_norm") if isinstance(clip, Mapping) else clip
    unknown = set(clip) - ARGUMENTS if isinstance(clip, Mapping) else ()
    if unknown or isinstance(limit, bool) or not isinstance(limit, (int, float)) or limit <= 0:
        raise ConfigError(f"clip_grad_norm={clip!r} must be a number above 0, or a dict such as {{'max_norm': 5}}")
    return float(limit)


def clips_unusually(clip: Any) -> bool:
    """Whether the norm is another one than the Euclidean, which the core clips by.

    >>> clips_unusually({"max_norm": 5, "norm_type": 1}), clips_unusually({"max_norm": 5, "norm_type": 2})
    (True, False)
    """
    return isinstance(clip, Mapping) and clip.get("norm_type", 2) != 2
