"""How a step is carried out: line by line, compiled, or recorded once and replayed."""

from treadle.execution.auto import AutoExecution, close_execution, execution_of
from treadle.execution.base import EXECUTIONS, Execution, ExecutionMode, ExecutionOption, check_execution
from treadle.execution.choice import Choice
from treadle.execution.compiled import Compile, CompiledVerbs
from treadle.execution.cuda_graph.capture import CudaGraphs, Recorder
from treadle.execution.cuda_graph.graph import GraphExecution
from treadle.optim.fused import prefer_fused

__all__ = [
    "EXECUTIONS",
    "AutoExecution",
    "Choice",
    "Compile",
    "CompiledVerbs",
    "CudaGraphs",
    "Execution",
    "ExecutionMode",
    "ExecutionOption",
    "GraphExecution",
    "Recorder",
    "check_execution",
    "close_execution",
    "execution_of",
    "prefer_fused",
]
