"""A loss that is multiplied so that its gradients stay within the range of fp16."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from treadle.errors import ConfigError, did_you_mean, require_positive

FALLBACKS = ("auto", "bf16", "fp32", "raise")
HIGHEST_FIRST = 2.0**16
"""The first scale of a loss of ordinary size, which is also torch's."""
LARGEST_SCALED_LOSS = 2.0**20
"""What a loss of 16 becomes with that scale; a larger loss gets a smaller first scale, so that it becomes no more."""
GROWTH, BACKOFF = 2.0, 0.5
EXPONENT_BITS = 0x7F800000
"""Where a number of fp32 has its exponent."""


def widest_float(device: torch.device) -> torch.dtype:
    """Return the widest floating-point type of a device: MPS has none of 64 bits."""
    return torch.float32 if device.type == "mps" else torch.float64


@dataclass(frozen=True, kw_only=True)
class LossScaling:
    """How the loss is scaled in fp16, and what happens when no scale helps.

    An update whose gradient overflowed is left out, and halves the scale. The scale doubles after
    `growth_interval` updates without an overflow.

    Args:
        initial: The first scale. None chooses it, on the device, from the first loss: 65536 for losses up to 16,
            and for larger ones so that the scaled loss is about 2**20.
        growth_interval: Updates without an overflow after which the scale doubles.
        minimum: The smallest scale.
        patience: How many updates in a row may be left out at the smallest scale before fp16 is given up.
        fallback: What happens then, and when the loss itself is not finite: the run continues in "bf16" or "fp32";
            "auto" takes what `precision="auto"` would; "raise" ends the run.
    """

    initial: float | None = None
    growth_interval: int = 2000
    minimum: float = 2.0**-24
    patience: int = 8
    fallback: str = "auto"

    def __post_init__(self) -> None:
        if self.fallback not in FALLBACKS:
            near = did_you_mean(str(self.fallback), FALLBACKS) or f"; use one of {FALLBACKS}"
            raise ConfigError(f"LossScaling: fallback={self.fallback!r} is unknown{near}")
        for name in ("growth_interval", "patience"):
            require_positive(f"LossScaling: {name}", getattr(self, name))
        require_positive("LossScaling: minimum", self.minimum, whole=False)
        if self.initial is not None:
            require_positive("LossScaling: initial", self.initial, whole=False)
            if self.initial < self.minimum:
                raise ConfigError(f"LossScaling: initial={self.initial} is below minimum={self.minimum}")


