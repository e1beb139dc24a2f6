"""What a run resolved its settings to."""

from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from treadle.errors import ConfigError
from treadle.loop.interfaces import RunLike, RunningTrainer
from treadle.runs.place import run_address
from treadle.spec import RunSpec

DECIDED = ("is_local_process_zero", "is_world_process_zero", "is_distributed", "mixed_precision", "num_processes")
"""What is settled when the trainer is built, and cannot be changed by a config."""
NO_MIXING = ("no", "fp32")
"""What training in single precision is called by Accelerate, and here."""


@dataclass(frozen=True)
class TrainerRunConfig:
    """The settings of a run, resolved: readable by callbacks, shown at the start, saved with the run.

    A count that cannot be known, such as the steps of an epoch over data without a length, is None. The arguments by
    place are those of pytorch-accelerated's class of this name, in its order.
    """

    num_epochs: int | None
    train_per_device_batch_size: int | None
    train_dl_kwargs: dict[str, Any] | None
    eval_per_device_batch_size: int | None
    eval_dl_kwargs: dict[str, Any] | None
    gradient_accumulation_steps: int
    gradient_clip_value: float | None
    clip_norm: float | None = field(default=None, kw_only=True)
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
    parallel: str = field(default="", kw_only=True)
    device: str = field(default="", kw_only=True)
    seed: int | None = field(default=None, kw_only=True)
    loss_reduction: str = field(default="mean", kw_only=True)
    on_nonfinite: str = field(default="raise", kw_only=True)
    microbatch: str = field(default="fixed", kw_only=True)
    deterministic: bool = field(default=False, kw_only=True)
    matmul_precision: str | None = field(default=None, kw_only=True)
    convolution_precision: str | None = field(default=None, kw_only=True)
    loss_scaling: dict[str, Any] | None = field(default=None, kw_only=True)
    activation_checkpointing: list[str] | None = field(default=None, kw_only=True)
    offload_optimizer: bool = field(default=False, kw_only=True)
    execution: str = field(default="auto", kw_only=True)
    compile: str | None = field(default=None, kw_only=True)
    eval_every: str | None = field(default=None, kw_only=True)
    log_every: str = field(default="", kw_only=True)
    save_every: str | None = field(default=None, kw_only=True)
    run_dir: str | None = field(default=None, kw_only=True)
    lr_scaling: dict[str, Any] | None = field(default=None, kw_only=True)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as plain data; loader arguments that are objects are given by their names."""
        # Not by `asdict`: loader arguments may hold what cannot be copied, such as a generator.
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        for name in ("train_dl_kwargs", "eval_dl_kwargs"):
            if values[name] is not None:
                values[name] = {key: _plain(value) for key, value in values[name].items()}
        return values


def checked_config(config: Any, own: TrainerRunConfig) -> TrainerRunConfig:
    """Return the config that a trainer's `_create_run_config` gave, complete.

    Args:
        config: What it gave: one made of pytorch-accelerated's arguments lacks what is Treadle's own.
        own: The config that the trainer makes by itself.

    Raises:
        ConfigError: It is no config, or says what the run cannot do.
    """
    if not isinstance(config, TrainerRunConfig):
        raise ConfigError(f"_create_run_config returned {config!r}; return a TrainerRunConfig, such as super()'s")
    known: dict[str, Any] = {}
    for one in fields(config):
        value, wanted = getattr(config, one.name), getattr(own, one.name)
        if value == wanted or not (one.kw_only or one.name in DECIDED):
            continue
        # A config of pytorch-accelerated's arguments has only defaults where the field is Treadle's: that is no wish.
        unsaid = one.kw_only and value == one.default
        if not unsaid and not (one.name == "mixed_precision" and value in NO_MIXING and wanted in NO_MIXING):
            raise ConfigError(
                f"_create_run_config returned {one.name}={value!r}, but it is {wanted!r} in this run, as the arguments "
                "of the trainer or of train() say; change it there"
            )
        known[one.name] = wanted
    return replace(config, **known)


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, int, float, str)) else type(value).__name__


def settle_config(run: RunLike) -> None:
    """Have the settings of a run resolved, by the method for it, and have it follow what that returned."""
    trainer, spec = run.trainer, run.spec
    asked: dict[str, Any] = {
        "num_epochs": spec.num_epochs,
        "gradient_accumulation_steps": spec.gradient_accumulation_steps,
        "max_num_train_steps": spec.max_steps,
        "gradient_clip_value": spec.gradient_clip_value,
    }
    # Made here too, and not taken from the method: what an override has changed shows only beside it.
    own = resolved_config(trainer, **asked)
    size = spec.per_device_batch_size
    run.config = checked_config(trainer._create_run_config(per_device_batch_size=size, **asked), own)
    run.spec = _spec_by(run.config, own, spec)


def _spec_by(config: TrainerRunConfig, own: TrainerRunConfig, spec: RunSpec) -> RunSpec:
    """Return the options of a run by `config`, where it differs from the trainer's `own`."""
    names = {"num_epochs", "max_num_train_steps", "gradient_accumulation_steps", "gradient_clip_value"}
    changed = {
        "max_steps" if name == "max_num_train_steps" else name: getattr(config, name)
        for name in names
        # Compared with the trainer's own, not with what was asked: a limit that was resolved may be another.
        if getattr(config, name) != getattr(own, name)
    }
    return replace(spec, **changed) if changed else spec


