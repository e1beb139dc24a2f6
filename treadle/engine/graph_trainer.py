"""The step of graph mode: the same as in eager mode, with a compiled model."""

from collections.abc import Callable
from typing import Any

from treadle.engine.eager_trainer import EagerTrainer
from treadle.engine.graph import Graph
from treadle.errors import ConfigError


class GraphTrainer(EagerTrainer):
    """Trains a model that runs compiled; an iteration, its loss and its metrics are those of `EagerTrainer`.

    Args:
        graph: The compiled model with its optimizer.
        data_loader: Where batches come from, epoch after epoch.
        grad_acc_steps: Micro-batches in one iteration.
    """

    def __init__(self, graph: Graph, data_loader: Any, grad_acc_steps: int = 1) -> None:
        if not isinstance(graph, Graph) or graph.optimizer is None:
            raise ConfigError(f"GraphTrainer needs a Graph with an optimizer, not {graph!r}; see build_graph")
        super().__init__(graph.model, data_loader, graph.optimizer, grad_acc_steps)
        self.graph = graph

    @property
    def call(self) -> Callable[..., Any]:
        """What computes the outputs of the model: the compiled one."""
        return self.graph
