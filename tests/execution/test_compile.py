"""Modules that are compiled one by one: whoever wrote them."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from treadle.execution import Compile
from treadle.execution.compiled import CompiledVerbs
from treadle.execution.cpu_compiler import CpuCompiler

MANY = 12
"""More than the compiler keeps versions of one function."""


class Own(nn.Module):
    """A module whose forward is not torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return what the layer gives."""
        outputs: Tensor = self.inner(inputs)
        return outputs


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the compiler counts, with a backend that takes no time."""
    monkeypatch.setattr(CpuCompiler, "__call__", lambda compiler, graph, inputs: graph)
    torch._dynamo.reset()
    counters.clear()
    return counters["stats"]


@pytest.mark.parametrize(
    "make",
    [Own, lambda: nn.Linear(2, 2), lambda: nn.Sequential(nn.Linear(2, 2), nn.Tanh())],
    ids=["own", "layer", "container"],
)
def test_a_module_that_is_named_is_compiled_whoever_wrote_its_forward(graphs: Any, make: Any) -> None:
    model = nn.Sequential(make(), nn.ReLU())
    inputs = torch.randn(3, 2)
    expected = model(inputs)
    CompiledVerbs(Compile(modules="0"), model)
    assert torch.equal(model(inputs), expected)
    assert graphs["unique_graphs"] == 1


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # torch's own, where it looks at its inputs
def test_more_containers_are_compiled_than_the_compiler_keeps_versions_of_a_function(graphs: Any) -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(width, width + 1), nn.Tanh()) for width in range(1, 1 + MANY)))
    CompiledVerbs(Compile(modules="?*"), model)
    assert model(torch.randn(3, 1)).shape == (3, 1 + MANY)
    assert graphs["unique_graphs"] == MANY
