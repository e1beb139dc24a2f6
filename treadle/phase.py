"""Phases: which data, loss and optimizer an update uses, and how several of them take turns."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.optim import Optimizer

from treadle.data import Batch, Stream
from treadle.errors import ConfigError

LossVerb = Callable[[Batch], dict[str, Any]]


@dataclass(eq=False, slots=True)
class Phase:
    """A part of an epoch with its own data, loss or optimizer.

    Args:
        name: What it is called in messages and metrics.
        stream: Where its batches come from.
        loss: The method that turns a batch into `{"loss": ..., ...}`.
        optimizer: What updates the weights.
        scheduler: The schedule that moves on with each of its updates, if any.
        parameters: The parameters that its loss trains; None means all that the optimizer holds, with the
            gradients of everything else left as backward makes them. With several processes, give it to a
            phase whose loss does not reach the whole model.
        accumulation: Micro-batches in one update.
        steps: Updates each time the phase is entered; None means until its stream ends.
        reuse: Whether it takes the window that was drawn last from its stream again, instead of a new one.
        draws: Whether the loop draws its windows; False leaves that to an `update` of your own, which gets an
            empty one.
        silent: Whether nobody hears of its passes: no event of a micro-batch, no loss in the mean of the epoch. For
            passes within an update of your own that only help it.
    """

    name: str
    stream: Stream
    loss: LossVerb
    optimizer: Optimizer
    scheduler: Any = None
    parameters: Sequence[nn.Parameter] | None = None
    accumulation: int = 1
    steps: int | None = None
    reuse: bool = False
    draws: bool = True
    silent: bool = False
    trained: list[nn.Parameter] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.trained = optimizer_params(self.optimizer) if self.parameters is None else list(self.parameters)
        self.stream.keep_last = self.stream.keep_last or self.reuse
        if self.accumulation < 1:
            raise ConfigError(f"phase {self.name!r}: accumulation={self.accumulation} must be at least 1")
        if self.steps is not None and self.steps < 1:
            raise ConfigError(f"phase {self.name!r}: steps={self.steps} must be at least 1")
        if self.reuse and self.steps is None:
            raise ConfigError(f"phase {self.name!r}: reuse=True never ends by itself; set steps=1")


def optimizer_params(optimizer: Optimizer) -> list[nn.Parameter]:
    """Return every parameter that `optimizer` updates, in its order."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def alternate(*phases: Phase) -> Iterator[Phase]:
    """Enter the phases in turn until the stream of the first one ends; each makes `steps` updates, or one.

    A generator and a discriminator on the same batches:

        def phases(self, epoch):
            yield from alternate(
                Phase("discriminator", stream, self.discriminator_loss, self.optimizer["discriminator"], steps=1),
                Phase("generator", stream, self.generator_loss, self.optimizer["generator"], steps=1, reuse=True),
            )
    """
    for phase in phases:
        phase.steps = phase.steps or 1
    while phases[0].stream.has_next():
        yield from phases
