"""How long a network takes."""

import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from treadle.nas.costs.cost import ALWAYS, Cost, Scope
from treadle.nas.costs.trace import Call, SpaceTracer, trace_space
from treadle.nas.fixed import temporarily_attach
from treadle.nas.space.choosers import DEFAULTS
from treadle.nas.space.model_space import Space


def latency_of(model: nn.Module, *inputs: Any, repeats: int = 10, warm_up: int = 3, **named_inputs: Any) -> Cost:
    """Return how many milliseconds every network of a space takes here, for inputs like these.

    Each candidate is timed by itself, and the median is taken; what the network takes besides is in every one of them.

    Args:
        model: The space, on the device to measure.
        inputs: What it is called with.
        repeats: How often each candidate is timed.
        warm_up: How often it is run before that.
        named_inputs: Inputs by name.
    """
    cost = Cost("ms")
    space = Space(model)
    timing = Timing(space, cost, repeats, warm_up)
    with trace_space(space, timing):
        timing.run("the network", ALWAYS, lambda: model(*inputs, **named_inputs))
    return cost


class Timing(SpaceTracer):
    """Times every candidate by itself.

    Args:
        space: The space.
        cost: Where times are added.
        repeats: How often each is timed.
        warm_up: How often it is run before that.
    """

    def __init__(self, space: Space, cost: Cost, repeats: int, warm_up: int) -> None:
        super().__init__(cost)
        self._space, self._repeats, self._warm_up = space, repeats, warm_up
        self._inside = [0.0]
        self._times: list[dict[Any, float]] = [{}]

    def begin(self) -> None:
        """Take the times of another choice."""
        self._times.append({})

    def end(self, names: Sequence[Any]) -> None:
        """Leave the time of what the defaults use to the choice: it is not that of what lies around it."""
        times = self._times.pop()
        self._inside[-1] += sum(times[name] for name in names)

    def run(self, name: Any, scope: Scope, call: Call) -> Any:
        """Time `call`, less the choices in it."""
        self._inside.append(0.0)
        before, self.scope = self.scope, scope.within(self.scope)
        try:
            result = call()
            taken = self._timed(call)
            self.cost.add(self.scope, max(0.0, taken - self._inside.pop()))
        finally:
            self.scope = before
        self._times[-1][name] = taken
        return result

    def _timed(self, call: Call) -> float:
        # While a whole candidate is timed, choices inside of it take their defaults.
        with temporarily_attach(self._space, DEFAULTS):
            times = [measure_milliseconds(call) for _ in range(self._warm_up + self._repeats)]
        return statistics.median(times[self._warm_up :])


def measure_milliseconds(call: Call) -> float:
    """Return how long a call takes, work on a device included."""
    _wait()
    began = time.perf_counter()
    call()
    _wait()
    return 1000 * (time.perf_counter() - began)


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
