"""A step that was recorded for windows of one shape, and is replayed with the data of each."""

import gc
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from treadle.data.random_state import set_cuda_state
from treadle.events.pending import PendingRows
from treadle.execution.cuda_graph.capture_errors import explain
from treadle.execution.cuda_graph.inputs import Inputs
from treadle.optim.combined import member_optimizers

# Recording work on a CUDA device, and leaving the device usable when that fails


Replay = Callable[[], None]
SPARE = 2**30
"""How many unused bytes the first recording leaves to eager steps: it takes time to have them given back."""


class Recorder(Protocol):
    """Records what some work does on a device, without doing it, to be repeated as often as one likes."""

    def capture(self, work: Callable[[], None], generators: Iterable[torch.Generator] = ()) -> Replay:
        """Return what repeats `work`.

        Raises:
            CaptureError: It cannot be recorded; the device is as it was.
        """

    def watching(self) -> AbstractContextManager[Any]:
        """Return the context in which work that makes the host wait for the device is an error."""

    def release(self) -> None:
        """Give back the memory of recordings that nobody holds any more."""


class CudaGraphs:
    """Records into CUDA graphs that share one pool of memory and one stream.

    Args:
        device: Where the work is done.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        # Torch refuses a pool once all of its recordings are gone, as after a rollback; this one stays.
        self._keeper: torch.cuda.CUDAGraph | None = None

    def capture(self, work: Callable[[], None], generators: Iterable[torch.Generator] = ()) -> Replay:
        """Return what repeats `work`, which draws from the device's generator and from `generators`."""
        random = torch.cuda.get_rng_state(self._device)
        if self._keeper is None:
            # Eager steps leave memory behind that they do not use, and recordings cannot.
            unused = torch.cuda.memory_reserved(self._device) - torch.cuda.memory_allocated(self._device)
            if unused > SPARE:
                torch.cuda.empty_cache()
            self._keeper = self._record_something()
        graph = torch.cuda.CUDAGraph()
        for generator in generators:
            graph.register_generator_state(generator)
        try:
            pool = self._keeper.pool()
            # In this mode other threads, such as one that pins memory, may go on with what they do.
            with (
                _no_garbage_collected(),
                torch.cuda.graph(graph, pool=pool, stream=self._stream, capture_error_mode="thread_local"),
            ):
                work()
        except Exception as error:
            self._recover(random)
            raise explain(error) from error
        return graph.replay

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Refuse work that makes the host wait for the device, where it stands in the program."""
        mode = torch.cuda.get_sync_debug_mode()
        try:
            with warnings.catch_warnings():
                # Where warnings are errors, torch's note on its first use would leave the mode as it is now set.
                warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype")
                torch.cuda.set_sync_debug_mode("error")
            yield
        finally:
            torch.cuda.set_sync_debug_mode(mode)

    def release(self) -> None:
        """Let go of the pool; torch frees its memory when it needs some."""
        self._keeper = None

    def _record_something(self) -> torch.cuda.CUDAGraph:
        something, graph = torch.zeros(1, device=self._device), torch.cuda.CUDAGraph()
        with _no_garbage_collected(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
            something.add_(1)
        return graph

    def _recover(self, random: torch.Tensor) -> None:
        """Free the device's generator, which a failed recording leaves locked until another one succeeds."""
        torch.cuda.synchronize(self._device)
        self._record_something()
        set_cuda_state(random, device=self._device)


