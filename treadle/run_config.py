"""What a run resolved its settings to."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class TrainerRunConfig:
    """The settings of a run, resolved: readable by callbacks, shown at the start, saved with the run.

    A count that cannot be known, such as the steps of an epoch over data without a length, is None.
    """

    num_epochs: int | None
    train_per_device_batch_size: int | None
    train_dl_kwargs: dict[str, Any] | None
    eval_per_device_batch_size: int | None
    eval_dl_kwargs: dict[str, Any] | None
    gradient_accumulation_steps: int
    gradient_clip_value: float | None
    clip_norm: float | None
    train_total_batch_size: int | None
    eval_total_batch_size: int | None
    num_update_steps_per_epoch: int | None
    num_local_update_steps_per_epoch: int | None
    max_num_train_steps: int | None
    is_local_process_zero: bool
    is_world_process_zero: bool
    is_distributed: bool
    mixed_precision: str
    num_processes: int
    parallel: str
    device: str
    seed: int | None
    loss_reduction: str
    on_nonfinite: str
    microbatch: str
    deterministic: bool
    matmul_precision: str | None
    convolution_precision: str | None
    loss_scaling: dict[str, Any] | None
    activation_checkpointing: list[str] | None
    offload_optimizer: bool
    execution: str
    compile: str | None
    eval_every: str | None
    log_every: str
    save_every: str | None
    run_dir: str | None
    lr_scaling: dict[str, Any] | None

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as plain data; loader arguments that are objects are given by their names."""
        values = asdict(self)
        for name in ("train_dl_kwargs", "eval_dl_kwargs"):
            if values[name] is not None:
                values[name] = {key: _plain(value) for key, value in values[name].items()}
        return values


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, int, float, str)) else type(value).__name__
