"""How a step is carried out: line by line, compiled, or recorded once and replayed."""

from treadle.execution.base import EXECUTIONS, Execution, ExecutionMode, check_execution
from treadle.execution.compiled import Compile, CompiledVerbs
from treadle.execution.cuda_graph.capture import CudaGraphs, Recorder
from treadle.execution.cuda_graph.graph import GraphExecution, execution_of
from treadle.optim.fused import prefer_fused

__all__ = [
    "EXECUTIONS",
    "Compile",
    "CompiledVerbs",
    "CudaGraphs",
    "Execution",
    "ExecutionMode",
    "GraphExecution",
    "Recorder",
    "check_execution",
    "execution_of",
    "prefer_fused",
]
