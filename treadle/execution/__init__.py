"""How a step is carried out: line by line, compiled, or recorded once and replayed."""

from treadle.execution.base import Execution
from treadle.execution.compiling import Compile, CompiledVerbs
from treadle.execution.device_graph import CudaGraphs, Recorder
from treadle.execution.fused import prefer_fused
from treadle.execution.graph import GraphExecution, execution_of
from treadle.execution.modes import EXECUTIONS, check_execution

__all__ = [
    "EXECUTIONS",
    "Compile",
    "CompiledVerbs",
    "CudaGraphs",
    "Execution",
    "GraphExecution",
    "Recorder",
    "check_execution",
    "execution_of",
    "prefer_fused",
]
