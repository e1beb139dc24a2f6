"""A model that runs compiled."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from treadle.engine.trainers.eager import EagerTrainer
from treadle.errors import ConfigError
from treadle.execution import Compile

logger = logging.getLogger(__name__)

BUDGET = 8
"""For how many sets of input shapes a model is compiled, where nobody says otherwise."""


class Graph:
    """A model compiled by `torch.compile`, together with the optimizer that updates it.

    Each new set of input shapes is compiled for and said in the log, up to a budget; shapes beyond it run
    uncompiled, which is said as well. Weights live in the model itself, under their own names.

    Args:
        model: What to compile.
        optimizer: What updates its weights; None for evaluation.
        backend: The compiler, as `torch.compile` calls it.
        mode: Its mode, such as "max-autotune".
        fullgraph: Whether a part that cannot be compiled is an error.
        budget: For how many sets of input shapes it is compiled.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | None = None,
        *,
        backend: str = "inductor",
        mode: str | None = None,
        fullgraph: bool = False,
        budget: int = BUDGET,
    ) -> None:
        if budget < 1:
            raise ConfigError(f"graph.compile_budget={budget} must be at least 1")
        self.model = model
        self.optimizer = optimizer
        self._budget = budget
        self._known: dict[Any, bool] = {}
        # Static shapes: a resumed run must compile what the uninterrupted one has compiled.
        how: dict[str, Any] = {"dynamic": False, "backend": backend, "mode": mode, "fullgraph": fullgraph}
        if backend == "inductor":
            how = Compile(mode=mode, fullgraph=fullgraph).arguments(model)
        self._compiled = torch.compile(model, **how)

    @property
    def num_shapes(self) -> int:
        """How many sets of input shapes were compiled for so far."""
        return sum(self._known.values())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs of the model."""
        signature = (self.model.training, torch.is_grad_enabled(), shape_key(args), shape_key(kwargs))
        if signature not in self._known:
            self._meet(signature)
        return self._compiled(*args, **kwargs) if self._known[signature] else self.model(*args, **kwargs)

    def _meet(self, signature: Any) -> None:
        within = self.num_shapes < self._budget
        self._known[signature] = within
        shapes = f"input shapes {_described(signature[2:])}"
        if within:
            logger.info("compiling with torch.compile for %s (%d of %d)", shapes, self.num_shapes, self._budget)
        else:
            logger.warning("%s run uncompiled: the model was compiled for %d already", shapes, self._budget)

    def eval(self) -> "Graph":
        """Put the model into evaluation mode."""
        self.model.eval()
        return self

    def train(self, mode: bool = True) -> "Graph":
        """Put the model into training mode."""
        self.model.train(mode)
        return self

    def modules(self) -> Any:
        """Return the modules of the model."""
        return self.model.modules()


def shape_key(value: Any) -> Any:
    """Return the shapes and types of the tensors in `value`; two values alike in them share compiled code.

    >>> shape_key({"x": torch.zeros(2, 3)})
    (('x', ((2, 3), torch.float32)),)
    """
    if isinstance(value, Tensor):
        return tuple(value.shape), value.dtype
    if isinstance(value, Mapping):
        return tuple((key, shape_key(item)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(map(shape_key, value))
    return type(value)


def _described(signature: Any) -> str:
    args, kwargs = signature
    named = {f"argument {place}": entry for place, entry in enumerate(args)} | dict(kwargs)
    return ", ".join(f"{name} {entry[0] if isinstance(entry, tuple) else entry}" for name, entry in named.items())


# The step of graph mode: the same as in eager mode, with a compiled model


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
