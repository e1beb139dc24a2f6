"""One choice of number format behind the verbs of a step."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from treadle.data.batch import map_leaves
from treadle.errors import ConfigError, LossError
from treadle.precision.loss_scaling import LossScaler, LossScaling
from treadle.precision.sparse import Region, SparseProducts, hook_sparse_products, widened

PrecisionName = Literal["fp32", "bf16", "fp16", "auto"]
KINDS: Mapping[str, torch.dtype | None] = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
AMPERE = (8, 0)
"""The first generation of CUDA devices with units for bf16; older ones only imitate it."""
NO_CONTEXT: AbstractContextManager[Any] = nullcontext()


def best_kind(device: torch.device) -> str:
    """Return what "auto" stands for: bf16 on a CUDA device that has units for it, fp32 elsewhere."""
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= AMPERE:
        return "bf16"
    return "fp32"


class Precision:
    """One choice of number format behind the same verbs: convert, autocast, scale, unscale, stepped.

    A format of your own is a subclass that adds itself to `kinds`; what makes one is given to a trainer as
    `precision=`, and called with the device.

    Args:
        kind: "fp32", "bf16", "fp16" or "auto".
        device: Where the model runs.
        loss_scaling: How the loss is scaled in fp16.
        agree: Makes a tensor on the device the largest of all processes, in place; None if there is one process.

    Attributes:
        asked: The choice as it was given.
        initial: The format that a run begins in.
        kind: The format now: another one than `initial` if fp16 would not do.
        plain: Whether a forward pass needs no context at all.
        scaler: Scales the loss where gradients would underflow; None otherwise.
        fallback: When and why the format was changed; None if it was not.
        products: Keeps autocast away from products with sparse tensors.
        passes: What looks at the backward passes of an epoch that is trained in fp16; a `ScaledPasses`.
        agree_on_scale: Makes the size of the first loss, on the device, the largest of all processes that have one.
        agree_on_overflow: Makes the flag of an overflow the largest of all processes, where each has other gradients.
    """

    kinds: ClassVar[Mapping[str, torch.dtype | None]] = KINDS
    """The formats by name, each with the type that autocast goes to; None for no autocast."""

    def __init__(
        self,
        kind: str,
        device: torch.device,
        loss_scaling: LossScaling | None = None,
        agree: Callable[[Tensor], Any] | None = None,
    ) -> None:
        choices = ("auto", *self.kinds)
        if kind not in choices:
            raise ConfigError(f"precision={kind!r} is unknown; use one of {choices}")
        if loss_scaling is not None and not isinstance(loss_scaling, LossScaling):
            raise ConfigError(f"loss_scaling={loss_scaling!r}; pass a LossScaling, such as LossScaling(initial=1024.0)")
        self.asked = kind
        self.initial = best_kind(device) if kind == "auto" else kind
        if loss_scaling is not None and self.initial != "fp16":
            raise ConfigError(f"loss_scaling is for precision='fp16', not for {kind!r}; leave it out")
        self.loss_scaling = LossScaling() if loss_scaling is None else loss_scaling
        self.products = SparseProducts(device.type)
        self._device = device
        self.agree_on_scale = agree
        self._scaled = self._unscaled = False
        self.passes: Any = None
        self.agree_on_overflow: Callable[[Tensor], Any] | None = None
        self.begin_run()

    def begin_run(self) -> None:
        """Get ready for a run: in the format asked for, with a scale that is still to be chosen."""
        self.scaler: LossScaler | None = None
        self.fallback: dict[str, Any] | None = None
        self._become(self.initial)

    def _become(self, kind: str) -> None:
        self.kind, self.plain, self._dtype = kind, kind == "fp32", self.kinds[kind]
        if kind != "fp16":
            self.scaler = None
        elif self.scaler is None:
            self.scaler = LossScaler(self._device, self.loss_scaling, self._agree)
        self._scaled = self._unscaled = False

    def _agree(self, size: Tensor) -> None:
        if self.agree_on_scale is not None:
            self.agree_on_scale(size)

    def convert(self, model: nn.Module) -> None:
        """Make of the modules of a model what the format needs, in place, before its optimizers are looked at.

        It is called at the start of each run and evaluation: what is converted already is left alone.
        """

    def check(self, model: nn.Module) -> None:
        """Refuse weights that fp16 cannot be trained with.

        Raises:
            ConfigError: Some are in half precision themselves.
        """
        halved = [name for name, weight in model.named_parameters() if weight.dtype == torch.float16]
        if self.initial == "fp16" and halved:
            raise ConfigError(
                f"precision='fp16' keeps weights in fp32, but {halved[0]} and {len(halved) - 1} more of "
                f"{type(model).__name__} are float16; call model.float() before building the optimizer"
            )

    # Forward ------------------------------------------------------------------------------------------------

    def autocast(self, kind: str = "") -> AbstractContextManager[Any]:
        """Return the context for a forward pass; entering the one for fp32 costs next to nothing.

        Args:
            kind: What sort of pass it is; the first of a sort in an epoch is looked through for sparse tensors.
        """
        if self._dtype is None:
            return NO_CONTEXT
        # Installed when autocast is first asked for, so that a run in fp32 leaves torch's dispatcher alone.
        hook_sparse_products(self._device.type)
        return Region(self._device.type, self._dtype, self.products, kind)

    def expect_sparse(self) -> None:
        """Keep autocast away from sparse products that the model begins with in the middle of an epoch."""
        self.products.expected = True

    def for_loss(self, loss_func: Any) -> Any:
        """Return `loss_func` as it is called with the outputs of a forward pass: with those in single precision.

        A sum over many items leaves the range of fp16, and the digits of bf16, long before it leaves that of fp32.
        """
        if self.plain or loss_func is None:
            return loss_func
        return lambda outputs, *targets: loss_func(map_leaves(widened, outputs), *targets)

    # Update -------------------------------------------------------------------------------------------------

    def scale(self, loss: Tensor) -> Tensor:
        """Return `loss` as the backward pass begins with it; the gradients that it adds are then of the scaled loss."""
        if self.scaler is None:
            return loss
        scaled = self.scaler.scale(loss)
        if self.passes is not None:
            self.passes.scaled(scaled)
        # Also after an update that failed between `unscale` and `stepped`, and is made again.
        self._scaled, self._unscaled = True, False
        return scaled

    def scaled_elsewhere(self, receive: Callable[[Tensor], Any] | None) -> None:
        """Take note that the gradients here are of a loss that another process has scaled.

        Args:
            receive: Puts the numbers of that process into a tensor; given where the first scale was chosen just now.
        """
        if self.scaler is None:
            return
        if receive is not None:
            self.scaler.take_scale(receive)
        self._scaled, self._unscaled = True, False

    def like_gradients(self, factor: Tensor) -> Tensor:
        """Return a factor at the size that the gradients of this update have: multiplied as the loss was."""
        return factor if self.scaler is None or not self.scaled else factor * self.scaler.scale_now

    def true_size(self, factor: Tensor) -> Tensor:
        """Return at its true size a factor that was collected like a gradient."""
        return factor if self.scaler is None or not self.scaled else factor / self.scaler.scale_now

    @property
    def scaled(self) -> bool:
        """Whether gradients of a scaled loss are there that nobody has brought to their true size."""
        return self.scaler is not None and self._scaled and not self._unscaled

    def unscale(self, optimizer: Optimizer) -> None:
        """Bring the gradients to their true size, once per update, so that they can be clipped.

        Raises:
            LossError: They have it already: the loss that they are of was not scaled.
        """
        if self.scaler is None or self._unscaled:
            return
        held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if not self._scaled and any(parameter.grad is not None for parameter in held):
            raise LossError(
                "precision='fp16' scales the loss, and the gradients of this update are of a loss that was not scaled: "
                "brought to their true size they would vanish. Where your own backward_step, update or loop calls "
                "loss.backward(), call super().backward_step(loss), self.backward_step(loss) or "
                "self.precision.scale(loss).backward()"
            )
        self.scaler.unscale(held)
        if self.agree_on_overflow is not None:
            # The scale is changed by this flag: ranks that saw different ones would scale differently from here on.
            self.agree_on_overflow(self.scaler.overflow)
        self._unscaled = True

    @property
    def overflow(self) -> Tensor | None:
        """1 if a gradient of this update is not finite, else 0, on the device; None if nobody has looked."""
        return None if self.scaler is None else self.scaler.overflow

    def stepped(self) -> None:
        """Get ready for the next update, after this one was made or left out."""
        if self.scaler is not None:
            self.scaler.update()
        self._scaled = self._unscaled = False

    # Falling back -------------------------------------------------------------------------------------------

    def fall_back(self, step: int, reason: str) -> str:
        """Go on in a format with the range of fp32; return what to tell the user.

        Args:
            step: The last step in fp16.
            reason: Why fp16 will not do.
        """
        wanted = self.loss_scaling.fallback
        self._become(best_kind(self._device) if wanted == "auto" else wanted)
        self.fallback = {"step": step, "from": "fp16", "to": self.kind, "reason": reason}
        return (
            f"precision='fp16' will not do: {reason}. No weight was changed by it. The run continues in {self.kind} "
            f"from step {step + 1}; set precision={self.kind!r} to begin so"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the format and the state of the loss scaler, if there is one."""
        scaler = None if self.scaler is None else self.scaler.state_dict()
        return {"kind": self.kind, "scaler": scaler, "fallback": self.fallback}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the state of the loss scaler; a run that had none starts with a fresh one."""
        fallback = state.get("fallback") if self.initial == "fp16" else None
        self.fallback = fallback
        self._become(self.initial if fallback is None else str(fallback["to"]))
        if self.scaler is not None and state["scaler"] is not None:
            self.scaler.load_state_dict(state["scaler"])


def precision_for(
    asked: str | Callable[[torch.device], Precision],
    device: torch.device,
    loss_scaling: LossScaling | None,
    agree: Callable[[Tensor], Any] | None,
) -> Precision:
    """Return the precision for what the argument `precision` of a trainer says.

    Args:
        asked: The name of a format, or what makes a precision of your own for a device.
        device: Where the model runs.
        loss_scaling: How the loss is scaled in fp16.
        agree: Makes a tensor on the device the largest of all processes, in place; None if there is one process.

    Raises:
        ConfigError: There is no such format, or what should make one makes something else.
    """
    if not callable(asked):
        return Precision(asked, device, loss_scaling, agree)
    if loss_scaling is not None:
        raise ConfigError("loss_scaling is for precision='fp16', not for a precision of your own; leave it out")
    made = asked(device)
    if not isinstance(made, Precision):
        raise ConfigError(f"precision={asked!r} made {made!r}; return a treadle.precision.Precision")
    return made
