"""Who decides in a forward pass of a space: by default nobody, and the defaults are taken."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from treadle.nas.space.fixed_modules import partial_forward, reduce_tensors

if TYPE_CHECKING:
    from treadle.nas.space.cell import Cell
    from treadle.nas.space.input_choice import InputChoice
    from treadle.nas.space.layer_choice import LayerChoice
    from treadle.nas.space.parametrized import Built
    from treadle.nas.space.repeat import Repeat
    from treadle.nas.space.value_choice import Leaf


class Chooser:
    """Carries out every kind of choice in a forward pass; each algorithm has one of its own.

    This one goes one way at each choice: that of the defaults, unless `pick` is overridden.
    """

    def prepare(self, architecture: Any) -> None:
        """Get ready for a pass through a supernet, with what it has learnt about its choices."""

    def pick(self, label: str, default: Any) -> Any:
        """Return the value of the decision `label`."""
        return default

    def layer(self, choice: "LayerChoice", args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return what a layer choice gives for its arguments."""
        return choice[self.pick(choice.current_label, choice.default)](*args, **kwargs)

    def inputs(self, choice: "InputChoice", tensors: Sequence[Tensor]) -> Any:
        """Return what an input choice makes of its tensors."""
        picked = self.pick(choice.current_label, choice.default)
        return reduce_tensors([tensors[place] for place in picked], choice.reduction, tensors)

    def repeat(self, choice: "Repeat", state: Any) -> Any:
        """Return what a repeated block makes of its input."""
        depth = choice.depth.compute(self.value)
        for block in list(choice.blocks())[:depth]:
            state = block(state)
        return state

    def node(self, cell: "Cell", node: int, states: Sequence[Tensor]) -> Tensor:
        """Return the state of one node of a cell."""
        results = []
        for slot in range(cell.num_ops_per_node):
            ((place,), name) = self._slot(cell, node, slot)
            results.append(partial_forward(states[place], cell.partial_channels, cell.operation(node, place, name)))
        total: Tensor = reduce_tensors(results, "sum", results)
        return total

    def _slot(self, cell: "Cell", node: int, slot: int) -> tuple[Any, Any]:
        source, operation = cell.defaults(node, slot)
        return (
            self.pick(cell.input_label(node, slot), source),
            self.pick(cell.operation_label(node, slot), operation),
        )

    def loose_ends(self, cell: "Cell") -> list[int]:
        """Return the nodes of a cell that no other node reads."""
        slots = [(node, slot) for node in cell.nodes for slot in range(cell.num_ops_per_node)]
        used = {self._slot(cell, node, slot)[0][0] for node, slot in slots}
        return [node for node in cell.nodes if node not in used]

    def built(self, module: "Built", args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return what a module with undecided arguments gives."""
        return module.run(self.value, args, kwargs)

    def value(self, leaf: "Leaf") -> Any:
        """Return the value of a decision that is used in an expression."""
        return leaf.as_given(self.pick(leaf.current_label, leaf.default))


class Fixed(Chooser):
    """Goes the way that an architecture says.

    Args:
        architecture: The values of the decisions, by label.
    """

    def __init__(self, architecture: Mapping[str, Any]) -> None:
        self.architecture: Mapping[str, Any] = architecture

    def pick(self, label: str, default: Any) -> Any:
        """Return the value in the architecture."""
        return self.architecture[label]


DEFAULTS = Chooser()
"""Takes the default at each choice."""
