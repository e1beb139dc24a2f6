"""How a batch becomes the arguments of a model."""

import inspect
from collections.abc import Callable
from typing import Any


def with_placement(get_batch: Callable[..., Any], device: str | None, mixup: Any = None) -> Callable[[Any], Any]:
    """Return `get_batch` as a function of the batch alone, with those of the other arguments that it takes."""
    parameters = inspect.signature(get_batch).parameters
    offered = {"input_placement_device": device, "mixup_func": mixup}
    given = {name: value for name, value in offered.items() if name in parameters and value is not None}
    return lambda batch: get_batch(batch, **given)