def resolved_config(
    trainer: RunningTrainer,
    num_epochs: int | None,
    gradient_accumulation_steps: int,
    max_num_train_steps: int | None,
    gradient_clip_value: float | None,
) -> TrainerRunConfig:
    """Return the settings of a trainer's run, resolved.

    Args:
        trainer: Whose run it is.
        num_epochs: Its epochs; None if only its steps are limited.
        gradient_accumulation_steps: Micro-batches in one update.
        max_num_train_steps: The most updates; None if only its epochs are limited.
        gradient_clip_value: The bound of every element of the gradient.
    """
    run, accumulation = trainer.this_run, gradient_accumulation_steps
    spec, data, size = run.spec, run.data, trainer.parallel.data_size
    train_size = None if data.training is None else data.training.batch_size
    eval_size = None if data.evaluation is None else data.evaluation.batch_size
    updates, scheduled, limit = run.streams.planned_updates(num_epochs, max_num_train_steps, accumulation)
    trains = spec.is_for_training
    return TrainerRunConfig(
        num_epochs=num_epochs,
        train_per_device_batch_size=train_size,
        train_dl_kwargs=data.train_kwargs,
        eval_per_device_batch_size=eval_size,
        eval_dl_kwargs=data.eval_kwargs,
        gradient_accumulation_steps=accumulation,
        gradient_clip_value=gradient_clip_value,
        clip_norm=spec.clip_norm,
        train_total_batch_size=None if train_size is None else train_size * size * accumulation,
        eval_total_batch_size=None if eval_size is None else eval_size * size,
        num_update_steps_per_epoch=updates,
        num_local_update_steps_per_epoch=scheduled,
        max_num_train_steps=limit,
        is_local_process_zero=trainer.processes.is_local_main,
        is_world_process_zero=trainer.processes.is_main,
        is_distributed=trainer.processes.distributed,
        mixed_precision=trainer.precision.kind,
        num_processes=trainer.processes.size,
        parallel=trainer.parallel.describe(),
        device=str(trainer.device),
        seed=spec.seed,
        loss_reduction=spec.loss_reduction,
        on_nonfinite=spec.on_nonfinite,
        microbatch=spec.microbatch,
        deterministic=spec.deterministic,
        matmul_precision=spec.matmul_precision,
        convolution_precision=spec.convolution_precision,
        loss_scaling=asdict(trainer.precision.loss_scaling) if trainer.precision.initial == "fp16" else None,
        activation_checkpointing=list(trainer.activation_checkpointing.patterns) or None,
        offload_optimizer=spec.offload_optimizer,
        execution=spec.execution
        if isinstance(spec.execution, str)
        else getattr(spec.execution, "__name__", str(spec.execution)),
        compile=None if spec.compile is None else spec.compile.describe(),
        eval_every=str(spec.eval_every) if trains and data.eval_dataset is not None else None,
        log_every=str(spec.log_every) if trains else "",
        save_every=str(spec.save_every) if trains and spec.save_every is not None else None,
        run_dir=None if spec.run_dir is None else run_address(spec.run_dir),
        lr_scaling=asdict(spec.lr_scaling) if trains and spec.lr_scaling.rule != "none" else None,
    )
