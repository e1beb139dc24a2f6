"""What is left of choices in a frozen network: plain modules that decide nothing."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from treadle.nas.joining import joined
from treadle.nas.partial_channels import through_part


class ChosenInputs(nn.Module):
    """Joins some of its inputs, always the same ones.

    Args:
        chosen: The positions of the inputs that are taken.
        reduction: How they become one: "sum", "mean", "concat" or "none".
    """

    def __init__(self, chosen: Sequence[int], reduction: str = "sum") -> None:
        super().__init__()
        self.chosen = tuple(chosen)
        self.reduction = reduction

    def forward(self, *inputs: Any) -> Any:
        """Return the chosen of `inputs`, which come one by one or in a list, as one."""
        tensors = inputs[0] if len(inputs) == 1 and isinstance(inputs[0], (list, tuple)) else inputs
        return joined([tensors[place] for place in self.chosen], self.reduction, tensors)

    def extra_repr(self) -> str:
        """Return what was chosen."""
        return f"{list(self.chosen)}, reduction={self.reduction!r}"


class ChosenCell(nn.Module):
    """A cell whose operations and connections are settled.

    Args:
        operations: For each node the operations that are summed in it.
        sources: For each of them the state that it reads.
        output: Which states are concatenated into the output.
        concat_dim: Along which dimension.
        preprocessor: Turns the inputs of the cell into its first states; None takes them as they are.
        postprocessor: Called with the output and the first states; None returns the output as it is.
        partial_channels: In how many parts the channels are divided, one of which goes through the operations.
    """

    def __init__(
        self,
        operations: Sequence[Sequence[nn.Module]],
        sources: Sequence[Sequence[int]],
        output: Sequence[int],
        concat_dim: int = 1,
        preprocessor: nn.Module | None = None,
        postprocessor: nn.Module | None = None,
        partial_channels: int = 1,
    ) -> None:
        super().__init__()
        self.partial_channels = partial_channels
        self.preprocessor = preprocessor
        self.nodes = nn.ModuleList(nn.ModuleList(node) for node in operations)
        self.postprocessor = postprocessor
        self.sources = tuple(tuple(node) for node in sources)
        self.output = tuple(output)
        self.concat_dim = concat_dim

    def forward(self, *inputs: Any) -> Any:
        """Return the output of the cell for its inputs, which come one by one or in a list."""
        states = first_states(self.preprocessor, inputs)
        count = len(states)
        for node, sources in zip(self.nodes, self.sources, strict=True):
            operations: Any = node
            pairs = zip(operations, sources, strict=True)
            results = [through_part(states[place], self.partial_channels, one) for one, place in pairs]
            states.append(joined(results, "sum", results))
        output = torch.cat([states[place] for place in self.output], self.concat_dim)
        return output if self.postprocessor is None else self.postprocessor(output, states[:count])


def first_states(preprocessor: nn.Module | None, inputs: tuple[Any, ...]) -> list[Tensor]:
    """Return the states that a cell begins with, for its inputs."""
    given = inputs[0] if len(inputs) == 1 and isinstance(inputs[0], (list, tuple)) else inputs
    return list(given if preprocessor is None else preprocessor(list(given)))
