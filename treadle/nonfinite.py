"""What to do about steps whose numbers went wrong."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from treadle.errors import NonFiniteError
from treadle.events import NonFinite
from treadle.gradients import norm_of

REMEDY = "lower the learning rate or set clip_norm"


def nonfinite_error(bad: NonFinite, accumulation: int) -> NonFiniteError:
    """Return the error that names the first bad step, and the loss before it where that is known.

    >>> nonfinite_error(NonFinite(1200, float("nan"), 0.4823), 1)
    NonFiniteError('loss is nan at step 1200 (0.482 at step 1199); lower the learning rate or set clip_norm')
    """
    before = ""
    if bad.before is not None:
        # With accumulation, the loss before is that of a micro-batch of the same step, or of the last.
        place = f"at step {bad.step - 1}" if accumulation == 1 else "one micro-batch before"
        before = f" ({bad.before:.3g} {place})"
    return NonFiniteError(f"loss is {bad.value} at step {bad.step}{before}; {REMEDY}")


class RollBack(Exception):  # noqa: N818 - it is no error: it says where to go on
    """Raised inside the loop when the run returns to an earlier checkpoint because of a bad step."""

    def __init__(self, step: int, value: float) -> None:
        super().__init__(f"loss is {value} at step {step}")
        self.step = step


class PoisonedSteps:
    """The steps whose data made a loss nan or infinite, and is skipped when the run comes by again."""

    def __init__(self) -> None:
        self.steps: set[int] = set()

    def state_dict(self) -> dict[str, Any]:
        """Return the steps."""
        return {"steps": sorted(self.steps)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the steps back."""
        self.steps = set(state["steps"])


class UpdateGate:
    """Leaves an update out, as if its data had never come, when its loss or gradient is not finite.

    Whether they are is a flag on the device that nobody reads: weights, optimizer state and buffers are chosen
    between before and after by that flag. Gradients set to zero would still decay moments and weights. Only the
    first update of an optimizer whose state does not begin at zero is looked at by the host.

    Attributes:
        applied: 1 if the last update was applied and 0 if it was left out, on the device.
        skipped: How many were left out so far, on the device.
    """

    def __init__(self, model: nn.Module, optimizers: Iterable[Optimizer], device: torch.device) -> None:
        self._model = model
        self._buffers: list[tuple[nn.Module, str, Tensor]] = []
        self._loss = torch.zeros((), device=device)
        self.applied = torch.ones((), device=device)
        self.skipped = torch.zeros((), device=device)
        if device.type == "cuda":
            for optimizer in optimizers:
                _count_on_device(optimizer, device)

    def begin(self) -> None:
        """Start a window: take a copy of the model's buffers, which a forward pass may change or put anew."""
        self._loss = torch.zeros_like(self._loss)
        self._buffers = [
            (module, name, buffer.detach().clone())
            for module in self._model.modules()
            for name, buffer in module.named_buffers(recurse=False)
        ]

    def note(self, loss: Tensor) -> None:
        """Take the loss of a micro-batch into account."""
        self._loss = self._loss + loss.detach()

    @torch.no_grad()
    def step(self, optimizer: Optimizer, gradients: list[Tensor]) -> None:
        """Let `optimizer` make its update, and undo it on the device if something is not finite."""
        finite = torch.isfinite(norm_of(gradients)) & torch.isfinite(self._loss)
        if not optimizer.state and not _begins_at_zero(optimizer):
            # Its state would be made from these gradients, and there is none before to go back to.
            if bool(finite):
                optimizer.step()
        else:
            before = {id(tensor): tensor.detach().clone() for tensor in _touched_by(optimizer)}
            optimizer.step()
            for tensor in _touched_by(optimizer):
                earlier = before.get(id(tensor))
                # A state that the optimizer has just made was nothing before, which is zero.
                tensor.copy_(torch.where(finite, tensor, torch.zeros_like(tensor) if earlier is None else earlier))
        self._gate_buffers(finite)
        self.applied.copy_(finite)
        self.skipped.add_(1 - self.applied)

    def _gate_buffers(self, finite: Tensor) -> None:
        for module, name, before in self._buffers:
            buffer = module._buffers[name]
            if buffer is not None and buffer.shape == before.shape:
                buffer.copy_(torch.where(finite, buffer, before))

    def state_dict(self) -> dict[str, Any]:
        """Return how many updates were left out."""
        return {"skipped": self.skipped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the number of updates left out."""
        self.skipped.copy_(state["skipped"])


def _begins_at_zero(optimizer: Optimizer) -> bool:
    """Whether the state that an optimizer makes at its first step is the one of zeros, had it been there before."""
    kinds = (torch.optim.Adam, torch.optim.AdamW, torch.optim.Adamax, torch.optim.Adadelta, torch.optim.RMSprop)
    dampened = any(group.get("dampening") for group in optimizer.param_groups)
    return type(optimizer) in kinds or (type(optimizer) is torch.optim.SGD and not dampened)


def _count_on_device(optimizer: Optimizer, device: torch.device) -> None:
    """Have an optimizer keep its step counter on the device, where a flag can gate it without being read."""
    if "capturable" not in optimizer.defaults:
        return
    for group in optimizer.param_groups:
        group["capturable"] = True
        for parameter in group["params"]:
            step = optimizer.state.get(parameter, {}).get("step")
            if isinstance(step, Tensor):
                optimizer.state[parameter]["step"] = step.to(device)


def _touched_by(optimizer: Optimizer) -> list[Tensor]:
    """Return every tensor that an update may change: parameters and the optimizer's state."""
    tensors: list[Tensor] = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for state in optimizer.state.values():
        tensors += [value for value in state.values() if isinstance(value, Tensor)]
    return tensors
