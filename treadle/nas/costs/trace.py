"""Going every way through a space once, to find out what is where."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from treadle.nas.costs.cost import ALWAYS, Cost, Scope, find_scopes, value_scopes
from treadle.nas.fixed import temporarily_attach
from treadle.nas.space.cell import Cell
from treadle.nas.space.choosers import Chooser
from treadle.nas.space.fixed_modules import partial_forward, reduce_tensors
from treadle.nas.space.layer_choice import LayerChoice
from treadle.nas.space.model_space import Space
from treadle.nas.space.parametrized import Built
from treadle.nas.space.repeat import Repeat
from treadle.ops.eval_mode import eval_mode

Call = Callable[[], Any]


class SpaceTracer(Chooser):
    """Calls every candidate; what comes out is what the defaults give.

    Args:
        cost: Where amounts are added.

    Attributes:
        scope: When what runs now is used.
    """

    def __init__(self, cost: Cost) -> None:
        self.cost = cost
        self.scope = ALWAYS

    def run(self, name: Any, scope: Scope, call: Call) -> Any:
        """Return what `call` gives; what happens in it is counted where `scope` says."""
        before, self.scope = self.scope, scope.within(self.scope)
        try:
            return call()
        finally:
            self.scope = before

    def begin(self) -> None:
        """Called before the candidates of a choice are called."""

    def end(self, names: Sequence[Any]) -> None:
        """Called after that, with the names of those that the defaults use."""

    def layer(self, choice: LayerChoice, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call every candidate."""
        scopes = find_scopes(choice)
        self.begin()
        outputs = {name: self.run(name, scopes[name], partial(choice[name], *args, **kwargs)) for name in choice.names}
        default = choice.names[choice.candidates.index(choice.decisions("")[0].default)]
        self.end([default])
        return outputs[default]

    def repeat(self, choice: Repeat, state: Any) -> Any:
        """Call every block."""
        scopes = find_scopes(choice)
        states = [state]
        self.begin()
        for name, block in choice.named_children():
            states.append(self.run(name, scopes.get(name, ALWAYS), partial(block, states[-1])))
        depth = choice.depth.compute(super().value)
        self.end([str(number) for number in range(depth)])
        return states[depth]

    def node(self, cell: Cell, node: int, states: Sequence[Tensor]) -> Tensor:
        """Call every operation on every state."""
        scopes = find_scopes(cell)
        outputs: dict[str, Tensor] = {}
        self.begin()
        for place in range(node):
            for name in cell.names:
                call = partial(partial_forward, states[place], cell.partial_channels, cell.operation(node, place, name))
                module = f"edges.{node}_{place}.{name}"
                outputs[module] = self.run(module, scopes[module], call)
        slots = [cell.defaults(node, slot) for slot in range(cell.num_ops_per_node)]
        used = [f"edges.{node}_{source[0]}.{name}" for source, name in slots]
        self.end(used)
        results = [outputs[module] for module in used]
        total: Tensor = reduce_tensors(results, "sum", results)
        return total

    def built(self, module: Built, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call the module of every combination of arguments, with inputs of its size."""
        self.begin()
        for arguments, scope in value_scopes(module.arguments):
            own = args
            if module.sharing is not None:
                own = (module.sharing.inputs_like(args[0], arguments), *args[1:])
            self.run(repr(arguments), scope, partial(module.call, arguments, own, kwargs))
        default = module.default_arguments()
        self.end([repr(default)])
        # What is returned was counted above.
        return SpaceTracer.run(self, "the default", Scope([], []), partial(module.call, default, args, kwargs))


@contextmanager
def trace_space(space: Space, walk: SpaceTracer) -> Iterator[None]:
    """Let the model of a space run as it is used afterwards, with `walk` at its choices, and leave no trace in it."""
    with eval_mode(space.model), torch.no_grad(), temporarily_attach(space, walk):
        yield
