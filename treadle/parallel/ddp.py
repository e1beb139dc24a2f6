"""Losses whose gradients are averaged over the processes while they are calculated."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from treadle.parallel.strategy import Strategy
from treadle.phase import optimizer_params

if TYPE_CHECKING:
    from treadle.phase import Phase

# The one module that data-parallel wrappers see


class LossModule(nn.Module):
    """A model together with the verb that computes its loss.

    DDP and FSDP act in the `forward` of what they wrap; models whose loss is not in their own `forward`
    (`model.calculate_loss(batch)`) are seen because the verb is called from here.

    The parameter `weight` collects, as its gradient, the weight of all losses of a window. It rides in the
    wrapper's own all-reduce, so the sum over all ranks costs no collective of its own.
    """

    def __init__(self, model: nn.Module, device: torch.device, others: Iterable[nn.Parameter] = ()) -> None:
        super().__init__()
        self.model = model
        # What the loss learns beside the model, such as the proxies of a metric loss.
        self.others = nn.ParameterList(others)
        kinds = {parameter.dtype for parameter in model.parameters()}
        # A weight of the parameters' own type shares their bucket; a half would lose the count.
        exact = torch.float64 if torch.float64 in kinds else torch.float32
        self.weight = nn.Parameter(torch.zeros(1, device=device, dtype=exact))

    def forward(self, verb: Callable[[Any], dict[str, Any]], batch: Any) -> tuple[dict[str, Any], Tensor]:
        """Return what `verb` makes of `batch`, and a zero through which `weight` gets its gradient."""
        output = verb(batch)
        return output, self.weight.sum()


class SharedLoss:
    """Computes the losses of a model where wrappers see them, and brings their gradients together.

    On one process there is nothing to share, and `module` is None: the loss is that of the verb itself.

    Args:
        strategy: How the processes share the model.

    Attributes:
        module: The model with its loss, whose `weight` collects what the losses of a window are means over.
        wrapped: What averages the gradients of `module` in the backward pass; None where the strategy does, or nobody.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self._optimizers: Sequence[Optimizer] = ()
        self.module: LossModule | None = None
        self.wrapped: DistributedDataParallel | None = None
        self._learning: list[int] = []
        self._reach_known = False

    def prepare(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        """Get ready for the losses of a model that is where it is trained.

        Args:
            model: What is trained.
            optimizers: What updates it.
        """
        self._model, self._optimizers = model, optimizers
        self._wrap()

    @property
    def weight(self) -> nn.Parameter:
        """The parameter whose gradient is what the losses of a window are means over, summed over the processes."""
        assert self.module is not None, "on one process nobody sums up"
        return self.module.weight

    def learning(self) -> list[int]:
        """Return which parameters take part in training; callbacks may freeze and thaw them."""
        held = [parameter for optimizer in self._optimizers for parameter in optimizer_params(optimizer)]
        return [id(parameter) for parameter in [*self._model.parameters(), *held] if parameter.requires_grad]

    def begin_epoch(self) -> None:
        """Wrap anew if other parameters learn now."""
        # DDP sorts parameters into buckets when it is built, and waits for the gradient of each of them.
        if self.module is not None and not self._strategy.is_sharded and self._learning != self.learning():
            self._wrap()

    def _wrap(self, *, all_reached: bool = True) -> None:
        """With several processes, put a data-parallel wrapper around the loss of what learns now.

        Args:
            all_reached: Whether every loss reaches every parameter, as far as is known.
        """
        strategy, processes = self._strategy, self._strategy.processes
        self.module = self.wrapped = None
        self._learning = self.learning()
        # Of a sharded model, what is exchanged is the strategy's; the module collects the weight of a window.
        self._reach_known = strategy.is_sharded or not all_reached
        if strategy.is_sharded:
            self.module = LossModule(self._model, processes.device)
        elif processes.distributed and self._learning:
            own = {id(parameter) for parameter in self._model.parameters()}
            held = [parameter for optimizer in self._optimizers for parameter in optimizer_params(optimizer)]
            others = [parameter for parameter in held if id(parameter) not in own]
            self.module = LossModule(self._model, processes.device, others)
            self.wrapped = strategy.wrap(self.module, finds_unreached=not all_reached)
            if self.wrapped is None:
                # A wrapper begins with the weights of the first process; without one, nobody does.
                processes.share_weights(self.module)

    def compute(
        self, phase: "Phase", verb: Callable[[Any], dict[str, Any]], batch: Any, *, last: bool
    ) -> tuple[dict[str, Any], Tensor | None]:
        """Return what the loss verb makes of a batch, and a zero by which `weight` collects what it is a mean over.

        Args:
            phase: Whose loss it is.
            verb: The verb, compiled or not.
            batch: The batch.
            last: Whether it is the last of its window: gradients are exchanged for that one only.
        """
        if self._strategy.is_sharded:
            self._strategy.begin_micro_batch(last=last)
        if self.wrapped is None or self._averages(phase):
            # Past the wrapper, which would wait for gradients of all parameters; these passes may not reach them all.
            return (verb(batch), None) if self.module is None else self.module(verb, batch)
        # DDP takes this flag at the forward pass and acts on it in the backward pass that follows.
        self.wrapped.require_backward_grad_sync = last
        result: tuple[dict[str, Any], Tensor] = self.wrapped(verb, batch)
        return result

    def _averages(self, phase: "Phase") -> bool:
        """Whether gradients are averaged after the passes: those of part of a model, and of the very first window."""
        return phase.parameters is not None or not self._reach_known

    def take_weight(self, phase: "Phase") -> Tensor | None:
        """Bring the gradients of a window to their mean over the processes; return what they are to be divided by."""
        weight = self.weight
        if self._strategy.is_sharded:
            self._strategy.finish_gradients(weight)
        elif self.wrapped is None or self._averages(phase):
            self._strategy.reduce([*phase.trained, weight])
        if phase.parameters is None and not self._reach_known:
            self._learn_reach()
        # No optimizer holds this parameter, so nobody else forgets its gradient before the next window.
        found, weight.grad = weight.grad, None
        return found

    def _learn_reach(self) -> None:
        """After the first window: look for parameters that the loss did not reach on any rank.

        Whoever wraps must know; looking for them in every step would cost every model for the sake of a few.
        """
        assert self.module is not None
        learning = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        reached = [float(parameter.grad is not None) for parameter in learning]
        self._reach_known = all(self._strategy.processes.reduce(reached, "max"))
        if not self._reach_known:
            self._wrap(all_reached=False)
