"""The state of an optimizer that holds pieces of weights."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from treadle.checkpoint.format.shards import Piece, SavedTensor
from treadle.optim.state import OptimizerState
from treadle.parallel.local_shards import piece, saved_part
from treadle.phase import optimizer_params

if TYPE_CHECKING:
    from treadle.parallel.sharded import ShardedStrategy


class ShardedOptimizerState(OptimizerState):
    """The state of an optimizer that holds pieces of weights, under the numbers that the whole weights had.

    Args:
        optimizer: The optimizer.
        strategy: Who spread its weights.
    """

    def __init__(self, optimizer: Optimizer, strategy: "ShardedStrategy") -> None:
        self._optimizer = optimizer
        self._strategy = strategy
        self._groups = strategy.groups[id(optimizer)]
        names = [name for group in self._groups for name, _ in group]
        self._numbers = {name: number for number, name in enumerate(names)}

    def _parameters(self) -> list[list[Any]]:
        return [[name, list(shape)] for group in self._groups for name, shape in group]

    def _facts(self) -> dict[str, Any]:
        return {"kind": type(self._optimizer).__name__, "parameters in each group": list(map(len, self._groups))}

    def state_dict(self) -> dict[str, Any]:
        """Return what is here of the optimizer's state, with the names and shapes of all its weights."""
        state = {self._number(weight): self._pieces(weight, own) for weight, own in self._optimizer.state.items()}
        groups = self._optimizer.state_dict()["param_groups"]
        for group, names in zip(groups, self._groups, strict=True):
            group["params"] = [self._numbers[name] for name, _ in names]
        optimizer = {"state": state, "param_groups": groups}
        return {"facts": self._facts(), "parameters": self._parameters(), "optimizer": optimizer}

    def _number(self, weight: Any) -> int:
        return self._numbers[self._strategy.name_of(weight)]

    def _pieces(self, weight: Any, state: dict[str, Any]) -> dict[str, Any]:
        places = {key: self._strategy.like_weight(value, weight) for key, value in state.items()}
        return {key: value if (at := places[key]) is None else piece(value, at) for key, value in state.items()}

    def whole(self) -> dict[str, Any]:
        """Return the optimizer's own state with whole tensors; all processes must call it together."""
        pieces = self.state_dict()["optimizer"]
        every = self._strategy.processes.gather_objects(_hosted(pieces["state"]))
        return {"state": _put_together(every), "param_groups": pieces["param_groups"]}

    def _own_part(self, state: dict[str, Any]) -> dict[str, Any]:
        parts = {
            place: {key: self._part(value, weight) for key, value in state["state"][number].items()}
            for place, weight in enumerate(optimizer_params(self._optimizer))
            if (number := self._number(weight)) in state["state"]
        }
        groups = [dict(group) for group in state["param_groups"]]
        first = 0
        for group, own in zip(groups, self._optimizer.param_groups, strict=True):
            group["params"] = list(range(first, first + len(own["params"])))
            first += len(own["params"])
        return {"state": parts, "param_groups": groups}

    def _part(self, value: Any, weight: Any) -> Any:
        place = self._strategy.place_of(self._strategy.name_of(weight))
        if not isinstance(value, (Tensor, SavedTensor, Piece)):
            return value
        return saved_part(value, place if place.shape and tuple(value.shape) == place.shape else None)


def _hosted(tree: Any) -> Any:
    """Return a state with its tensors on the host, and without pieces that another rank has too."""
    if isinstance(tree, dict):
        return {key: _hosted(value) for key, value in tree.items()}
    if isinstance(tree, Piece):
        numbers = tree.tensor.cpu() if tree.written else tree.tensor.new_empty(0, device="cpu")
        return Piece(numbers, tree.shape, tree.offset, tree.written)
    return tree.cpu() if isinstance(tree, Tensor) else tree


def _put_together(states: list[dict[Any, Any]]) -> dict[Any, Any]:
    """Return the states of weights, by number, with each tensor put together from the pieces of all ranks."""
    result: dict[Any, dict[str, Any]] = {}
    for state in states:
        for number, values in state.items():
            whole = result.setdefault(number, {})
            for key, value in values.items():
                if not isinstance(value, Piece):
                    whole.setdefault(key, value)
                    continue
                if key not in whole:
                    whole[key] = torch.zeros(value.shape, dtype=value.tensor.dtype)
                if value.written:
                    sizes = zip(value.offset, value.tensor.shape, strict=True)
                    whole[key][tuple(slice(start, start + size) for start, size in sizes)] = value.tensor
    return dict(sorted(result.items()))
