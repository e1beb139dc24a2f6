"""What to do about steps whose numbers went wrong."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from treadle.errors import NonFiniteError
from treadle.events import NonFinite
from treadle.optim.combined import member_optimizers
from treadle.optim.fused import counters_to_device
from treadle.optim.gradients import joint_norm
from treadle.phase import optimizer_params

REMEDY = "lower the learning rate or set clip_norm"
REMEDY_AT_FIRST = (
    "no update was made yet, so it is not the learning rate: check the loss function and the first weights"
)
REMEDY_FOR_DATA = "clean the data, or leave such updates out by on_nonfinite='skip'"

Stride = Callable[[Callable[[], None]], None]
"""Goes through the weights of an optimizer, and calls what updates those at hand each time it has some."""

FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)
"""Optimizers of torch's that can be fused, and then look at a flag."""


def nonfinite_error(bad: NonFinite, accumulation: int, data: str | None = None) -> NonFiniteError:
    """Return the error that names the first bad step, and the loss before it where that is known.

    Args:
        bad: The loss.
        accumulation: Micro-batches in an update.
        data: Which values of the data of that step are not finite themselves; None if all are.

    >>> nonfinite_error(NonFinite(1200, float("nan"), 0.4823), 1)
    NonFiniteError('loss is nan at step 1200 (0.482 at step 1199); lower the learning rate or set clip_norm')
    """
    before = ""
    if bad.before is not None:
        # With accumulation, the loss before is that of a micro-batch of the same step, or of the last.
        place = f"at step {bad.step - 1}" if accumulation == 1 else "one micro-batch before"
        before = f" ({bad.before:.3g} {place})"
    said = f"loss is {bad.value} at step {bad.step}{before}"
    if data is not None:
        return NonFiniteError(f"{said}: {data}; {REMEDY_FOR_DATA}")
    return NonFiniteError(f"{said}; {REMEDY_AT_FIRST if bad.step == 1 and not before else REMEDY}")


class RollBack(Exception):  # noqa: N818 - it is no error: it says where to continue
    """Raised inside the loop when the run returns to an earlier checkpoint because of a bad step."""

    def __init__(self, step: int, value: float) -> None:
        super().__init__(f"loss is {value} at step {step}")
        self.step = step


