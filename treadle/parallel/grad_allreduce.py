"""Every optimizer that steps in a run does so with the gradients of all processes, whoever made it, or not at all."""

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from treadle.errors import ConfigError, some_of
from treadle.optim.combined import member_optimizers
from treadle.optim.gradients import present_gradients
from treadle.parallel.processes import Processes
from treadle.phase import optimizer_params
from treadle.runs.description import kept_by, name_within

# Gradients averaged across ranks where no wrapper does it: foreign loops and phases of part of a model


class GradientAverager:
    """Averages gradients with one flat all-reduce; sparse ones, of embeddings, exchange only their rows.

    A gradient that is None on every rank stays None; one that is None on some counts as zero there.
    """

    def __init__(self, processes: Processes) -> None:
        self._processes = processes

    def average(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace the gradients of `parameters` by their mean over all ranks."""
        if not self._processes.distributed:
            return
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        gradients = [parameter.grad for parameter in trained]
        present = [float(gradient is not None) for gradient in gradients]
        sparse = [float(gradient is not None and gradient.is_sparse) for gradient in gradients]
        # How many ranks hold each gradient travels on the host group: which ones to skip is a host decision.
        holders = self._processes.reduce(present + sparse)
        counts, sparse_counts = holders[: len(trained)], holders[len(trained) :]
        by_kind: dict[tuple[torch.device, torch.dtype], list[nn.Parameter]] = {}
        for parameter, count, sparse_count in zip(trained, counts, sparse_counts, strict=True):
            if count and count == sparse_count:
                self._average_rows(parameter)
            elif count:
                by_kind.setdefault((parameter.device, parameter.dtype), []).append(parameter)
        for alike in by_kind.values():
            self._average_flat(alike)

    def _average_flat(self, parameters: list[nn.Parameter]) -> None:
        # One collective in place of one for each parameter; the price is a second copy of the gradients meanwhile.
        flat = torch.cat([_dense(parameter) for parameter in parameters])
        dist.all_reduce(flat)
        flat.div_(self._processes.size)
        offset = 0
        for parameter in parameters:
            mean = flat[offset : offset + parameter.numel()].view_as(parameter)
            offset += parameter.numel()
            if parameter.grad is None or parameter.grad.is_sparse:
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.copy_(mean)

    def _average_rows(self, parameter: nn.Parameter) -> None:
        if parameter.grad is None:
            rows, values = torch.empty(0, 1, dtype=torch.long, device=parameter.device), parameter.detach()[:0]
        else:
            own = parameter.grad.coalesce()
            rows, values = own.indices().t(), own.values()
        # Ranks met other rows, and other numbers of them; the last `coalesce` sums what several of them have.
        rows = self._processes.gather(rows, padding_value=0)
        values = self._processes.gather(values, padding_value=0) / self._processes.size
        parameter.grad = torch.sparse_coo_tensor(rows.t(), values, parameter.shape, check_invariants=False).coalesce()


def _dense(parameter: nn.Parameter) -> Tensor:
    if parameter.grad is None:
        return parameter.new_zeros(parameter.numel())
    return (parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad).reshape(-1)


_inside: list["GradientExchange | UnsharedSteps"] = []
_apart: list[None] = []


@contextmanager
def local_updates() -> Iterator[None]:
    """While entered, optimizers step with the gradients of this process alone, and may step on some processes only.

    For weights that are no part of the run: the copies that an inner loop adapts to its task, a probe that one
    process fits.
    """
    _apart.append(None)
    try:
        yield
    finally:
        _apart.pop()


class GradientExchange:
    """While entered on several processes, averages the gradients of every optimizer that steps, before it does.

    The trainer's own update exchanges them while they are calculated, and says so by `note`. All others are looked at
    when they step: those that the trainer was given, those that update weights of its model, and those that it, the
    model or a callback keeps. Any other is refused: its weights might be those of a model that the processes share, or
    of a copy that each has for itself. Of several that are entered, in a run within a run, the innermost acts.

    Args:
        processes: The processes.
        keeper: The trainer.

    Attributes:
        weigh: Called with the trainer, says how much the gradients of this process count; the mean over all is one.
    """

    def __init__(self, processes: Processes, keeper: Any) -> None:
        self._processes = processes
        # Weak: the trainer holds this, and a circle would keep its model in memory until the garbage is next searched.
        self._keeper: Callable[[], Any] = weakref.ref(keeper)
        self._averager = GradientAverager(processes)
        self._noted: tuple[Optimizer, ...] = ()
        self._admitted: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._handles: list[RemovableHandle] = []
        self.weigh: Callable[[Any], float] = _alike

    def __enter__(self) -> Self:
        self._noted = ()
        _inside.append(self)
        if self._processes.distributed:
            given = list(self._keeper().optimizers().values())
            # Hooks of their own: an optimizer whose state is elsewhere steps in parts, and calls those once.
            self._handles = [one.register_step_pre_hook(self) for one in given]
            self._handles.append(register_optimizer_step_pre_hook(_Others(self, given)))
        return self

    def __exit__(self, *exception: object) -> None:
        _inside.remove(self)
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def outside_of_epochs(self) -> "UnsharedSteps":
        """Return what refuses steps in a run but outside of its epochs, while it is entered."""
        return UnsharedSteps(self._processes, self._keeper(), "outside of the loop over an epoch")

    def in_evaluation(self) -> AbstractContextManager[Any]:
        """Return what refuses steps in an evaluation while it is entered, but of optimizers that are made there."""
        keeper, last = self._keeper(), _inside[-1] if _inside else None
        if isinstance(last, UnsharedSteps) and last.spares_new and last.keeper is keeper:
            # Within one already, which knows what was made since it began.
            return nullcontext()
        return UnsharedSteps(self._processes, keeper, "in an evaluation", spares_new=True)

    def note(self, optimizer: Optimizer | None) -> None:
        """Take note that the gradients of `optimizer` are those of all processes; None that no one's are, any more."""
        self._noted = () if optimizer is None else member_optimizers(optimizer)

    def passes(self, optimizer: Optimizer) -> bool:
        """Whether `optimizer` may step as it is."""
        # `direct_step` asks this too: only if all hooks would pass may it go past `step`, and so past them.
        return any(optimizer is one for one in self._noted) or bool(_apart) or _inside[-1] is not self

    def __call__(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        """Average the gradients of `optimizer`, which is about to step; those that a closure makes, after it."""
        if self.passes(optimizer):
            return None
        if optimizer not in self._admitted:
            self._admit(optimizer)
            self._admitted.add(optimizer)
        # Torch hands a hook the arguments of `step` with the optimizer in front.
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self._average(optimizer)
            return None
        return args[:1], {**kwargs, "closure": lambda: self._closed(optimizer, closure)}

    def _average(self, optimizer: Optimizer) -> None:
        weight = self.weigh(self._keeper())
        # A pass over all gradients, left out where every process counts alike, as is usual.
        if abs(weight - 1.0) > 1e-12:
            for gradient in present_gradients(optimizer_params(optimizer)):
                gradient.mul_(weight)
        self._averager.average(optimizer_params(optimizer))

    def _closed(self, optimizer: Optimizer, closure: Callable[[], Any]) -> Any:
        """Return the loss of `closure`, the mean of all processes: a search along a line must end on all alike."""
        with torch.enable_grad():
            loss = closure()
        self._average(optimizer)
        if isinstance(loss, Tensor):
            loss = loss.detach().clone()
            dist.all_reduce(loss)
            loss.div_(self._processes.size)
        return loss

    # An optimizer that steps for the first time ---------------------------------------------------------------

    def _admit(self, optimizer: Optimizer) -> None:
        """Refuse an optimizer that might be anybody's, or whose weights are not the same on all processes.

        Raises:
            ConfigError: It is one of these.
        """
        keeper = self._keeper()
        own = {id(one) for one in keeper.model.parameters()}
        held = optimizer_params(optimizer)
        of_model = any(id(one) in own for one in held)
        if keeper.parallel.is_sharded and of_model:
            raise ConfigError(
                f"{_described(optimizer)} steps by itself, but {keeper.parallel.as_argument()} has sharded its weights "
                "over the processes; leave the update to the trainer"
            )
        if any(optimizer is one for one in keeper.optimizers().values()):
            return
        name = name_within(keeper, optimizer)
        if name is None and not of_model:
            raise ConfigError(
                f"{_described(optimizer)} steps in training on {self._processes.size} processes, and the trainer does "
                "not know it: its weights would become others on each. Give it to the trainer (optimizer={...}) or "
                "keep it as an attribute of the trainer, and its gradients are averaged; or, if its weights are no "
                "part of the run, step it within treadle.parallel.local_updates()"
            )
        self._require_same(name, optimizer, [one for one in held if id(one) not in own])

    def _require_same(self, name: str | None, optimizer: Optimizer, weights: list[nn.Parameter]) -> None:
        """Refuse weights that differ from process to process; those of the model were made the same."""
        found = [sums for weight in weights for sums in _checksums(weight)]
        # Three sums a weight travel, and not the weights; this is done at the first step of an optimizer only.
        highest, lowest = self._processes.reduce(found, "max"), self._processes.reduce(found, "min")
        if highest != lowest:
            called = "" if name is None else f" {name!r}"
            raise ConfigError(
                f"the weights of the optimizer{called}, {_described(optimizer)}, are not the same on all processes; "
                "make them before train() after torch.manual_seed(...), or make them part of the model"
            )


class UnsharedSteps:
    """While entered on several processes, refuses steps of the optimizers of a run, where nobody averages gradients.

    There processes need not step equally often. Of all that are entered, and of exchanges, the innermost acts.

    Args:
        processes: The processes.
        keeper: The trainer. Its optimizers are those that it was given, those that it, the model or a callback keeps,
            and those of weights of the model.
        place: Where the steps would be, in words.
        spares_new: Whether an optimizer that is made meanwhile is left alone, such as that of a probe.
    """

    def __init__(self, processes: Processes, keeper: Any, place: str, *, spares_new: bool = False) -> None:
        self._processes, self.keeper, self._place, self.spares_new = processes, keeper, place, spares_new
        self._spared: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._known: list[tuple[str, Optimizer]] = []
        self._handle: RemovableHandle | None = None

    def __enter__(self) -> Self:
        _inside.append(self)
        if self._processes.distributed:
            self._known = self._kept() if self.spares_new else []
            self._handle = register_optimizer_step_pre_hook(self)
        return self

    def __exit__(self, *exception: object) -> None:
        _inside.remove(self)
        if self._handle is not None:
            self._handle.remove()
        self._known = []

    def passes(self, optimizer: Optimizer) -> bool:
        """Whether `optimizer` may step."""
        return bool(_apart) or _inside[-1] is not self or optimizer in self._spared

    def __call__(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Look at `optimizer`, which is about to step.

        Raises:
            ConfigError: It is one of the run's.
        """
        if self.passes(optimizer):
            return
        known = self._known if self.spares_new else self._kept()
        name = next((name for name, one in known if one is optimizer), None)
        if name is None and (self.spares_new or not self._is_of_model(optimizer)):
            self._spared.add(optimizer)
            return
        called = "" if name is None else f"the optimizer {name!r}, "
        raise ConfigError(
            f"{called}{_described(optimizer)}, steps {self._place} on {self._processes.size} processes, where nobody "
            "averages gradients: its weights would become others on each. Step it in the loop over an epoch, such as "
            "in train_epoch_end, in on_train_epoch_end or in a _run_train_epoch of your own; or, if its weights are "
            "no part of the run, within treadle.parallel.local_updates()"
        )

    def _kept(self) -> list[tuple[str, Optimizer]]:
        given = self.keeper.optimizers().items()
        return [*given, *((name, one) for name, one in kept_by(self.keeper) if isinstance(one, Optimizer))]

    def _is_of_model(self, optimizer: Optimizer) -> bool:
        own = {id(one) for one in self.keeper.model.parameters()}
        return any(id(one) in own for one in optimizer_params(optimizer))


class _Others:
    """Hands every optimizer to an exchange but those that it was `given`, which have hooks of their own."""

    def __init__(self, exchange: GradientExchange, given: list[Optimizer]) -> None:
        self._exchange, self._given = exchange, given

    def passes(self, optimizer: Optimizer) -> bool:
        """Whether `optimizer` may step as it is."""
        return any(optimizer is one for one in self._given) or self._exchange.passes(optimizer)

    def __call__(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        """Have the exchange look at `optimizer`, which is about to step."""
        return None if self.passes(optimizer) else self._exchange(optimizer, args, kwargs)


def _alike(keeper: Any) -> float:
    return 1.0


def _checksums(weight: Tensor) -> list[float]:
    """Return numbers that differ where weights do."""
    exact = torch.nan_to_num(weight.detach().double()).reshape(-1)
    # By place as well: the same numbers in another order have the same sum and the same squares.
    places = torch.arange(1, exact.numel() + 1, dtype=torch.float64, device=exact.device)
    sums: list[float] = torch.stack([exact.sum(), exact.square().sum(), (exact / places).sum()]).tolist()
    return sums


def _described(optimizer: Optimizer) -> str:
    shapes = [str(tuple(one.shape)) for one in optimizer_params(optimizer)]
    return f"the {type(optimizer).__name__} of weights of shape {some_of(shapes, 3)}"
