"""The keys of a config that this door reads: each is there or misspelt, and holds what it can mean."""

import logging

from omegaconf import DictConfig

from treadle.config import LazyCall
from treadle.config.key_types import Key, Keys, check_section, origin, packaged_keys
from treadle.config.nodes import children, is_lazy
from treadle.errors import ConfigError, did_you_mean
from treadle.spec import Names, Refused

# How a config calls the options of the core


NAMES: Names = {
    "seed": "train.seed",
    "run_dir": "train.output_dir",
    "precision": "train.amp.dtype",
    "loss_scaling": "train.amp.loss_scaling",
    "matmul_precision": "train.matmul_precision",
    "convolution_precision": "train.convolution_precision",
    "loss_reduction": Refused(
        "the losses of a model are means: over its samples, or over the num_items_in_batch that it returns beside them"
    ),
    "device": "train.dist.device_type",
    "checkpoints": "train.checkpointer.max_to_keep",
    "on_nonfinite": "train.on_nonfinite",
    "max_rollbacks": "train.max_rollbacks",
    "deterministic": "train.deterministic",
    "microbatch": "train.microbatch",
    "execution": "train.execution",
    "compile": "graph.enabled",
    "activation_checkpointing": "train.activation_checkpoint.modules",
    "offload_optimizer": "train.offload_optimizer",
    "timeout": "train.dist.timeout",
    "parallel": "train.dist.tensor_parallel_size",
    "num_epochs": "train.train_epoch",
    "max_steps": "train.train_iter",
    "per_device_batch_size": "train.train_micro_batch_size",
    "gradient_accumulation_steps": "train.num_accumulation_steps",
    "gradient_clip_value": "train.gradient_clip_value",
    "clip_norm": "optim.params.clip_grad_max_norm",
    "scheduler_interval": Refused("a run is counted in iterations, and a schedule moves with each"),
    "scheduler_metric": Refused("a schedule moves with each iteration; a hook of your own can move one by a metric"),
    "eval_every": "train.evaluation.eval_period",
    "log_every": "train.log_period",
    "save_every": "train.checkpointer.period",
    "resume_from": Refused("a run resumes from its own folder, by train.resume; train.load_weight takes weights alone"),
    "resume": "train.resume",
    "extend": Refused("a schedule is set up for train.train_iter each time a run starts, and follows the new length"),
    "lr_scaling": "train.lr_scaling.rule",
}
"""The key of each option; precision, plans and checkpoints have further keys beside it."""
PARTS: Names = {
    "model": "model",
    "loss_func": Refused("the model returns its losses"),
    "optimizer": "optim",
    "callbacks": "train.callbacks",
    "run_history": Refused("the storage of the run is kept, which saves its metrics with it"),
    "metrics": "train.evaluation.evaluator",
    "train_metrics": Refused("a model returns its numbers beside its losses, which the console and the files show"),
    "train_dataset": "dataloader.train",
    "eval_dataset": "dataloader.test",
    "max_num_train_steps": "train.train_iter",
    "create_scheduler_fn": "train.scheduler",
    "train_dataloader_kwargs": "dataloader.train",
    "eval_dataloader_kwargs": "dataloader.test",
    "reset_run_history": Refused("each start of a run continues the metrics in its folder"),
    "collate_fn": "dataloader.train",
}
"""The same for the arguments of the core's trainer that are no options."""


logger = logging.getLogger(__name__)

SECTIONS = ("model", "optim", "dataloader", "tokenization", "train", "graph", "trainer")
"""The names at the top of a config that say what is built; a file may have any others for its own use."""

RENAMED = {"max_iter": "train.train_iter", "init_checkpoint": "train.load_weight"}
"""What detectron2 calls a key of `train`, where that can be nobody's own."""

_CHECKED: dict[str, Keys | Key | str] = {
    "model": Key(LazyCall | dict),
    "optim": Key(LazyCall | dict),
    "train": "common/train.py",
    "graph": "common/models/graph.py",
    "dataloader": {"train": Key(LazyCall | list | None), "test": Key(LazyCall | dict | list | None)},
    "tokenization": {"tokenizer": Key(LazyCall | None), "make_vocab_size_divisible_by": Key(int, 1)},
}


def check_keys(cfg: DictConfig) -> list[str]:
    """Check every key that this door reads, and its value; texts such as `off` become truth values in place.

    Returns:
        The keys of these sections that nobody knows and that resemble none; they are left to the user's own code.

    Raises:
        ConfigError: A key is misspelt, or a value is none that its key takes.
    """
    unknown: list[str] = []
    _check_names(cfg)
    _check_renamed(cfg)
    for section, known in _CHECKED.items():
        if cfg.get(section) is not None and not is_lazy(cfg[section]):
            unknown += check_section(cfg, section, packaged_keys(known, section) if isinstance(known, str) else known)
    return unknown


def _check_names(cfg: DictConfig) -> None:
    """Refuse a name at the top that is nearly that of a section which is not there."""
    missing = [name for name in SECTIONS if name not in cfg]
    for name, _ in children(cfg):
        near = did_you_mean(str(name), missing) if name not in SECTIONS else ""
        if near:
            raise ConfigError(f"unknown key {name!r}{origin(cfg, str(name))}{near}")


def _check_renamed(cfg: DictConfig) -> None:
    for name, _ in children(cfg._get_node("train")):
        if name in RENAMED:
            path = f"train.{name}"
            raise ConfigError(f"unknown key {path!r}{origin(cfg, path)}; did you mean {RENAMED[name]!r}?")
        option = NAMES.get(str(name))
        if isinstance(option, Refused):
            path = f"train.{name}"
            raise ConfigError(f"unknown key {path!r}{origin(cfg, path)}: {option.reason}")


def warn_unknown_keys(unknown: list[str]) -> None:
    """Say in one line which keys nobody but the user's own code can read."""
    if unknown:
        logger.warning("keys that Treadle does not read, left to your own code: %s", ", ".join(unknown))
