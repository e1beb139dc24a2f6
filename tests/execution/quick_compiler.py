"""A compiler for tests: it takes steps apart as the real one does, and generates no code, which takes it seconds."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch._dynamo.backends.debugging import aot_eager
from torch._dynamo.utils import counters

from treadle.execution.cpu_compiler import CpuCompiler


@contextmanager
def quick_compiler() -> Iterator[Any]:
    """Let whatever is compiled for a CPU run as it was taken apart; give what torch counts meanwhile."""
    torch._dynamo.reset()
    counters.clear()
    with mock.patch.object(CpuCompiler, "__call__", lambda compiler, graph, inputs: aot_eager(graph, inputs)):
        yield counters["stats"]
