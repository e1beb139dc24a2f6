"""Number formats: what runs in half precision, and how the loss is scaled for it."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from treadle.errors import ConfigError

KINDS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """One choice of number format behind the same verbs: autocast, backward, unscale, step.

    Args:
        kind: "fp32", "bf16" or "fp16".
        device: Where the model runs.

    Attributes:
        plain: Whether a forward pass needs no context at all.
        scaler: Scales the loss where gradients would underflow; None otherwise.
    """

    def __init__(self, kind: str, device: torch.device) -> None:
        if kind not in KINDS:
            raise ConfigError(f"precision={kind!r} is unknown; use one of {sorted(KINDS)}")
        self.kind = kind
        self.plain = kind == "fp32"
        self._device = device.type
        self._dtype = KINDS[kind]
        self._plain: AbstractContextManager[Any] = nullcontext()
        self.scaler = torch.amp.GradScaler(device.type) if kind == "fp16" else None
        self._unscaled = False

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context for a forward pass; entering the one for fp32 costs next to nothing."""
        if self._dtype is None:
            return self._plain
        return torch.autocast(self._device, dtype=self._dtype)

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Bring the gradients to their true size, once per update, so that they can be clipped."""
        if self.scaler is not None and not self._unscaled:
            self.scaler.unscale_(optimizer)
            self._unscaled = True

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Update the weights, unless the scaled gradients overflowed."""
        assert self.scaler is not None, "without a scaler the optimizer steps by itself"
        self.scaler.step(optimizer)
        # Torch's schedulers warn if they move before the optimizer did, which a skipped first step looks like.
        optimizer._opt_called = True  # type: ignore[attr-defined]
        self.stepped()

    def stepped(self) -> None:
        """Get ready for the next update, after this one was made or left out."""
        if self.scaler is not None:
            self.scaler.update()
        self._unscaled = False

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the loss scaler, if there is one."""
        return {"kind": self.kind, "scaler": None if self.scaler is None else self.scaler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the state of the loss scaler; a run that had none starts with a fresh one."""
        if self.scaler is not None and state["scaler"] is not None:
            self.scaler.load_state_dict(state["scaler"])