class SkippedSteps:
    """The steps whose data made a loss nan or infinite, and is skipped when the run comes by again."""

    def __init__(self) -> None:
        self.steps: set[int] = set()

    def state_dict(self) -> dict[str, Any]:
        """Return the steps."""
        return {"steps": sorted(self.steps)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the steps back."""
        self.steps = set(state["steps"])


class FiniteGuard:
    """Leaves an update out, as if its data had never come, when its loss or gradient is not finite.

    Whether they are is a flag on the device that nobody reads: weights, optimizer state and buffers are chosen
    between before and after by that flag. Gradients set to zero would still decay moments and weights. A fused
    optimizer takes the flag itself; for others a copy of what they change is taken before each update. The host
    looks only at the first update of an optimizer whose state does not begin at zero, and at every update of one
    that counts in Python's numbers, or in tensors on the host while the weights are elsewhere, as Adagrad does.

    Args:
        model: Whose buffers are gated.
        optimizers: What will make the updates.
        device: Where they are made.
        watches: Whether the loss is looked at, and the gradient if nobody else has; without it the caller says
            what is bad.
        strides: How each optimizer goes through its weights, by its id, where it does not do so at once.
        agree: Makes a flag the largest of all processes, where each has other gradients.

    Attributes:
        watches: See above.
        applied: 1 if the last update was applied and 0 if it was left out, on the device.
        skipped: How many were left out so far, on the device.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Iterable[Optimizer],
        device: torch.device,
        *,
        watches: bool = True,
        strides: Mapping[int, Stride] | None = None,
        agree: Callable[[Tensor], Any] | None = None,
    ) -> None:
        self._buffers = BuffersBefore(model)
        self._loss = torch.zeros((), device=device)
        self._strides = strides or {}
        self._agree = agree
        self.watches = watches
        self.applied = torch.ones((), device=device)
        self.skipped = torch.zeros((), device=device)
        if device.type == "cuda":
            for optimizer in optimizers:
                # Without a flag it counts steps on the host, where a flag on the device cannot undo them unread.
                if not _takes_flag(optimizer):
                    _count_on_device(optimizer)

    def begin(self) -> None:
        """Start a window: take a copy of the model's buffers, which a forward pass may change or put anew."""
        self._loss.zero_()
        self._buffers.take()

    def note(self, loss: Tensor) -> None:
        """Take the loss of a micro-batch into account."""
        if self.watches:
            # A sum of losses is finite only if all of them are: one kernel a micro-batch and one flag for the window.
            self._loss.add_(loss.detach().squeeze())

    @torch.no_grad()
    def step(self, optimizer: Optimizer, gradients: list[Tensor], overflow: Tensor | None = None) -> None:
        """Let `optimizer` make its update, and undo it on the device if something is not finite.

        Args:
            optimizer: What updates the weights.
            gradients: The gradients of its weights.
            overflow: 1 if a gradient is not finite and 0 if all are, where that is known.
        """
        bad = self._is_bad(gradients, overflow)
        if self._agree is not None:
            # Before anybody steps: ranks that hold pieces of one model make an update all together, or none of them.
            self._agree(bad)
        for member in member_optimizers(optimizer):
            stride = self._strides.get(id(member), _at_once)
            stride(partial(guarded_step, member, bad))
        # Torch's schedulers warn if they move before the optimizer did, which an update left out looks like.
        optimizer._opt_called = True  # type: ignore[attr-defined]
        self._buffers.put_back(bad)
        # In place, as all that an update leaves behind: the replay of a recorded step writes where the recording did.
        torch.eq(bad, 0, out=self.applied)
        self.skipped.add_(bad)

    def _is_bad(self, gradients: list[Tensor], overflow: Tensor | None) -> Tensor:
        """Return 1 if the update must be left out, else 0."""
        # The kernel that brought fp16 gradients to their true size has looked at each of them already.
        if overflow is not None and not self.watches:
            return overflow
        bad = ~torch.isfinite(self._loss)
        bad = bad | (~torch.isfinite(joint_norm(gradients)) if overflow is None else overflow.bool())
        return bad.to(self.applied.dtype)

    def tensors(self) -> list[Tensor]:
        """Return the tensors that every update changes in place."""
        return [self.applied, self.skipped]

    def state_dict(self) -> dict[str, Any]:
        """Return how many updates were left out."""
        return {"skipped": self.skipped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the number of updates left out."""
        self.skipped.copy_(state["skipped"])


class BuffersBefore:
    """The buffers of a model as they were before a forward pass, to be put back where a flag says so."""

    def __init__(self, model: nn.Module) -> None:
        # The dicts and not the buffers: a model may put a new tensor in the place of an old one.
        self._homes = [module._buffers for module in model.modules()]
        self._copies: dict[tuple[int, str], Tensor] = {}
        self._taken: list[tuple[dict[str, Tensor | None], str, Tensor]] = []

    @torch.no_grad()
    def take(self) -> None:
        """Copy every buffer."""
        self._taken = []
        pairs: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
        for place, home in enumerate(self._homes):
            for name, buffer in home.items():
                # A sparse buffer is a constant, such as the edges of a graph.
                if buffer is not None and buffer.layout is torch.strided:
                    copy = self._buffer_copy((place, name), buffer)
                    self._taken.append((home, name, copy))
                    copies, buffers = pairs.setdefault(buffer.dtype, ([], []))
                    copies.append(copy)
                    buffers.append(buffer)
        for copies, buffers in pairs.values():
            # On CUDA one kernel for all buffers of a type, where a loop would launch one for each.
            torch._foreach_copy_(copies, buffers)

    def _buffer_copy(self, key: tuple[int, str], buffer: Tensor) -> Tensor:
        """Return the memory for the copy of a buffer, the same each time."""
        copy = self._copies.get(key)
        if copy is None or copy.shape != buffer.shape or copy.dtype != buffer.dtype or copy.device != buffer.device:
            copy = self._copies[key] = torch.empty_like(buffer)
        return copy

    @torch.no_grad()
    def put_back(self, bad: Tensor) -> None:
        """Give the buffers what they had before if `bad` is 1, and forget about it."""
        taken, self._taken = self._taken, []
        for home, name, before in taken:
            buffer = home.get(name)
            if buffer is not None and buffer.shape == before.shape:
                _choose(bad, before, buffer)


@torch.no_grad()
def guarded_step(optimizer: Optimizer, bad: Tensor) -> None:
    """Let `optimizer` make its update, and leave no trace of it if `bad`, on the device, is 1."""
    if _takes_flag(optimizer) and not _lacks_momentum(optimizer):
        _fused_step(optimizer, bad)
    elif _counts_on_host(optimizer, bad) or not (_begins_at_zero(optimizer) or all(_states_in_use(optimizer))):
        # What is on the host cannot be chosen by a flag on the device; and a state that is made from these gradients
        # has none before it to go back to.
        if not bool(bad):
            optimizer.step()
    else:
        before = {id(tensor): tensor.detach().clone() for tensor in _touched_by(optimizer)}
        optimizer.step()
        for tensor in _touched_by(optimizer):
            earlier = before.get(id(tensor))
            # A state that the optimizer has just made was nothing before, which is zero.
            _choose(bad, torch.zeros_like(tensor) if earlier is None else earlier, tensor)


def _at_once(step: Callable[[], None]) -> None:
    step()


def _choose(bad: Tensor, before: Tensor, after: Tensor) -> None:
    """Put `before` into `after` if `bad` is 1; a product with the flag would keep what is not a number."""
    torch.where(bad.bool(), before, after, out=after)


def _takes_flag(optimizer: Optimizer) -> bool:
    """Whether an optimizer is fused, and so leaves an update out by itself where a flag on the device says so."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False)) and _has_fused_step(type(optimizer))


def _has_fused_step(kind: type[Optimizer]) -> bool:
    """Whether the step of an optimizer is one of torch's own that can be fused; another might not look at a flag."""
    # Torch wraps the step of a class when its first object is made.
    return kind in FUSED or inspect.unwrap(kind.step) in {inspect.unwrap(known.step) for known in FUSED}


def _lacks_momentum(optimizer: Optimizer) -> bool:
    """Whether this is fused SGD before its first update, whose momentum begins as whatever lies in memory."""
    if not isinstance(optimizer, torch.optim.SGD) or not any(group["momentum"] for group in optimizer.param_groups):
        return False
    return any("momentum_buffer" not in state for state in _states_in_use(optimizer))


def _fused_step(optimizer: Optimizer, bad: Tensor) -> None:
    fused: Any = optimizer
    # How torch's GradScaler hands a flag to a fused kernel, which then leaves everything as it is. There is no scale,
    # because gradients have their true size already.
    fused.grad_scale, fused.found_inf = None, bad
    try:
        optimizer.step()
    finally:
        # They must not stay: the next step would go by the flag of this one, and `direct_step` makes way for them.
        del fused.grad_scale, fused.found_inf


def _counts_on_host(optimizer: Optimizer, bad: Tensor) -> bool:
    """Whether an optimizer keeps something for its weights where the flag is not.

    SparseAdam counts its steps in numbers of Python's, Adagrad in tensors on the host beside weights on a GPU.
    """
    state: dict[str, Any] = next(filter(None, _states_in_use(optimizer)), {})
    return any(
        value.device != bad.device
        if isinstance(value, Tensor)
        else isinstance(value, (int, float)) and not isinstance(value, bool)
        for value in state.values()
    )


def _states_in_use(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return the state of each weight that has a gradient, empty where it is still to be made."""
    return [
        optimizer.state.get(parameter, {}) for parameter in optimizer_params(optimizer) if parameter.grad is not None
    ]


def _begins_at_zero(optimizer: Optimizer) -> bool:
    """Whether the state that an optimizer makes at its first step is the one of zeros, had it been there before."""
    kinds = (torch.optim.Adam, torch.optim.AdamW, torch.optim.Adamax, torch.optim.Adadelta, torch.optim.RMSprop)
    dampened = any(group.get("dampening") for group in optimizer.param_groups)
    return type(optimizer) in kinds or (type(optimizer) is torch.optim.SGD and not dampened)


def _count_on_device(optimizer: Optimizer) -> None:
    """Have an optimizer keep its counters on the device, where a flag can gate them without being read."""
    if "capturable" not in optimizer.defaults:
        return
    for group in optimizer.param_groups:
        group["capturable"] = True
    counters_to_device(optimizer)


def _touched_by(optimizer: Optimizer) -> list[Tensor]:
    """Return every tensor that an update may change: parameters and the optimizer's state."""
    held = optimizer_params(optimizer)
    tensors: list[Tensor] = [parameter for parameter in held if parameter.grad is not None]
    for state in [optimizer.state.get(parameter, {}) for parameter in held]:
        tensors += [value for value in state.values() if isinstance(value, Tensor)]
    return tensors
