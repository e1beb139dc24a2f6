"""How a recommender's settings call the options of the core, and what their values come to."""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from treadle.checkpoint import Policy
from treadle.errors import ConfigError, did_you_mean
from treadle.execution import Compile
from treadle.memory.activation_checkpointing import AUTO
from treadle.optim.lr_scaling import LRScaling
from treadle.parallel import Plan
from treadle.precision import LossScaling, SinglePrecision
from treadle.recsys.config.optimization import check_schedule, clip_limit
from treadle.spec import Names, Refused, RunSpec, spec_options

NAMES: Names = {
    "seed": "seed",
    "run_dir": "run_dir",
    "precision": "precision",
    "loss_scaling": "loss_scaling",
    "matmul_precision": "matmul_precision",
    "convolution_precision": "convolution_precision",
    "loss_reduction": "loss_reduction",
    "device": "gpu_id",
    "checkpoints": "checkpoints",
    "on_nonfinite": "on_nonfinite",
    "max_rollbacks": "max_rollbacks",
    "deterministic": "deterministic",
    "microbatch": "microbatch",
    "execution": "execution",
    "compile": "compile",
    "activation_checkpointing": "activation_checkpointing",
    "offload_optimizer": "offload_optimizer",
    "timeout": "timeout",
    "parallel": "parallel",
    "num_epochs": "epochs",
    "max_steps": "max_steps",
    "per_device_batch_size": "train_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clip_value": "gradient_clip_value",
    "clip_norm": "clip_grad_norm",
    "scheduler_interval": "scheduler_interval",
    "scheduler_metric": "scheduler_metric",
    "eval_every": "eval_step",
    "log_every": "log_every",
    "save_every": "save_every",
    "resume_from": "Trainer.resume_checkpoint(file)",
    "resume": "run_dir",
    "extend": "extend",
    "lr_scaling": "lr_scaling",
}
"""The setting for each option; where it is no setting, what there is in its place."""
PARTS: Names = {
    "model": "model",
    "loss_func": Refused("a recommender has its loss in calculate_loss"),
    "optimizer": "learner",
    "callbacks": "callbacks",
    "run_history": Refused("the core's own is kept, which saves the run's metrics with it"),
    "metrics": "metrics",
    "train_metrics": Refused("metrics are of rankings, which training makes none of"),
    "train_dataset": "Trainer.fit(train_data)",
    "eval_dataset": "Trainer.fit(valid_data)",
    "max_num_train_steps": "max_steps",
    "create_scheduler_fn": "scheduler",
    "train_dataloader_kwargs": Refused("batches are made where the model is, by the loaders of data_preparation"),
    "eval_dataloader_kwargs": Refused("batches are made where the model is, by the loaders of data_preparation"),
    "reset_run_history": Refused("each fit has a history of its own"),
    "collate_fn": Refused("an interaction is cut out of the data as a whole: there are no samples to join"),
}
"""The same for the arguments of the core's trainer that are no options."""
SETTINGS = frozenset(
    name for name in (*NAMES.values(), *PARTS.values()) if isinstance(name, str) and name.isidentifier()
)
"""Everything among these that is a setting."""
SCHEDULE = "scheduler"
BY_THE_DOOR: tuple[str, ...] = (
    *("seed", "run_dir", "precision", "device", "execution", "num_epochs", "per_device_batch_size"),
    *("clip_norm", "eval_every", "log_every", "save_every", "resume_from", "resume", "loss_reduction"),
)
"""Options that the trainer of this door decides with more than their settings."""
SCHEDULED = ("create_scheduler_fn", "scheduler_interval", "scheduler_metric", "extend")
OF_A_WHOLE_RUN = (*SCHEDULED, "max_steps", "lr_scaling")
"""Options of which a single epoch is only a part."""
OF_UPDATES: tuple[str, ...] = (
    *(*OF_A_WHOLE_RUN, "gradient_clip_value", "loss_scaling", "loss_reduction", "max_rollbacks", "microbatch"),
    *("activation_checkpointing", "offload_optimizer"),
)
"""Options that are about updates by gradients."""
OF_PRODUCTS = ("matmul_precision", "convolution_precision")
NO_BATCHES = {
    "gradient_accumulation_steps": "does not make its updates of batches that the trainer draws; leave it out, and "
    "accumulate in your own _train_epoch if you have one"
}
KEEP_LAST = 2
"""How many checkpoints are kept where nobody says it: the best model has a file of its own."""


def setting_name(option: str) -> str:
    """Return the setting for an option, or for another argument of the core.

    >>> setting_name("clip_norm"), setting_name("create_scheduler_fn")
    ('clip_grad_norm', 'scheduler')
    """
    name = {**PARTS, **NAMES}[option]
    assert isinstance(name, str)
    return name


def option_default(option: str) -> Any:
    """Return what the core does where nothing is asked for."""
    return next((one.default for one in fields(RunSpec) if one.name == option), None)


