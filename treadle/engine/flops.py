"""How many operations a model makes for one sample, counted in a pass that computes nothing."""

import copy
import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from treadle.data import size_of
from treadle.events import EventStorage
from treadle.parallel import strategy_of

logger = logging.getLogger(__name__)

FORWARD_AND_BACKWARD = 3
"""A backward pass makes two products for each of the forward pass."""

TOKEN_INPUTS = ("input_ids", "tokens", "token_ids", "encoder_input_ids", "ids", "idx")
"""The names of inputs that are (samples, length) of tokens."""


class FlopsCounter:
    """Counts the operations of one sample in the first pass of a run.

    The pass is made by a copy of the model on the "meta" device, where tensors have shapes and no numbers: no weight,
    no buffer and no random generator is touched. A model that cannot run there is reported in the log, and not
    counted.

    Attributes:
        flops_per_sample: Operations of a forward and a backward pass; None if they could not be counted.
        tokens_per_sample: The length of the token input; None if there is none.
    """

    def __init__(self) -> None:
        self.flops_per_sample: float | None = None
        self.tokens_per_sample: int | None = None

    def count(self, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Count the operations of `model(*args, **kwargs)`."""
        samples = size_of(kwargs if kwargs else args)
        self.tokens_per_sample = _length_of_tokens(kwargs)
        strategy = strategy_of(model)
        if strategy is not None and strategy.in_stages:
            logger.info("mfu is not reported: no process has all of %s; set train.flops_per_sample", _name(model))
            return
        try:
            total = count_forward(model, args, kwargs)
        except Exception as error:
            logger.info("mfu is not reported: the operations of %s cannot be counted (%s)", _name(model), error)
            return
        if total:
            self.flops_per_sample = FORWARD_AND_BACKWARD * total / max(samples, 1)


def count_forward(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    """Return the operations of one forward pass; a multiplication and an addition are two.

    >>> count_forward(nn.Linear(4, 3, bias=False), (torch.zeros(2, 4),), {})
    48
    """
    shadow = shadow_of(model)
    counter = FlopCounterMode(display=False)
    # What the model reports in this pass is of no iteration.
    with torch.no_grad(), EventStorage(), counter:
        shadow(*on_meta(args), **on_meta(kwargs))
    return int(counter.get_total_flops())


def shadow_of(model: nn.Module) -> nn.Module:
    """Return a copy of `model` whose tensors have no numbers, and whose passes nobody notices."""
    tensors = [*model.parameters(), *model.buffers()]
    # Found in the memo, a tensor is not copied but replaced: no memory of the device is taken.
    shadow = copy.deepcopy(model, {id(tensor): _without_numbers(tensor) for tensor in tensors})
    for module in shadow.modules():
        module._forward_hooks.clear()
        module._forward_pre_hooks.clear()
        # A forward put there afterwards, as for recomputed activations, is that of the original.
        vars(module).pop("forward", None)
    return shadow


def _without_numbers(tensor: Tensor) -> Tensor:
    bare = tensor.detach().to("meta")
    return nn.Parameter(bare, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else bare


def on_meta(value: Any) -> Any:
    """Return `value` with the shapes of its tensors alone."""
    if isinstance(value, Tensor):
        return value.detach().to("meta")
    if isinstance(value, Mapping):
        return {key: on_meta(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(on_meta, value))
    return value


def _length_of_tokens(kwargs: Mapping[str, Any]) -> int | None:
    for name in TOKEN_INPUTS:
        value = kwargs.get(name)
        if isinstance(value, Tensor) and value.dim() >= 2:
            return int(value.shape[1])
    return None


def _name(model: Callable[..., Any]) -> str:
    return type(model).__name__
