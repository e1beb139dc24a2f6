"""A forward pass in which every candidate takes part, as much as it weighs."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from treadle.errors import ConfigError
from treadle.nas.space.cell import Cell
from treadle.nas.space.choosers import Chooser
from treadle.nas.space.fixed_modules import partial_forward, reduce_tensors
from treadle.nas.space.input_choice import InputChoice
from treadle.nas.space.layer_choice import LayerChoice
from treadle.nas.space.parametrized import Built
from treadle.nas.space.repeat import Repeat
from treadle.nas.space.value_choice import Leaf, assignments
from treadle.nas.space.weighted_sum import weighted_sum
from treadle.search.assignment import key_of


class MixedOp(Chooser):
    """Sums what all candidates give, each times its weight.

    Args:
        rows: The candidates of each row.

    Attributes:
        weights: The weights of this pass, a row for each of `rows`.
        picked: For each row the one candidate that is called, where all others weigh nothing; None calls all.
    """

    def __init__(self, rows: Mapping[str, Sequence[Any]]) -> None:
        self._places = {label: place for place, label in enumerate(rows)}
        self._sizes = {label: len(candidates) for label, candidates in rows.items()}
        self._keys = {label: [key_of(one) for one in candidates] for label, candidates in rows.items()}
        self.weights: Tensor = torch.empty(0)
        self.picked: list[int] | None = None

    def prepare(self, architecture: Any) -> None:
        """Take the weights of this pass."""
        # Those of the pass before go first: they hold on to the stream on which their gradients were collected, and
        # a step that is recorded on another one could not collect its own.
        self.weights = torch.empty(0)
        self.weights = architecture.mixing()

    def row(self, label: str) -> Tensor:
        """Return the weights of one row."""
        return self.weights[self._places[label], : self._sizes[label]]

    def mix(self, label: str, candidates: Sequence[nn.Module], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return what the candidates of a row give together."""
        row = self.row(label)
        if self.picked is not None:
            place = self.picked[self._places[label]]
            others = [other for other in range(len(candidates)) if other != place]
            return weighted_sum(row, [candidates[place](*args, **kwargs)], where=label, left_out=others)
        zeros = [place for place, candidate in enumerate(candidates) if getattr(candidate, "is_zero", False)]
        if len(zeros) == len(candidates):
            zeros = []
        outputs = [one(*args, **kwargs) for place, one in enumerate(candidates) if place not in zeros]
        return weighted_sum(row, outputs, where=label, left_out=zeros)

    def layer(self, choice: LayerChoice, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the sum over the candidates."""
        return self.mix(choice.current_label, list(choice), args, kwargs)

    def inputs(self, choice: InputChoice, tensors: Sequence[Tensor]) -> Any:
        """Return the sum over the tensors, of the size that the chosen ones would have."""
        if choice.n_chosen is None:
            gates = torch.stack([self.row(choice.gate(place))[1] for place in range(choice.n_candidates)])
            weights = gates / gates.sum().clamp_min(1e-6) if choice.reduction == "mean" else gates
        else:
            row = self.row(choice.current_label)
            weights = row * choice.n_chosen if choice.reduction == "sum" and choice.n_chosen > 1 else row
        return weighted_sum(weights, tensors, where=choice.current_label)

    def repeat(self, choice: Repeat, state: Any) -> Any:
        """Return the sum over the depths."""
        if not choice.depth.leaves():
            return super().repeat(choice, state)
        states = [state]
        for block in choice.blocks():
            states.append(block(states[-1]))
        depths = self.weigh(choice.depth)
        weights = torch.stack([weight for _, weight in depths])
        return weighted_sum(weights, [states[depth] for depth, _ in depths], where=choice.current_label or "depth")

    def node(self, cell: Cell, node: int, states: Sequence[Tensor]) -> Tensor:
        """Return the sum over all operations on all earlier states."""
        labels = [cell.edge_label(node, place) for place in range(node)]
        if cell.partial_channels == 1 and self.picked is None:
            rows = torch.cat([self.row(label) for label in labels])
            calls = ((one, state) for place, state in enumerate(states) for one in cell.operations(node, place))
            total: Tensor = weighted_sum(rows, [operation(state) for operation, state in calls], where=labels[0])
            return total
        parts: list[Tensor] = []
        for place, label in enumerate(labels):
            operations = cell.operations(node, place)

            def mix(part: Tensor, label: str = label, operations: list[nn.Module] = operations) -> Any:
                return self.mix(label, operations, (part,), {})

            parts.append(partial_forward(states[place], cell.partial_channels, mix))
        summed: Tensor = reduce_tensors(parts, "sum", parts)
        return summed

    def built(self, module: Built, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return what modules of all arguments give together."""
        return module.weighed(self.weigh, args, kwargs)

    def weigh(self, value: Any) -> list[tuple[Any, Tensor]]:
        """Return the values that something with expressions in it can have, each with its weight."""
        found: dict[str, tuple[Any, Tensor]] = {}
        for taken, outcome in assignments(value):
            weight = self.weights.new_ones(())
            for label, one in taken.items():
                weight = weight * self.row(label)[self._keys[label].index(key_of(one))]
            key = repr(outcome)
            found[key] = (outcome, found[key][1] + weight if key in found else weight)
        return list(found.values())

    def value(self, leaf: Leaf) -> Any:
        """Refuse to give one value where all are weighed."""
        raise ConfigError(f"{leaf.key!r} has no single value while all its candidates are weighed")
