"""An optimizer's state, saved with the names and shapes that prove it belongs to this model."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from treadle.data.batch import map_leaves
from treadle.errors import CheckpointError
from treadle.optim.fused import counters_to_device


class OptimizerState:
    """Saves and restores one optimizer, and refuses the state of another model's.

    Torch matches the state to parameters by position alone and takes wrong shapes without a word; it also lets
    the checkpoint decide whether the optimizer is fused. Here names and shapes are compared first, and how the
    optimizer is carried out stays as it was built.
    """

    reads_pieces = True
    IMPLEMENTATION = ("foreach", "fused", "capturable", "differentiable")

    def __init__(self, optimizer: Optimizer, model: nn.Module) -> None:
        self._optimizer = optimizer
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._names = names

    def _parameters(self) -> list[list[Any]]:
        return [
            [self._names.get(id(parameter), "?"), list(parameter.shape)]
            for group in self._optimizer.param_groups
            for parameter in group["params"]
        ]

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state with the names and shapes of its parameters."""
        return {"facts": self._facts(), "parameters": self._parameters(), "optimizer": self._optimizer.state_dict()}

    def whole(self) -> dict[str, Any]:
        """Return the optimizer's own state, of all processes."""
        return self._optimizer.state_dict()

    def load_whole(self, state: dict[str, Any]) -> None:
        """Take the optimizer's own state back: what of it belongs here.

        Raises:
            CheckpointError: An argument of it is nothing that this optimizer could be given.
        """
        self._check_arguments(state["param_groups"])
        kept = [
            {key: group[key] for key in self.IMPLEMENTATION if key in group} for group in self._optimizer.param_groups
        ]
        self._optimizer.load_state_dict(_copied(self._own_part(state)))
        for group, how in zip(self._optimizer.param_groups, kept, strict=True):
            group.update(how)
        counters_to_device(self._optimizer)
        _lay_out_like_weights(self._optimizer)

    def _check_arguments(self, groups: list[dict[str, Any]]) -> None:
        """Refuse words and containers where the optimizer has numbers, which it would fail by in its next step."""
        numbers = (bool, int, float, type(None), Tensor)
        for place, (old, new) in enumerate(zip(groups, self._optimizer.param_groups, strict=False)):
            for name in sorted(set(new) - {"params", "param_names", "initial_lr"}):
                kinds = numbers if isinstance(new[name], numbers) else (list, tuple, *numbers[-2:])
                if isinstance(new[name], (*numbers, list, tuple)) and not isinstance(old.get(name), kinds):
                    raise CheckpointError(
                        f"the optimizer's state has {name}={old.get(name)!r} in group {place}, where this optimizer "
                        f"has {new[name]!r}"
                    )

    def _own_part(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return what of the state of all processes belongs to this one."""
        return state

    def _facts(self) -> dict[str, Any]:
        sizes = [len(group["params"]) for group in self._optimizer.param_groups]
        return {"kind": type(self._optimizer).__name__, "parameters in each group": sizes}

    def changed_arguments(self, state: dict[str, Any], scheduled: Iterable[str] = ()) -> list[str]:
        """Return, in words, which arguments of the optimizer differ from those in `state`.

        Args:
            state: What `state_dict` returned.
            scheduled: Arguments that a schedule moves, which are no news.
        """
        changes: list[str] = []
        saved_groups = state["optimizer"]["param_groups"]
        moving = {"params", "initial_lr", "param_names", *self.IMPLEMENTATION, *scheduled}
        for place, (old, new) in enumerate(zip(saved_groups, self._optimizer.param_groups, strict=False)):
            for name in sorted(set(old) & set(new) - moving):
                if isinstance(old[name], (bool, int, float, str)) and old[name] != new[name]:
                    changes.append(f"{name} of group {place} is {old[name]} in the checkpoint, {new[name]} now")
        return changes

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the state back.

        Raises:
            CheckpointError: It belongs to other parameters; the first that differs is named.
        """
        if state["facts"] != self._facts():
            raise CheckpointError(
                f"the optimizer's state is of another one: {state['facts']} in the checkpoint, {self._facts()} now"
            )
        saved, present = state["parameters"], self._parameters()
        if saved != present:
            raise CheckpointError(f"the optimizer's state is of other parameters: {_difference(saved, present)}")
        self.load_whole(state["optimizer"])


def _lay_out_like_weights(optimizer: Optimizer) -> None:
    """Give each state the strides of its weight: files keep none, and a fused optimizer goes by memory."""
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            alike = isinstance(value, Tensor) and value.layout == parameter.layout == torch.strided
            if alike and value.shape == parameter.shape and value.stride() != parameter.stride():
                own = torch.empty_like(parameter.detach(), dtype=value.dtype, device=value.device)
                state[name] = own.copy_(value)


def _difference(saved: list[list[Any]], present: list[list[Any]]) -> str:
    if len(saved) != len(present):
        return f"{len(saved)} in the checkpoint, {len(present)} in this trainer"
    old, new = next((old, new) for old, new in zip(saved, present, strict=True) if old != new)
    return f"{old[0]} {tuple(old[1])} in the checkpoint, {new[0]} {tuple(new[1])} in this trainer"


def _copied(value: Any) -> Any:
    """Copy the containers and tensors: `load_state_dict` of an optimizer keeps the ones it is given."""
    return map_leaves(lambda leaf: leaf.clone() if hasattr(leaf, "clone") else leaf, value)
