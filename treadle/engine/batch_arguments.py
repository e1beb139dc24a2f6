"""How a batch becomes the arguments of a model."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch.nn.utils.rnn import PackedSequence

from treadle.config.arguments import known_names
from treadle.errors import DataError


def bind_placement(get_batch: Callable[..., Any], device: str | None, mixup: Any = None) -> Callable[[Any], Any]:
    """Return `get_batch` as a function of the batch alone, with those of the other arguments that it takes."""
    parameters = known_names(get_batch)
    offered = {"input_placement_device": device, "mixup_func": mixup}
    given = {name: value for name, value in offered.items() if name in parameters and value is not None}
    return lambda batch: get_batch(batch, **given)


def call_arguments(data: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Return what a model is called with for what `get_batch` returned.

    By name for a mapping, in order for a tuple, a list or an iterator; anything else, such as a tensor, is one
    argument.

    >>> call_arguments({"points": 1}), call_arguments([1, 2]), call_arguments("ab")
    (((), {'points': 1}), ((1, 2), {}), (('ab',), {}))

    Raises:
        DataError: It is None.
    """
    if data is None:
        raise DataError("get_batch returned None; return the arguments of the model: a dict, a tuple, or a tensor")
    if isinstance(data, Mapping):
        return (), data
    # A packed sequence is one thing, though it is a tuple by its class.
    several = isinstance(data, (list, tuple, Iterator)) and not isinstance(data, PackedSequence)
    return (tuple(data), {}) if several else ((data,), {})