@contextmanager
def _no_garbage_collected() -> Iterator[None]:
    """Hold the collector off: a graph of an earlier run that it destroyed during a recording would end the process."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@dataclass(eq=False)
class Rates:
    """The learning rates of an optimizer as tensors, for a recorded step to read.

    Outside of the recording the optimizer has plain numbers, for schedules and users to see. Fused optimizers read
    tensors in single precision only; `rounded_rates` has ordinary steps use the same numbers.
    """

    optimizer: Optimizer
    device: torch.device
    tensors: list[Tensor] = field(init=False)
    written: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self.written = [float(group["lr"]) for group in self.optimizer.param_groups]
        self.tensors = [torch.tensor(rate, dtype=torch.float32, device=self.device) for rate in self.written]

    def lend(self) -> None:
        """Give the optimizer the tensors."""
        for group, tensor in zip(self.optimizer.param_groups, self.tensors, strict=True):
            group["lr"] = tensor

    def write(self) -> None:
        """Bring the numbers of the optimizer into the tensors, where they changed."""
        for place, group in enumerate(self.optimizer.param_groups):
            if group["lr"] != self.written[place]:
                self.written[place] = float(group["lr"])
                self.tensors[place].fill_(self.written[place])


@contextmanager
def rounded_rates(optimizer: Optimizer) -> Iterator[None]:
    """Have the steps of an optimizer use learning rates in single precision, as recorded steps read them.

    A run that is resumed makes ordinary steps where the first run replayed: with rates in double precision it would
    end in other bits. Only `optimizer.step` sees the rounded numbers, for a schedule goes on from those it wrote.
    """
    with ExitStack() as hooks:
        for member in member_optimizers(optimizer):
            hooks.enter_context(_rounded_rates(member))
        yield


@contextmanager
def _rounded_rates(optimizer: Optimizer) -> Iterator[None]:
    exact: list[Any] = []

    def lend(optimizer: Optimizer, *step: Any) -> None:
        exact[:] = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            if not isinstance(group["lr"], Tensor):
                group["lr"] = torch.tensor(group["lr"], dtype=torch.float32).item()

    def give_back(optimizer: Optimizer, *step: Any) -> None:
        for group, rate in zip(optimizer.param_groups, exact, strict=True):
            group["lr"] = rate

    hooks = [optimizer.register_step_pre_hook(lend), optimizer.register_step_post_hook(give_back)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@dataclass(eq=False, slots=True)
class Recorded:
    """What a step hands to the host; where that is tensors, each replay fills them again.

    Attributes:
        losses: The loss of each micro-batch and its weight.
        norm: The norm of the gradient, where it is known.
        puts: What was put into the event storage.
        samples: How many samples the window has.
    """

    losses: list[tuple[Any, Any]] = field(default_factory=list)
    norm: Tensor | None = None
    puts: list[tuple[Any, ...]] = field(default_factory=list)
    samples: int = 0

    def update(self, loss: Any, weight: Any = 1) -> None:
        """Take the loss of a micro-batch, as the trainer's tracker would."""
        self.losses.append((loss.detach() if isinstance(loss, Tensor) else loss, weight))

    def numbers(self) -> list[Tensor]:
        """Return the losses and weights that are on the device."""
        return [number for pair in self.losses for number in pair if isinstance(number, Tensor)]

    def pairs(self, numbers: list[Any]) -> list[tuple[Any, Any]]:
        """Return losses and weights, with `numbers` in place of those on the device."""
        rest = iter(numbers)
        return [tuple(next(rest) if isinstance(one, Tensor) else one for one in pair) for pair in self.losses]

    def spoil(self, norm: Tensor) -> None:
        """Make the newest loss nan if the norm of its gradient is not finite."""
        loss, weight = self.losses[-1]
        if isinstance(loss, Tensor):
            self.losses[-1] = (loss + norm.detach() * 0, weight)


@dataclass(eq=False, slots=True)
class CapturedStep:
    """A recorded step with its inputs and outputs.

    Args:
        replay: Does the step again.
        inputs: Where it reads its window from.
        optimizer: The optimizer whose update it makes.
        arguments: The arguments that the optimizer had when the step was recorded.
        recorded: What it hands to the host.
        rows: Where each replay leaves its losses; None if none is on the device.
        rates: The learning rates it reads; None if it has them as constants.
        callbacks: The callbacks whose work it does.
        replays: How often it was replayed.
    """

    replay: Replay
    inputs: Inputs
    optimizer: Optimizer
    arguments: list[list[Any]]
    recorded: Recorded
    rows: PendingRows | None
    rates: Rates | None
    callbacks: frozenset[Any]
    replays: int = 0

    def fits(self, optimizer: Optimizer) -> bool:
        """Return whether `optimizer` is the recorded one and has the arguments that it had then."""
        groups = optimizer.param_groups
        if self.rates is None and len(groups) == 1:
            # The most common case; what is below is a microsecond more.
            return optimizer is self.optimizer and self.arguments[0] == [*groups[0].values()]
        return optimizer is self.optimizer and self.arguments == group_arguments(optimizer, rates=self.rates is None)

    def run(self, values: list[Any]) -> None:
        """Do the step with the data of a window."""
        self.inputs.write(values)
        if self.rates is not None:
            self.rates.write()
        self.replays += 1
        self.replay()

    def begin_anew(self) -> None:
        """Forget replays that were only made to see what they take."""
        self.inputs.rewind()
        if self.rows is not None:
            self.rows.begin()


def group_arguments(optimizer: Optimizer, *, rates: bool) -> list[list[Any]]:
    """Return the arguments of each group of an optimizer, with the learning rates or without."""
    if rates:
        return [list(group.values()) for group in optimizer.param_groups]
    return [[value for name, value in group.items() if name != "lr"] for group in optimizer.param_groups]
