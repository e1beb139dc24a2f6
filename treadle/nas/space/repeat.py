"""A block that is repeated, as often as is to be decided."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import islice
from typing import Any

from torch import nn

from treadle.errors import ConfigError
from treadle.nas.space.choice import Choice, make_module
from treadle.nas.space.decisions import Condition
from treadle.nas.space.value_choice import Constant, Expression, Leaf, ValueChoice
from treadle.search.assignment import key_of

Block = nn.Module | Callable[[int], nn.Module]


class Repeat(Choice):
    """A block, one after the other, as often as is to be decided.

    Args:
        block: The block, of which copies are made, or a function that makes the block with a number. Choices with a
            label in a copied block are decided alike in all copies; those without have labels of their own.
        depth: How often: a number, the smallest and the largest number, or an expression.
        label: The name of the decision between two numbers; by default the place in the model. A space that nobody
            decided on has the largest.
    """

    def __init__(self, block: Block, depth: int | tuple[int, int] | Expression, label: str | None = None) -> None:
        super().__init__(label)
        self._own: ValueChoice | None = _between(depth, label) if isinstance(depth, (tuple, list)) else None
        given = depth if self._own is None else self._own
        self.depth: Expression = given if isinstance(given, Expression) else Constant(given)
        depths = self.depth.grid()
        if not all(type(value) is int and value >= 0 for value in depths) or max(depths) < 1:
            raise ConfigError(f"Repeat {label or ''}: depths {depths} must be whole numbers from 0, one at least 1")
        for number in range(max(depths)):
            self._modules[str(number)] = make_module(block, number, maker="Repeat: the block's function")

    def blocks(self) -> Iterator[nn.Module]:
        """Yield the blocks of the deepest network."""
        for block in self._modules.values():
            assert block is not None
            yield block

    def forward(self, state: Any) -> Any:
        """Return what the blocks make of `state`, as many as were decided on."""
        return self.chooser.repeat(self, state)

    def values(self) -> list[tuple[str, Leaf]]:
        """Return the decisions that the depth depends on."""
        return [("" if leaf is self._own else "depth", leaf) for leaf in self.depth.leaves()]

    def branches(self) -> Mapping[str, Sequence[Condition]]:
        """Return the condition for each block: that the network is deep enough."""
        found: dict[str, list[Condition]] = {}
        assignments = list(self.depth.assignments())
        leaves = {leaf.key: leaf for leaf in self.depth.leaves()}
        for number in range(len(self._modules)):
            deep = [taken for taken, depth in assignments if depth > number]
            if len(leaves) == 1:
                (label,) = leaves
                found[str(number)] = [{label: frozenset(key_of(taken[label]) for taken in deep)}]
            elif len(deep) < len(assignments):
                found[str(number)] = [
                    {label: frozenset([key_of(value)]) for label, value in one.items()} for one in deep
                ]
        return found

    def frozen(self, architecture: Mapping[str, Any], memo: dict[Any, Any]) -> nn.Module:
        """Return copies of the first blocks, as many as the architecture says."""
        kept = islice(self.blocks(), self.depth.evaluate(architecture))
        return nn.Sequential(*(deepcopy(block, memo) for block in kept)).train(self.training)


def _between(depth: tuple[int, int], label: str | None) -> ValueChoice:
    smallest, largest = depth
    if smallest > largest:
        raise ConfigError(f"Repeat {label or ''}: depth=({smallest}, {largest}) is empty; give the smaller one first")
    return ValueChoice(range(smallest, largest + 1), label, default=largest)
