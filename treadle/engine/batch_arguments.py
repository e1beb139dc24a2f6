"""How a batch becomes the arguments of a model."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any


def with_placement(get_batch: Callable[..., Any], device: str | None, mixup: Any = None) -> Callable[[Any], Any]:
    """Return `get_batch` as a function of the batch alone, with those of the other arguments that it takes."""
    parameters = inspect.signature(get_batch).parameters
    offered = {"input_placement_device": device, "mixup_func": mixup}
    given = {name: value for name, value in offered.items() if name in parameters and value is not None}
    return lambda batch: get_batch(batch, **given)


def call_arguments(data: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Return what a model is called with for what `get_batch` returned: by name for a mapping, else in order.

    >>> call_arguments({"points": 1}), call_arguments([1, 2])
    (((), {'points': 1}), ((1, 2), {}))
    """
    return ((), data) if isinstance(data, Mapping) else (tuple(data), {})
