"""What a plan does to a model, an optimizer and their gradients: one object for each way, behind the same verbs."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from treadle.errors import DataError
from treadle.optim.state import OptimizerState
from treadle.parallel.grad_allreduce import GradientAverager
from treadle.parallel.plan import Degrees, Plan
from treadle.parallel.processes import Processes
from treadle.precision.formats import Precision


class Strategy:
    """Every process has all of the model: alone, or kept alike by torch's DistributedDataParallel.

    Another way of sharing a model is a subclass; what makes one is given to a trainer as `parallel=`, and called with
    the processes.

    Args:
        processes: The processes.
        plan: The plan; by default each process has all of the model.
        degrees: Its numbers for these processes.

    Attributes:
        is_sharded: Whether ranks hold other weights than their neighbours.
        is_pipeline: Whether a batch goes through several ranks one after the other.
        data_rank: Which share of the data this rank works on.
        data_size: How many shares there are.
        data_ranks: The ranks of one copy of each share, in the order of shares.
        data_group: The ranks that hold the same weights and work on other samples; None for all processes.
        copies: How many ranks work on the same samples.
        loss_copies: How many of these record the loss of a batch.
        prepared: Whether the model is spread out.
        fingerprint: What the model was before, to compare runs by; empty if it is as it was.
        prints: The same for optimizers, by their ids.
        bucket_megabytes: How much of the gradient is exchanged at once where all of the model is on every process; None
            leaves that to torch.
    """

    is_sharded = False
    is_pipeline = False

    def __init__(self, processes: Processes, plan: Plan | None = None, degrees: Degrees | None = None) -> None:
        self.processes, self.plan = processes, Plan() if plan is None else plan
        self.degrees = self.plan.degrees(processes.size) if degrees is None else degrees
        self.data_rank, self.data_size = processes.rank, processes.size
        self.data_ranks = list(range(processes.size))
        self.data_group: Any = None
        self.copies = self.loss_copies = 1
        self.prepared = False
        self.fingerprint: dict[str, Any] = {}
        self.prints: dict[int, dict[str, Any]] = {}
        self.bucket_megabytes: int | None = None

    @property
    def keeps_losses(self) -> bool:
        """Whether this rank goes on with the sums of losses of a run that other ranks began."""
        return self.data_rank == 0

    def optimizer_state(self, optimizer: Optimizer) -> OptimizerState:
        """Return what saves and restores the pieces of an optimizer that are here."""
        raise NotImplementedError

    def describe(self) -> str:
        """Return the numbers of the plan in words, for the record of a run.

        >>> Strategy(Processes("cpu"), Plan(), Degrees(1, 1, 1, 1)).describe()
        'data=1'
        """
        used = {axis: number for axis, number in self.degrees._asdict().items() if number > 1}
        return " ".join(f"{axis}={number}" for axis, number in sorted(used.items())) or "data=1"

    def as_argument(self) -> str:
        """Return the plan as it stands in a program, for messages.

        >>> Strategy(Processes("cpu"), Plan(), Degrees(1, 2, 4, 1)).as_argument()
        'parallel=Plan(data=2, shard=4)'
        """
        return f"parallel=Plan({self.describe().replace(' ', ', ')})"

    def prepare(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        """Spread the model over the ranks, once, and have the optimizers hold what is here of it."""

    def place(self, model: nn.Module) -> None:
        """Bring the model to the device of this rank."""
        model.to(self.processes.device)

    def wrap(self, module: nn.Module, *, finds_unreached: bool) -> DistributedDataParallel | None:
        """Return what averages the gradients of `module` over the processes while they are calculated.

        Where it is None, `reduce` averages them after the passes of a window.

        Args:
            module: The model with its loss.
            finds_unreached: Whether it looks, in every step, for parameters that the loss does not reach.
        """
        return DistributedDataParallel(
            module, find_unused_parameters=finds_unreached, bucket_cap_mb=self.bucket_megabytes
        )

    def reduce(self, parameters: Sequence[Any]) -> None:
        """Make the gradients of `parameters` their mean over the processes, where no backward pass did so."""
        GradientAverager(self.processes).average(parameters)

    def begin_micro_batch(self, *, last: bool) -> None:
        """Get ready for the passes of a micro-batch; gradients are exchanged with the `last` of a window."""

    def finish_gradients(self, weight_param: Tensor) -> None:
        """Average the gradients of a window, and that of `weight_param`, over the ranks that share the data."""

    def drop_gradients(self) -> None:
        """Forget gradients that no optimizer holds."""

    def run_window(
        self,
        model: nn.Module,
        window: Sequence[Any],
        loss: Any,
        share: Callable[[Any], Any],
        scale: Callable[[Tensor], Tensor] | None = None,
    ) -> list[tuple[dict[str, Any], int]]:
        """Calculate the gradients of a window in stages; see `PipelineStrategy`."""
        raise NotImplementedError

    def from_last(self, numbers: Mapping[str, Any]) -> dict[str, Tensor]:
        """Give every stage the numbers that the last one has; see `PipelineStrategy`."""
        raise NotImplementedError

    def stage_loss(self, model: nn.Module, loss_func: Any, criterion: Any) -> Any:
        """Return how batches go into stages, and what comes of them at their end; see `PipelineStrategy`."""
        raise NotImplementedError

    def share_scale(self, precision: Precision) -> None:
        """Have processes agree on more than the first scale of fp16, where each has other gradients."""

    def take_from_last(self, tensor: Tensor) -> None:
        """Give every stage the numbers of a tensor that the last one has; see `PipelineStrategy`."""
        raise NotImplementedError

    def route(self, model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return what the arguments of a call are to the modules of a pipeline; see `PipelineStrategy`."""
        raise NotImplementedError

    def call(self, model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return what a model in stages makes of these arguments; see `PipelineStrategy`."""
        raise NotImplementedError

    def evaluate(self, model: nn.Module, loss_func: Any, batch: Any) -> dict[str, Any]:
        """Return loss, outputs and size of a batch that goes through stages."""
        raise NotImplementedError

    def forward(self, model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
        """Return the outputs for a batch that goes through stages."""
        raise NotImplementedError

    @property
    def is_lockstep(self) -> bool:
        """Whether ranks with other samples need each other in a forward pass, and so must make as many."""
        return self.is_sharded and self.data_size > 1

    def norm(self, held: Sequence[nn.Parameter]) -> Tensor | None:
        """Return the joint norm of the gradients of `held` over the ranks that hold pieces; None if none do."""
        return None

    def norm_of_weights(self) -> Tensor | None:
        """Return the joint norm of all weights over the ranks that hold pieces; None if none do."""
        return None

    def share_buffers(self, model: nn.Module) -> None:
        """Give the ranks that hold the same weights the buffers of the first of them."""
        self.processes.share_buffers(model)

    def after_eval(self, model: nn.Module) -> None:
        """Give up what a forward pass without a backward pass left behind."""


def in_step(batches: Iterable[Any], processes: Processes, strategy: Strategy | None) -> Iterator[tuple[Any, bool]]:
    """Yield batches to evaluate, and whether they count here.

    Ranks that need each other in a forward pass make as many of them: one without a batch takes its last once more. Of
    several ranks with the same samples, the first one counts them.

    Args:
        batches: The batches of this rank.
        processes: The processes.
        strategy: How they share the model.

    Raises:
        DataError: This rank has no batch at all, and others have.
    """
    counts = strategy is None or processes.rank in strategy.data_ranks
    if strategy is None or not strategy.is_lockstep:
        yield from ((batch, counts) for batch in batches)
        return
    iterator, batch, nothing = iter(batches), None, object()
    while True:
        found = next(iterator, nothing)
        # A collective for each batch, but only where weights are sharded, whose passes are collectives anyway.
        if not processes.reduce([float(found is not nothing)], "max")[0]:
            return
        batch = batch if found is nothing else found
        if batch is None:
            raise DataError("a process has no batch to evaluate while others have; give at least one to each")
        yield batch, counts and found is not nothing