class LossScaler:
    """Multiplies losses and divides gradients; everything it knows is on the device and changed in place.

    Nothing here reads the device but `get_scale` and `is_exhausted`, so a step with it can be recorded.

    Args:
        device: Where losses and gradients are.
        policy: The rules.
        agree: Called with the size of the first loss, on the device, to make it the largest of all processes.

    Attributes:
        overflow: 1 if a gradient of this update is not finite, else 0, on the device.
        settled: Whether the first scale is chosen; only then can a step be recorded.
    """

    def __init__(
        self, device: torch.device, policy: LossScaling | None = None, agree: Callable[[Tensor], Any] | None = None
    ) -> None:
        self.policy = LossScaling() if policy is None else policy
        self._agree = agree
        first = HIGHEST_FIRST if self.policy.initial is None else self.policy.initial
        self._scale = torch.full((), first, dtype=torch.float32, device=device)
        self._growth_tracker = torch.zeros((), dtype=torch.int32, device=device)
        self._in_a_row, self._below = torch.zeros((), device=device), torch.zeros((), device=device)
        self.overflow = torch.zeros((), device=device)
        self.settled = self.policy.initial is not None

    def scale(self, loss: Tensor) -> Tensor:
        """Return `loss` multiplied by the scale, in at least single precision."""
        loss = loss.to(torch.promote_types(loss.dtype, torch.float32))
        if not self.settled:
            self._settle(loss)
        return loss * self._scale

    @torch.no_grad()
    def _settle(self, loss: Tensor) -> None:
        """Choose the first scale for a run whose first loss this is."""
        size = loss.detach().abs().squeeze().to(torch.float32)
        if self._agree is not None:
            self._agree(size)
        # The exponent alone is the largest power of two that keeps the scaled loss in bounds: no product loses a bit.
        fitting = (LARGEST_SCALED_LOSS / size).view(torch.int32).bitwise_and(EXPONENT_BITS).view(torch.float32)
        fitting = fitting.clamp(self.policy.minimum, max(HIGHEST_FIRST, self.policy.minimum))
        # Neither a loss that is not finite nor one of zero says anything about the right scale.
        self._scale.copy_(torch.where(torch.isfinite(size) & (size > 0), fitting, self._scale))
        self.settled = True

    def take_scale(self, receive: Callable[[Tensor], Any]) -> None:
        """Take the first scale from where it was chosen: `receive` puts its numbers into a tensor."""
        receive(self._scale)
        self.settled = True

    @torch.no_grad()
    def unscale(self, parameters: Iterable[Tensor]) -> None:
        """Divide the gradients of `parameters` by the scale, and note in `overflow` whether all are finite."""
        self.overflow.zero_()
        # In double precision the reciprocal is exact for any scale, and not only for powers of two.
        inverse = self._scale.to(widest_float(self._scale.device)).reciprocal().float()
        for (device, _), gradients in _gradients_by_place(parameters).items():
            here = device == self.overflow.device
            flag = self.overflow if here else torch.zeros((), device=device)
            factor = inverse if here else inverse.to(device, non_blocking=True)
            torch._amp_foreach_non_finite_check_and_unscale_(gradients, flag, factor)
            if not here:
                torch.maximum(self.overflow, flag.to(self.overflow.device, non_blocking=True), out=self.overflow)

    @torch.no_grad()
    def update(self) -> None:
        """Change the scale by what the gradients of this update were."""
        policy = self.policy
        torch._amp_update_scale_(
            self._scale, self._growth_tracker, self.overflow, GROWTH, BACKOFF, policy.growth_interval
        )
        # Only an overflow at the smallest scale leads below it, and adds to the row; an update that was made ends it.
        torch.lt(self._scale, policy.minimum, out=self._below)
        torch.addcmul(self._below, self.overflow, self._in_a_row, out=self._in_a_row)
        self._scale.clamp_(min=policy.minimum)

    def get_scale(self) -> float:
        """Return the scale; this reads the device."""
        return float(self._scale)

    @property
    def scale_now(self) -> Tensor:
        """A copy of the scale, on the device."""
        return self._scale.clone()

    def is_exhausted(self) -> bool:
        """Whether `patience` updates in a row overflowed at the smallest scale; this reads the device."""
        return bool(self._in_a_row >= self.policy.patience)

    def tensors(self) -> list[Tensor]:
        """Return the tensors that every update changes in place."""
        return [self._scale, self._growth_tracker, self._in_a_row, self.overflow]

    def state_dict(self) -> dict[str, Any]:
        """Return the scale and what it will become next; the tensors are the live ones."""
        return {
            "scale": self._scale,
            "growth_tracker": self._growth_tracker,
            "in_a_row": self._in_a_row,
            "settled": self.settled,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the scale back, in place."""
        self._scale.copy_(state["scale"])
        self._growth_tracker.copy_(state["growth_tracker"])
        self._in_a_row.copy_(state["in_a_row"])
        self.settled = bool(state["settled"])


def _gradients_by_place(parameters: Iterable[Tensor]) -> dict[tuple[torch.device, torch.dtype], list[Tensor]]:
    found: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            gradient = parameter.grad
            values = gradient._values() if gradient.is_sparse else gradient
            found.setdefault((values.device, values.dtype), []).append(values)
    return found
