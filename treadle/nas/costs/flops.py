"""How many floating-point operations a network takes."""

from typing import Any

from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from treadle.nas.costs.cost import Cost
from treadle.nas.costs.trace import SpaceTracer, trace_space
from treadle.nas.space.model_space import Space


def flops_of(model: nn.Module, *inputs: Any, **named_inputs: Any) -> Cost:
    """Return the floating-point operations of every network of a space, for inputs like these.

    What torch's counter knows is counted: convolutions, matrix products and attention, two for a multiplication and an
    addition.

    Args:
        model: The space.
        inputs: What it is called with.
        named_inputs: The same by name.
    """
    cost = Cost("FLOPs")
    walk = SpaceTracer(cost)
    with trace_space(Space(model), walk), _Counting(walk):
        model(*inputs, **named_inputs)
    return cost


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds the operations of every call to a cost, where a walk is."""

    def __init__(self, walk: SpaceTracer) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._walk = walk

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do what was asked, and count it."""
        result = func(*args, **(kwargs or {}))
        formula: Any = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self._walk.cost.add(self._walk.scope, formula(*args, **(kwargs or {}), out_val=result))
        return result
