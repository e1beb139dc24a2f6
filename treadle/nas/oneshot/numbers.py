"""What a user's function says of a batch, as a number on the device."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from treadle.errors import ConfigError


def number_of(value: Any, device: torch.device, name: str | None = None) -> Tensor:
    """Return a number, or the one of several called `name`, by default the first, as a tensor.

    Raises:
        ConfigError: There is none of that name, or it is no number.
    """
    if isinstance(value, Mapping):
        if name is not None and name not in value:
            raise ConfigError(f"there is no metric {name!r}; the function returned {list(value)}")
        value = value[name] if name is not None else next(iter(value.values()))
    if isinstance(value, Tensor):
        return value.detach().float().mean()
    if isinstance(value, (int, float)):
        return torch.tensor(float(value), device=device)
    raise ConfigError(f"a metric returned a {type(value).__name__}; return a number, a tensor or a dict of them")