def refused_in_custom_loop(*, by_epochs: bool) -> dict[str, str]:
    """Return the options that a loop of the user's cannot have, each with the reason.

    Args:
        by_epochs: Whether a schedule moves with the epochs, which the trainer counts.
    """
    refused = {
        **NO_BATCHES,
        "gradient_clip_value": "makes its updates itself; clip in your own _train_epoch",
    }
    if not by_epochs:
        moved = "makes its updates itself, so that nobody moves it; set scheduler_interval='epoch'"
        refused["create_scheduler_fn"] = moved
    return refused


def read_options(config: Any) -> dict[str, Any]:
    """Return the options of the core that the settings ask for as they are; what is not set is left out."""
    given = {option: config[name] for option, name in NAMES.items() if option not in BY_THE_DOOR}
    asked = {option: parse_option(option, value) for option, value in given.items() if value is not None}
    return {"checkpoints": Policy(keep_last=KEEP_LAST), **asked}


def parse_option(option: str, value: Any) -> Any:
    """Return an option of the core for the value of its setting.

    Raises:
        ConfigError: The value cannot be meant.
    """
    made = _MADE.get(option)
    return value if made is None else made(value)


def checked_setting(name: str, value: Any, where: str) -> Any:
    """Return the value of a setting that is an option of the core, as plain data, if the core can have it.

    Args:
        name: The setting.
        value: What was given.
        where: Where it was given, for messages.

    Raises:
        ConfigError: The core cannot.
    """
    plain = _plain(value)
    try:
        if name == SCHEDULE:
            check_schedule(plain)
        elif plain is not None:
            for option in (one for one, own in NAMES.items() if own == name and one not in UNCHECKED):
                _check(option, parse_option(option, plain))
    except ConfigError as error:
        raise ConfigError(f"{error} (the setting {name} in {where})") from error
    return plain


UNCHECKED = ("seed", "run_dir", "resume", "device", "num_epochs", "per_device_batch_size", "eval_every")
"""Options whose settings mean more than they do, and are checked where the others of this door are."""


def _check(option: str, value: Any) -> None:
    if option in ("offload_optimizer", "deterministic") and not isinstance(value, bool):
        raise ConfigError(f"{option}={value!r} must be True or False")
    if option in ("matmul_precision", "convolution_precision"):
        SinglePrecision(**{option.removesuffix("_precision"): value})
    if option in ("scheduler_metric", "scheduler_interval", "extend") and not isinstance(value, str):
        raise ConfigError(f"{option}={value!r} must be text")
    if option == "timeout" and (isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0):
        raise ConfigError(f"timeout={value!r} must be a number of seconds above 0")
    if option in spec_options("trainer"):
        RunSpec(**{option: value})
    else:
        RunSpec(run_dir=Path()).for_training(**{"num_epochs": 1, option: value})


def _plain(value: Any) -> Any:
    """Return what the core has a class for as a dict, which the settings of a run can be kept with."""
    if not is_dataclass(value) or isinstance(value, type):
        return value
    own = {one.name: getattr(value, one.name) for one in fields(value)}
    return {one.name: own[one.name] for one in fields(value) if own[one.name] != one.default}


def _from_dict(kind: Any, option: str) -> Callable[[Any], Any]:
    """Return what makes a `kind` of the core from the dict that a setting holds."""

    def made(value: Any) -> Any:
        known = [one.name for one in fields(kind)]
        if not isinstance(value, Mapping):
            raise ConfigError(f"{option}={value!r} must be a dict with some of {known}")
        for name in value:
            if name not in known:
                raise ConfigError(
                    f"{option} has no {name!r}{did_you_mean(str(name), known) or f'; use some of {known}'}"
                )
        return kind(**value)

    return made


def _policy(value: Any) -> Policy:
    made: Policy = _from_dict(Policy, "checkpoints")(value)
    if made.best is not None:
        raise ConfigError(
            f"checkpoints: best={made.best!r} has no use here: the best model by valid_metric has a file of its own; "
            "set valid_metric, and leave it out"
        )
    return made if "keep_last" in value else _from_dict(Policy, "checkpoints")({"keep_last": KEEP_LAST, **value})


def _plan(value: Any) -> Plan | str:
    if value == "auto":
        return "auto"
    plan: Plan = _from_dict(Plan, "parallel")(value)
    if (plan.shard, plan.tensor, plan.pipeline) != (1, 1, 1):
        raise ConfigError(
            f"parallel={value!r}: an evaluation ranks all items by methods of the model's own, which need the whole "
            "tables of users and items on every process; use 'auto', or data= alone"
        )
    return plan


def _compile(value: Any) -> Any:
    return _from_dict(Compile, "compile")(value) if isinstance(value, Mapping) else Compile.of(value) or False


def _patterns(value: Any) -> Any:
    if value != AUTO and (isinstance(value, str) or not isinstance(value, (list, tuple))):
        raise ConfigError(
            f"activation_checkpointing={value!r} must be a list of patterns, such as ['mlp_layers'], or 'auto'"
        )
    return value


_MADE: dict[str, Callable[[Any], Any]] = {
    "loss_scaling": _from_dict(LossScaling, "loss_scaling"),
    "lr_scaling": _from_dict(LRScaling, "lr_scaling"),
    "checkpoints": _policy,
    "parallel": _plan,
    "compile": _compile,
    "activation_checkpointing": _patterns,
    "clip_norm": clip_limit,
}
