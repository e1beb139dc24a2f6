"""What is known to be impossible to record, before anything is tried."""

from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.optim import SGD, Optimizer

from treadle.callback import MICRO_BATCH_EVENTS, listens
from treadle.errors import CaptureError
from treadle.execution.inputs import CONSTANTS, leaves

if TYPE_CHECKING:
    from treadle.phase import Phase
    from treadle.trainer import Trainer


def refuse_run(trainer: "Trainer") -> None:
    """Refuse a run whose settings or callbacks rule a recording out, whatever its steps are.

    Raises:
        CaptureError: They do; it says which, and what to do.
    """
    active = trainer.callback_handler.active
    listening = [one for one in active if any(listens(one, event) for event in MICRO_BATCH_EVENTS)]
    if listening:
        names = ", ".join(type(callback).__name__ for callback in listening)
        raise CaptureError(f"{names} acts on every micro-batch, which a replay does not stop at; use on_update_end")
    if trainer.processes.distributed:
        raise CaptureError("with several processes gradients are exchanged inside of the step; use one process")
    if trainer.spec.microbatch == "auto":
        raise CaptureError("microbatch='auto' changes the shape of a step; find it with execution='eager' first")
    if trainer.spec.offload_optimizer:
        raise CaptureError("offload_optimizer=True brings state from the host in every step; leave it out")


def refuse_window(phase: "Phase", window: list[Any]) -> None:
    """Refuse a window whose phase or data rules a recording out; other windows of the run may be none of that kind.

    Raises:
        CaptureError: They do; it says which, and what to do.
    """
    if not phase.draws:
        raise CaptureError("a step of your own draws its data itself; leave that to the trainer")
    for leaf in leaves(window):
        if not isinstance(leaf, (Tensor, *CONSTANTS)):
            raise CaptureError(f"a batch holds a {type(leaf).__name__}; give tensors in tuples, lists and dicts")


def refuse_optimizer(optimizer: Optimizer, *, moves: bool) -> None:
    """Refuse an optimizer that needs the host in each of its steps.

    Args:
        optimizer: An optimizer that has made its state.
        moves: Whether its learning rates move at every step.

    Raises:
        CaptureError: It does; it says for what.
    """
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            elsewhere = isinstance(value, Tensor) and value.device != parameter.device
            if elsewhere or isinstance(value, (bool, int, float)):
                raise CaptureError(
                    f"{type(optimizer).__name__} keeps {name!r} on the host, where no replay changes it; use an "
                    "optimizer that counts on the device, such as AdamW, Adam, SGD or RMSprop"
                )
    if moves and type(optimizer) is SGD and not all(group["fused"] for group in optimizer.param_groups):
        raise CaptureError("SGD reads its learning rate on the host unless fused=True; a schedule by steps moves it")
