"""The cell of NAS-Bench-201: every pair of states is joined by one operation."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from treadle.errors import ConfigError
from treadle.nas.layer_choice import LayerChoice

MakeOperation = Callable[[int, int], nn.Module]


class NasBench201Cell(nn.Module):
    """A cell of a few states, each the sum of one operation on every earlier one.

    The choice between state j and state i is labelled `<label>/<i>_<j>`; without a label, by its place.

    Args:
        op_candidates: Functions, by name or in a list, which make an operation for a number of input and of output
            channels.
        in_features: Channels of the input.
        out_features: Channels of every other state.
        num_tensors: How many states there are, the input among them.
        label: Its name; cells that share one have the same operations.
    """

    def __init__(
        self,
        op_candidates: Mapping[str, MakeOperation] | Sequence[MakeOperation],
        in_features: int,
        out_features: int,
        num_tensors: int = 4,
        label: str | None = None,
    ) -> None:
        super().__init__()
        if num_tensors < 2:
            raise ConfigError(f"NasBench201Cell {label or ''}: num_tensors={num_tensors} must be at least 2")
        self.num_tensors = num_tensors
        self.layers = nn.ModuleDict()
        for node in range(1, num_tensors):
            for place in range(node):
                width = in_features if place == 0 else out_features
                name = None if label is None else f"{label}/{node}_{place}"
                self.layers[f"{node}_{place}"] = _choice(op_candidates, width, out_features, name)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the last state."""
        states = [inputs]
        for node in range(1, self.num_tensors):
            total: Any = self.layers[f"{node}_0"](states[0])
            for place in range(1, node):
                total = total + self.layers[f"{node}_{place}"](states[place])
            states.append(total)
        return states[-1]


def _choice(
    makers: Mapping[str, MakeOperation] | Sequence[MakeOperation], width: int, out: int, label: str | None
) -> LayerChoice:
    if isinstance(makers, Mapping):
        return LayerChoice({name: make(width, out) for name, make in makers.items()}, label)
    return LayerChoice([make(width, out) for make in makers], label)
