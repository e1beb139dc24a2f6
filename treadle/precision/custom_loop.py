"""Gradients and the scale of the loss fit together: in passes and in steps of the user's own."""

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from treadle.data.batch import map_leaves
from treadle.errors import LossError
from treadle.phase import Phase, optimizer_params
from treadle.precision.formats import Precision
from treadle.precision.sparse import is_compiled, widened

# Forward passes in a loop that a user wrote run in bf16, too, where the run does


class CustomLoopForward:
    """While entered, every call of a model runs under autocast, and its outputs are in single precision.

    It is what Accelerate does to a model that it prepares. The trainer's own loops know better, and go without.

    Args:
        precision: The precision of the run; nothing is done for fp32, nor for fp16, in which a loop that does not scale
            its loss would learn nothing.
        model: The model.
        idle: Whether the trainer's own loop is at work.
        tell: Called in fp16, once, when the model is called otherwise.
    """

    def __init__(
        self,
        precision: Precision,
        model: nn.Module,
        idle: Callable[[], bool],
        tell: Callable[[], None] | None = None,
    ) -> None:
        self._precision, self._model, self._idle, self._tell = precision, model, idle, tell
        # A stack, since a model may call itself.
        self._entered: list[AbstractContextManager[Any] | None] = []
        self._handles: list[RemovableHandle] = []

    def __enter__(self) -> Self:
        before, after = self._before, self._after
        if is_compiled(self._model):
            # Traced, what is entered anew for each call would have the model compiled anew for each.
            before, after = map(torch.compiler.disable, (before, after))
        if not self._precision.plain:
            self._handles = [
                self._model.register_forward_pre_hook(before),
                # Also where the forward pass raises: autocast would stay on for whatever comes after.
                self._model.register_forward_hook(after, always_call=True),
            ]
        return self

    def __exit__(self, *exception: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _before(self, model: nn.Module, args: Any) -> None:
        idle = self._idle()
        if not idle and self._precision.kind == "fp16" and self._tell is not None:
            tell, self._tell = self._tell, None
            tell()
        region = None if idle or self._precision.kind != "bf16" else self._precision.autocast("own")
        self._entered.append(region)
        if region is not None:
            region.__enter__()

    def _after(self, model: nn.Module, args: Any, outputs: Any) -> Any:
        region = self._entered.pop()
        if region is None:
            return outputs
        region.__exit__(None, None, None)
        return map_leaves(widened, outputs)


class ScaledSteps:
    """While entered in fp16, refuses a step of an optimizer whose gradients are still those of the scaled loss.

    Args:
        precision: What scales the loss.
        optimizers: The optimizers.
    """

    def __init__(self, precision: Precision, optimizers: Iterable[Optimizer]) -> None:
        self._precision, self._optimizers = precision, list(optimizers)
        self._handles: list[RemovableHandle] = []

    def __enter__(self) -> Self:
        if self._precision.scaler is not None:
            self._handles = [one.register_step_pre_hook(self) for one in self._optimizers]
        return self

    def __exit__(self, *exception: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def __call__(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Look at the gradients of `optimizer`, which is about to step.

        Raises:
            LossError: They are multiplied by the scale.
        """
        if self._precision.scaled:
            raise LossError(
                f"{type(optimizer).__name__} steps with the gradients of a loss that precision='fp16' has scaled; "
                "call super().optimizer_step() in an optimizer_step of your own and self.optimizer_step() elsewhere, "
                "which bring them to their true size and leave out those that overflowed"
            )

    def passes(self, optimizer: Optimizer) -> bool:
        """Whether `optimizer` may step as it is."""
        return not self._precision.scaled


class ScaledPasses:
    """While entered in fp16, refuses a backward pass that adds to gradients of an update a loss that was not scaled.

    Torch numbers all passes, so those of an update that do not begin at a scaled loss are counted without a look at
    any. Gradients are looked at in the first update of an epoch, and from an update on that has another number of such
    passes than those that were looked at, until one like it comes. What is forgotten again before the loss of the
    update is scaled, such as the gradient of a step to the side, does no harm. Nothing is read.

    Args:
        precision: What scales the loss.
        model: Whose weights are named.
        optimizers: Whose gradients are looked at; a step of one ends an update.
        phase: Returns what is trained now; None for all.
        recording: Whether a step is being recorded, which is left alone.
    """

    def __init__(
        self,
        precision: Precision,
        model: nn.Module,
        optimizers: Iterable[Optimizer],
        *,
        phase: Callable[[], Phase | None],
        recording: Callable[[], bool],
    ) -> None:
        self._precision, self._model, self._optimizers = precision, model, list(optimizers)
        self._phase, self._recording = phase, recording
        self._parameters = [one for optimizer in self._optimizers for one in optimizer_params(optimizer)]
        self._steps: list[RemovableHandle] = []
        self._handles: list[RemovableHandle] = []
        self._runs = self._strict = False
        self._noted: list[tuple[Tensor, weakref.ref[Tensor], int]] = []
        # The numbers of the scaled passes of this update, and the last one of the update before it.
        self._passes: list[int] = []
        self._last: int | None = None
        self._sought: tuple[str | None, int] | None = None
        self._cleared: set[tuple[str | None, int]] = set()

    def __enter__(self) -> Self:
        if self._precision.scaler is not None:
            self._precision.passes = self
            self._steps = [one.register_step_pre_hook(self._end_update) for one in self._optimizers]
            self._watch()
        return self

    def __exit__(self, *exception: object) -> None:
        self._precision.passes = None
        self._unwatch()
        for handle in self._steps:
            handle.remove()

    @contextmanager
    def in_backward_step(self) -> Iterator[None]:
        """Within it, in a `backward_step` of the user's, a pass that was not scaled is refused in the user's line."""
        self._strict = True
        try:
            yield
        finally:
            self._strict = False

    def scaled(self, loss: Tensor) -> None:
        """Take note that a pass is about to begin at `loss`, which was scaled.

        Raises:
            LossError: Gradients of another loss are there, to which it would be added.
        """
        self._runs = False
        if self._recording():
            self._last = None
            return
        noted, self._noted = self._noted, []
        left = [one for one, gradient, version in noted if _is_as_it_was(one.grad, gradient(), version)]
        if left and (trained := self._trained(left)):
            raise self._mixed(trained[0])
        if loss.requires_grad:
            loss.register_hook(self._begin)  # type: ignore[no-untyped-call]

    def _begin(self, gradient: Tensor) -> None:
        self._passes.append(torch._C._current_graph_task_id())
        if self._handles:
            # What is computed again for it, as by checkpointing, are passes within this one.
            self._runs = True
            Variable._execution_engine.queue_callback(self._end)

    def _end(self) -> None:
        self._runs = False

    def _look(self, parameter: Tensor) -> None:
        """Look at a gradient that was just added to."""
        if self._runs or self._recording() or self._precision.scaler is None:
            return
        if self._strict and self._trained([parameter]):
            raise LossError(
                "backward_step adds the gradient of a loss that precision='fp16' has not scaled, which would vanish "
                "when gradients are brought to their true size; call super().backward_step(loss) or "
                "self.precision.scale(loss).backward()"
            )
        if self._precision.scaled and self._trained([parameter]):
            raise self._mixed(parameter)
        assert parameter.grad is not None
        # Weak, so that a gradient which is dropped is freed; the version tells whether it was changed or zeroed since.
        self._noted.append((parameter, weakref.ref(parameter.grad), parameter.grad._version))

    def _trained(self, parameters: list[Tensor]) -> list[Tensor]:
        phase = self._phase()
        own = {id(one) for one in (self._parameters if phase is None else phase.trained)}
        return [one for one in parameters if id(one) in own]

    def _mixed(self, parameter: Tensor) -> LossError:
        names = {id(one): name for name, one in self._model.named_parameters()}
        place = names.get(id(parameter), f"a weight of shape {tuple(parameter.shape)}")
        return LossError(
            f"the gradient of {place} has a part from a loss that precision='fp16' has not scaled, beside that of the "
            "scaled loss: it would vanish when gradients are brought to their true size. Add that loss to the one that "
            "the loss method returns; or, where you call its backward(), call self.precision.scale(loss).backward()"
        )

    # When to look -----------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        self._handles = [
            one.register_post_accumulate_grad_hook(self._look)  # type: ignore[no-untyped-call]
            for one in self._parameters
            if one.requires_grad and one.is_leaf
        ]

    def _unwatch(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles, self._noted = [], []

    def _end_update(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Count the passes of the update that ends, and look at the next one if there are others than so far."""
        passes, self._passes = self._passes, []
        if self._recording() or not passes:
            if self._noted:
                # A loop of the user's that does not scale.
                self._unwatch()
            return
        phase, before = self._phase(), passes[0] - 1 if self._last is None else self._last
        self._last = passes[-1]
        found = (None if phase is None else phase.name, self._last - before - len(passes))
        if self._handles:
            self._cleared.add(found)
            if self._sought in (None, found):
                self._unwatch()
        elif found not in self._cleared:
            self._sought = found
            self._watch()


def _is_as_it_was(gradient: Tensor | None, before: Tensor | None, version: int) -> bool:
    return gradient is not None and gradient is before and gradient._version == version
