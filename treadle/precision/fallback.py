"""What a run in fp16 does when fp16 will not do."""

from treadle.errors import NonFiniteError
from treadle.runs.interfaces import TrainerLike


def fell_back(trainer: TrainerLike, bad_loss: str | None) -> bool:
    """Leave fp16 if it will not do, on all processes together; return whether that was done now.

    Weights are as they were before the updates that failed. So a loss that is not finite in fp16 is no reason to end
    the run: it may well be finite in another format, and if it is not, the run ends then.

    Args:
        trainer: Whose run it is.
        bad_loss: What is wrong with a loss since the last log; None if nothing is.

    Raises:
        NonFiniteError: No scale of the loss helps, and the run may not go on in another format.
    """
    precision = trainer.precision
    if precision.scaler is None:
        return False
    may = precision.loss_scaling.fallback != "raise"
    overflows = _overflows(trainer)
    reason = bad_loss if may and trainer.on_nonfinite != "skip" else None
    reason = reason or overflows
    if reason is None:
        return False
    if not may:
        raise NonFiniteError(f"{reason}; use precision='bf16' or 'fp32', or LossScaling(fallback='auto')")
    step = trainer.progress.step
    trainer.print(precision.fall_back(step, reason))
    trainer.run_history.update_metric("fp16_until_step", step)
    trainer.this_run.execution.forget()
    return True


def _overflows(trainer: TrainerLike) -> str | None:
    """Return what is wrong with the gradients if no scale of the loss helps, the same on every process."""
    scaler = trainer.precision.scaler
    assert scaler is not None, "only a scaled loss has a scale"
    if not trainer.processes.reduce([float(scaler.is_exhausted())], "max")[0]:
        return None
    policy = scaler.policy
    return (
        f"the gradients of {policy.patience} updates in a row overflowed though the loss is scaled by "
        f"{policy.minimum:.3g}, the smallest scale allowed"
    )
