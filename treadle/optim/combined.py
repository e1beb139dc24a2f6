"""Several optimizers that make one update together, each of its own weights."""

from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from torch import nn
from torch.optim import Optimizer

from treadle.errors import ConfigError


class CombinedOptimizer(Optimizer):
    """Steps several optimizers as one: their groups are its groups, so that one schedule moves all their rates.

    A checkpoint has each of them under its own name; this keeps nothing.

    Args:
        members: The optimizers, in the order in which they step.

    Raises:
        ConfigError: A weight is in two of them, and would be updated twice.
    """

    members: tuple[Optimizer, ...] = ()

    def __init__(self, members: Iterable[Optimizer]) -> None:
        # Torch's own preparation makes a group; it is given one of its own, which goes.
        super().__init__([nn.Parameter(torch.empty(0))], {})
        self.members = tuple(members)
        seen: dict[int, Optimizer] = {}
        for member in self.members:
            for weight in (weight for group in member.param_groups for weight in group["params"]):
                other = seen.setdefault(id(weight), member)
                if other is not member:
                    raise ConfigError(
                        f"a weight of shape {tuple(weight.shape)} is in two optimizers, {_called(other)} and "
                        f"{_called(member)}, which would both update it in each step; give each weight to one of them, "
                        "or override phases() to have them act in turns"
                    )

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of all members, in their order."""
        return [group for member in self.members for group in member.param_groups]

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        """Leave the groups to the members."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse a group: only a member can hold one.

        Raises:
            ConfigError: Always, once there are members.
        """
        if self.members:
            raise ConfigError("several optimizers step together: call add_param_group of the one that is to have it")

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Have each member make its update."""
        for member in self.members:
            member.step()


def member_optimizers(optimizer: Optimizer) -> tuple[Optimizer, ...]:
    """Return the optimizers that step when `optimizer` does: the members of several that step together, or itself."""
    return optimizer.members if isinstance(optimizer, CombinedOptimizer) else (optimizer,)


def named_optimizers(optimizers: Sequence[Optimizer]) -> dict[str, Optimizer]:
    """Return a list of optimizers by the names that checkpoints and rates have them under.

    >>> weight = nn.Parameter(torch.zeros(1))
    >>> list(named_optimizers([torch.optim.SGD([weight]), torch.optim.Adam([weight]), torch.optim.SGD([weight])]))
    ['sgd', 'adam', 'sgd_2']
    """
    named: dict[str, Optimizer] = {}
    for optimizer in optimizers:
        name = kind = type(optimizer).__name__.lower()
        count = 1
        while name in named:
            count += 1
            name = f"{kind}_{count}"
        named[name] = optimizer
    return named


def as_named(optimizer: Any) -> dict[str, Optimizer]:
    """Return by name what a trainer was given as its optimizer: one, several in a dict or a list, or none."""
    if optimizer is None:
        return {}
    if isinstance(optimizer, (list, tuple)):
        return named_optimizers(optimizer)
    return dict(optimizer) if hasattr(optimizer, "keys") else {"optimizer": cast(Optimizer, optimizer)}


def _called(optimizer: Optimizer) -> str:
    return type(optimizer).__name__
