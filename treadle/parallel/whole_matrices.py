"""Optimizers that look at whole matrices, where each process holds a piece of them."""

import inspect
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from treadle.parallel.local_shards import Place, like_shard

if TYPE_CHECKING:
    from treadle.parallel.sharded import ShardedStrategy


def step_with_whole_matrices(optimizer: Optimizer, strategy: "ShardedStrategy") -> None:
    """Have an optimizer update whole matrices in each step, one after the other, and keep the pieces that are here.

    An update that is orthogonal as a whole is not so piece by piece. So weight, gradient and state of a matrix are put
    together on each process that has a piece of it, which makes the same update as one process would, to the last
    bit. It costs one exchange and the work of the whole update for each matrix; no more than one is whole at a time.

    Args:
        optimizer: The optimizer, which holds the pieces.
        strategy: Who has cut the weights.
    """
    # Below the hooks that torch puts around a step: they are for the step, and not for each matrix.
    update = inspect.unwrap(type(optimizer).step)

    @torch.no_grad()
    def step(self: Any, closure: Any = None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    _update_whole(self, group, weight, strategy, update)
        # Schedules of torch's complain if no update came before them; what they put around a step is below this one.
        self._opt_called = True

    stepping = MethodType(Optimizer.profile_hook_step(step), optimizer)
    optimizer.step = stepping  # type: ignore[method-assign]


def _update_whole(
    optimizer: Any, group: dict[str, Any], weight: nn.Parameter, strategy: "ShardedStrategy", update: Any
) -> None:
    place = strategy.place_of(strategy.name_of(weight))
    own = optimizer.state.pop(weight, {})
    shared = [name for name, value in own.items() if like_shard(value, weight)]
    pieces = [weight.detach(), weight.grad, *(own[name] for name in shared)]
    whole, gradient, *states = strategy.put_together(pieces, strategy.name_of(weight))
    matrix = nn.Parameter(whole)
    matrix.grad = gradient
    optimizer.state[matrix] = {**own, **dict(zip(shared, states, strict=True))}
    groups = optimizer.param_groups
    optimizer.param_groups = [{**group, "params": [matrix]}]
    try:
        update(optimizer)
    finally:
        optimizer.param_groups = groups
    made = optimizer.state.pop(matrix)
    weight.copy_(matrix.detach()[place.slices])
    optimizer.state[weight] = {name: _kept(own.get(name), value, place) for name, value in made.items()}


def _kept(before: Any, value: Any, place: Place) -> Any:
    """Return the piece that is here of what the optimizer keeps, in the memory where it was before."""
    if not isinstance(value, Tensor) or tuple(value.shape) != place.shape:
        return value
    return value[place.slices].clone() if before is None else before.copy_(value[place.slices])


def put_together(pieces: list[Tensor], place: Place, groups: list[Any]) -> list[Tensor]:
    """Return whole tensors of which this rank has the same piece of each; all ranks of `groups` call it together.

    Args:
        pieces: What is here.
        place: Where it lies in the whole.
        groups: The groups over which a whole is cut, one after the other.
    """
    if not groups:
        return [piece.clone() for piece in pieces]
    whole = pieces[0].new_zeros(len(pieces), *place.shape)
    for row, piece in zip(whole, pieces, strict=True):
        row[place.slices] = piece
    for group in groups:
        # Each number is on one rank of a group and zero on the others: the sum is exact.
        dist.all_reduce(whole, group=group)
    return list(whole.unbind())
