"""A cost as a part of the loss of an architecture."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from treadle.errors import ConfigError
from treadle.nas.costs.cost import Cost
from treadle.search.assignment import key_of

SHAPES = ("linear", "relu", "absolute")
COMBINATIONS = ("add", "multiply")


class ExpectedCost(nn.Module):
    """The expectation of a cost under weights of candidates; gradients reach the weights.

    Args:
        cost: The cost.
        rows: The candidates of each row of weights.

    Raises:
        ConfigError: The cost speaks of a row that is not there.
    """

    masks: Tensor
    amounts: Tensor

    def __init__(self, cost: Cost, rows: Mapping[str, Sequence[Any]]) -> None:
        super().__init__()
        width = max(map(len, rows.values()))
        places = {
            label: {key_of(one): number * width + place for place, one in enumerate(candidates)}
            for number, (label, candidates) in enumerate(rows.items())
        }
        pairs = [(one, amount) for scope, amount in cost.terms for one in scope.rows]
        unknown = sorted(set(chain.from_iterable(one for one, _ in pairs)) - set(rows))
        if unknown:
            raise ConfigError(f"the cost speaks of {unknown}, which the space does not have; measure this space")
        deepest = max((len(one) for one, _ in pairs), default=0) or 1
        masks = torch.zeros(len(pairs), deepest, len(rows) * width)
        for number, (one, _) in enumerate(pairs):
            for depth, (label, values) in enumerate(one.items()):
                masks[number, depth, [places[label][value] for value in values]] = 1.0
        # Where nothing is asked, something that is always true stands.
        self.register_buffer("masks", masks, persistent=False)
        self.register_buffer("always", masks.sum(-1) == 0, persistent=False)
        self.register_buffer("amounts", torch.tensor([amount for _, amount in pairs]), persistent=False)

    always: Tensor

    def forward(self, weights: Tensor) -> Tensor:
        """Return the expectation; `weights` has a row for each row and a column for each candidate."""
        shares = (self.masks @ weights.reshape(-1)).masked_fill(self.always, 1.0)
        return (shares.prod(-1) * self.amounts).sum()


class Penalty:
    """What an architecture pays for its cost, in the loss that its weights are trained with.

    The cost is taken relative to `target`, or, without one, to what it is when all candidates weigh the same.

    Args:
        cost: The cost.
        weight: How much it counts.
        target: What the cost may be.
        shape: "linear" in the relative cost; "relu", what it is above the target; "absolute", how far from it.
        combine: "add" it to the loss, times the weight; or "multiply" the loss by it, to the power of the weight.
    """

    def __init__(
        self,
        cost: Cost,
        weight: float = 0.1,
        *,
        target: float | None = None,
        shape: str = "linear",
        combine: str = "add",
    ) -> None:
        if shape not in SHAPES:
            raise ConfigError(f"Penalty: shape={shape!r} is unknown; use one of {SHAPES}")
        if combine not in COMBINATIONS:
            raise ConfigError(f"Penalty: combine={combine!r} is unknown; use one of {COMBINATIONS}")
        if shape != "linear" and target is None:
            raise ConfigError(f"Penalty: shape={shape!r} is about a target; pass target= in {cost.unit}")
        if target is not None and target <= 0:
            raise ConfigError(f"Penalty: target={target} must be above 0")
        if combine == "multiply" and shape != "linear":
            raise ConfigError("Penalty: combine='multiply' takes the relative cost as it is; leave shape out")
        self.cost, self.weight, self.target, self.shape, self.combine = cost, weight, target, shape, combine

    def bound(self, rows: Mapping[str, Sequence[Any]]) -> "BoundPenalty":
        """Return the penalty for the rows of a supernet."""
        return BoundPenalty(self, rows)

    def of(self, architecture: Mapping[str, Any], reference: float) -> float:
        """Return the penalty of one network, where it is to be added.

        Args:
            architecture: The network.
            reference: What the cost is relative to without a target.
        """
        relative = self.cost.of(architecture) / (self.target or reference or 1.0)
        return self.weight * float(self.shaped(torch.tensor(relative)))

    def shaped(self, relative: Tensor) -> Tensor:
        """Return what is made of a relative cost."""
        if self.shape == "linear":
            return relative
        return (relative - 1).clamp_min(0) if self.shape == "relu" else (relative - 1).abs()


class BoundPenalty(nn.Module):
    """A penalty for the rows of a supernet.

    Args:
        penalty: The penalty.
        rows: The candidates of each row of weights.
    """

    def __init__(self, penalty: Penalty, rows: Mapping[str, Sequence[Any]]) -> None:
        super().__init__()
        self.penalty = penalty
        self.expected = ExpectedCost(penalty.cost, rows)
        even = torch.zeros(len(rows), max(map(len, rows.values())))
        for number, candidates in enumerate(rows.values()):
            even[number, : len(candidates)] = 1 / len(candidates)
        self.reference = penalty.target or float(self.expected(even)) or 1.0

    def forward(self, loss: Tensor, weights: Tensor) -> Tensor:
        """Return the loss with the penalty."""
        relative = self.expected(weights) / self.reference
        if self.penalty.combine == "multiply":
            multiplied: Tensor = loss * relative**self.penalty.weight
            return multiplied
        return loss + self.penalty.weight * self.penalty.shaped(relative)
