"""What is left of choices in a frozen network: plain modules that decide nothing."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from treadle.errors import ConfigError

# Choices that see a part of the channels only, which saves most of a supernet's memory


class PartialChannels(nn.Module):
    """A module that sees one of several parts of the channels; the others go past it.

    Afterwards the channels are shuffled, so that the next such module sees other ones. A module that halves the picture
    has the rest of the channels pooled.

    Args:
        module: What sees the part; its channels are those of the whole divided by `parts`.
        parts: How many parts there are.
    """

    def __init__(self, module: nn.Module, parts: int) -> None:
        super().__init__()
        if parts < 1:
            raise ConfigError(f"PartialChannels: parts={parts} must be at least 1")
        self.module = module
        self.parts = parts

    def forward(self, inputs: Tensor) -> Tensor:
        """Return as many channels as `inputs` has."""
        output: Tensor = partial_forward(inputs, self.parts, self.module)
        return output


def partial_forward(inputs: Tensor, parts: int, operation: Callable[[Tensor], Any]) -> Any:
    """Return what `operation` makes of the first part of the channels, with the others beside it, shuffled.

    Raises:
        ConfigError: The channels cannot be divided so.
    """
    if parts == 1:
        return operation(inputs)
    if inputs.shape[1] % parts:
        raise ConfigError(f"{inputs.shape[1]} channels cannot be divided into {parts} parts; use another width")
    count = inputs.shape[1] // parts
    seen = operation(inputs[:, :count])
    past = inputs[:, count:]
    if past.shape[2:] != seen.shape[2:]:
        past = F.max_pool2d(past, 2, ceil_mode=True)
    joined = torch.cat([seen, past], 1)
    return joined.view(len(joined), parts, count, *joined.shape[2:]).transpose(1, 2).flatten(1, 2)


# How several chosen tensors become one


REDUCTIONS = ("sum", "mean", "concat", "none")


def reduce_tensors(tensors: Sequence[Tensor], reduction: str, like: Sequence[Tensor]) -> Any:
    """Return some tensors as one.

    A single one is returned as it is. No tensor at all is zeros for "sum" and "mean", a tensor without channels for
    "concat", and an empty list for "none".

    Args:
        tensors: The tensors that were chosen.
        reduction: "sum", "mean", "concat" along dimension 1, or "none" for the list itself.
        like: All that could have been chosen, for the shape of nothing.
    """
    if reduction == "none":
        return list(tensors)
    if not tensors:
        return like[0][:, :0] if reduction == "concat" else torch.zeros_like(like[0])
    if len(tensors) == 1:
        return tensors[0]
    if reduction == "concat":
        return torch.cat(list(tensors), dim=1)
    total = sum(tensors[1:], tensors[0])
    return total / len(tensors) if reduction == "mean" else total


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
        return reduce_tensors([tensors[place] for place in self.chosen], self.reduction, tensors)

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
        states = initial_states(self.preprocessor, inputs)
        count = len(states)
        for node, sources in zip(self.nodes, self.sources, strict=True):
            operations: Any = node
            pairs = zip(operations, sources, strict=True)
            results = [partial_forward(states[place], self.partial_channels, one) for one, place in pairs]
            states.append(reduce_tensors(results, "sum", results))
        output = torch.cat([states[place] for place in self.output], self.concat_dim)
        return output if self.postprocessor is None else self.postprocessor(output, states[:count])


def initial_states(preprocessor: nn.Module | None, inputs: tuple[Any, ...]) -> list[Tensor]:
    """Return the states that a cell begins with, for its inputs."""
    given = inputs[0] if len(inputs) == 1 and isinstance(inputs[0], (list, tuple)) else inputs
    return list(given if preprocessor is None else preprocessor(list(given)))
