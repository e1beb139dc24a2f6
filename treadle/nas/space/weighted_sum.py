"""Weighted sums of what candidates return."""

from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from treadle.errors import ConfigError


def weighted_sum(weights: Tensor, outputs: Sequence[Any], *, where: str, left_out: Sequence[int] = ()) -> Any:
    """Return the sum of `outputs`, each times its weight; of tuples, lists and dicts of tensors part by part.

    Args:
        weights: A weight for each candidate.
        outputs: What the candidates returned.
        where: The label of the choice, for messages.
        left_out: Positions of candidates that would have returned zeros, and are not among the outputs.

    Raises:
        ConfigError: The outputs cannot be added: they differ in shape, or in what they are made of.
    """
    places = tuple(place for place in range(len(outputs) + len(left_out)) if place not in left_out)
    if all(isinstance(output, Tensor) for output in outputs):
        return _sum(weights, outputs, places, where)
    flat = [tree_flatten(output) for output in outputs]
    if any(spec != flat[0][1] for _, spec in flat):
        raise ConfigError(f"the candidates of {where!r} return different structures, which cannot be added")
    columns = list(zip(*(leaves for leaves, _ in flat), strict=True))
    return tree_unflatten([_one(weights, column, places, where) for column in columns], flat[0][1])


def _one(weights: Tensor, column: Sequence[Any], places: tuple[int, ...], where: str) -> Any:
    if all(isinstance(value, Tensor) and value.is_floating_point() for value in column):
        return _sum(weights, column, places, where)
    first = column[0]
    if all(_same(value, first) for value in column):
        return first
    raise ConfigError(
        f"the candidates of {where!r} return {first!r} and others in the same place, which cannot be added"
    )


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return isinstance(one, Tensor) and isinstance(other, Tensor) and one is other
    return bool(one == other)


def _sum(weights: Tensor, tensors: Sequence[Tensor], places: tuple[int, ...], where: str) -> Tensor:
    first = tensors[0]
    if any(tensor.shape != first.shape for tensor in tensors):
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
        raise ConfigError(f"the candidates of {where!r} have the shapes {shapes}; weighed together, they must be alike")
    if torch.compiler.is_compiling():
        # A compiler fuses the plain formula better.
        parts = [weights[place] * tensor for place, tensor in zip(places, tensors, strict=True)]
        return sum(parts[1:], parts[0])
    total: Tensor = _WeightedSum.apply(weights, places, *tensors)  # type: ignore[no-untyped-call]
    return total


class _WeightedSum(torch.autograd.Function):
    """The sum itself: one kernel for each tensor, and no product is kept for the backward pass."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, places: tuple[int, ...], *tensors: Tensor) -> Tensor:
        # Under autocast one candidate returns halves and the next does not; the sum is as wide as the widest, as the
        # plain formula would be. In half precision the weights are rounded as the product of both would be.
        dtype = reduce(torch.promote_types, (tensor.dtype for tensor in tensors))
        halves = weights.to(dtype)
        total = tensors[0].to(dtype) * halves[places[0]]
        for place, tensor in zip(places[1:], tensors[1:], strict=True):
            total.addcmul_(tensor, halves[place])
        ctx.places = places
        ctx.weighed = ctx.needs_input_grad[0]
        ctx.save_for_backward(weights, *(tensors if ctx.weighed else ()))
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        weights, *tensors = ctx.saved_tensors
        halves = weights.to(gradient.dtype)
        wanted = ctx.needs_input_grad[2:]
        parts = [gradient * halves[place] if one else None for place, one in zip(ctx.places, wanted, strict=True)]
        own: Tensor | None = None
        if ctx.weighed:
            products = dict(zip(ctx.places, (_inner(gradient, tensor) for tensor in tensors), strict=True))
            nothing = torch.zeros_like(next(iter(products.values())))
            own = torch.stack([products.get(place, nothing) for place in range(len(weights))]).to(weights.dtype)
        return (own, None, *parts)


def _inner(one: Tensor, other: Tensor) -> Tensor:
    """Return the sum of the products of two tensors, in one pass where their memory allows it."""
    left, right = _flat(one), _flat(other)
    # A dot product ends in the type of its arguments, and fp16, scaled for its loss, has no room for a sum.
    alike = one.dtype == other.dtype != torch.float16 and one.stride() == other.stride()
    if left is None or right is None or not alike:
        return (one * other).sum(dtype=torch.promote_types(one.dtype, torch.float32))
    return torch.dot(left, right)


def _flat(tensor: Tensor) -> Tensor | None:
    """Return the elements in the order of memory, without a copy; None if that cannot be."""
    if tensor.is_contiguous():
        return tensor.view(-1)
    if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        return tensor.permute(0, 2, 3, 1).reshape(-1)
    return None
