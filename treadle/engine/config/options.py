"""What a config says of how to run: checked when the trainer is built, and never ignored."""

import logging
import os
from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from treadle.config import try_get_key
from treadle.engine import dist
from treadle.engine.core import CoreOptions
from treadle.errors import ConfigError, did_you_mean
from treadle.execution import EXECUTIONS
from treadle.execution.base import is_file
from treadle.optim.lr_scaling import LRScaling
from treadle.parallel import Plan
from treadle.parallel.pipeline.split import enters_first, forward_parameters, names_taken
from treadle.parallel.pipeline.stages import assign_stages, stage_modules
from treadle.parallel.pretrained import is_pretrained
from treadle.precision import LossScaling

# Models of this door as stages: what a config says of them, and whether a model can be cut so


SIZE = "train.dist.pipeline_parallel_size"
LAYERS = "train.dist.pipeline_num_layers"
IDS = "train.dist.custom_pipeline_stage_id"


def stage_count(cfg: Any) -> int:
    """Return into how many stages the model is cut.

    Raises:
        ConfigError: The config says something of stages that makes no sense.
    """
    stages = int(try_get_key(cfg, SIZE, default=1) or 1)
    layers, ids = try_get_key(cfg, LAYERS, default=None), try_get_key(cfg, IDS, default=None)
    if layers is not None and (type(layers) is not int or layers < 1):
        raise ConfigError(f"{LAYERS}={layers!r} must be the number of layers, or None")
    if ids is not None and not (isinstance(ids, Sequence) and all(type(number) is int for number in ids)):
        raise ConfigError(f"{IDS}={ids!r} must be a list of whole numbers, the stage of each layer, or None")
    if ids is not None and stages == 1 and any(ids):
        raise ConfigError(f"{IDS}={list(ids)}, but {SIZE}=1; set that, or leave the ids out")
    return stages


def add_pipeline_stages(cfg: Any, plan: Plan | str, model: nn.Module) -> Plan | str:
    """Return the plan with the stages that `custom_pipeline_stage_id` says, having looked whether the model has them.

    Raises:
        ConfigError: The model cannot be cut, or not so.
    """
    if not isinstance(plan, Plan) or plan.pipeline == 1:
        return plan
    parts = _stage_modules(model, plan)
    _check_end(model, parts, plan)
    before, layers = _layers_in(parts)
    asked = try_get_key(cfg, LAYERS, default=None)
    if asked not in (None, layers):
        raise ConfigError(f"{LAYERS}={asked}, but {type(model).__name__} has {layers}; leave it out, or correct it")
    ids = try_get_key(cfg, IDS, default=None)
    if ids is None:
        return plan
    plan = replace(plan, stage_of=_stage_of_parts(list(ids), len(parts), before, layers, plan.pipeline))
    try:
        assign_stages(parts, plan)
    except ConfigError as error:
        raise ConfigError(f"{IDS}={list(ids)}: {error}") from error
    return plan


def _stage_modules(model: nn.Module, plan: Plan) -> list[nn.Module]:
    if not (hasattr(model, "pipeline_blocks") or is_pretrained(model)):
        raise ConfigError(
            f"{SIZE}={plan.pipeline}, but {type(model).__name__} does not say how it is cut; define pipeline_blocks(), "
            "which returns the modules that data goes through one after the other, the last of which returns what the "
            "model does"
        )
    return stage_modules(model, plan)


def _check_end(model: nn.Module, parts: list[nn.Module], plan: Plan) -> None:
    """Refuse a model whose last module cannot tell its losses, or that takes what none of its modules does."""
    kind, last = type(model).__name__, type(parts[-1]).__name__
    taken = [names_taken(part, first=place == 0) for place, part in enumerate(parts)]
    if taken[-1] == frozenset():
        raise ConfigError(
            f"{SIZE}={plan.pipeline}: {last}, the last of {kind}.pipeline_blocks(), takes hidden states alone, so it "
            "cannot tell the loss; give its forward the labels too, and have it return what the model does"
        )
    handed = enters_first(model, parts[0])
    needed = [
        one for one in forward_parameters(model) if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD
    ]
    names = [one.name for one in needed if one.name != handed]
    idle = [name for name in names if not any(some is None or name in some for some in taken)]
    if idle:
        raise ConfigError(
            f"{SIZE}={plan.pipeline}: {kind} takes {idle}, which none of its pipeline_blocks() does; name it among the "
            "arguments of the forward that needs it"
        )


def _layers_in(parts: list[nn.Module]) -> tuple[int, int]:
    """Return where the longest row of modules of one kind begins, and how many it has: those are the layers."""
    rows, place = [], 0
    for _, row in groupby(parts, lambda part: getattr(part, "kind", type(part))):
        length = len(list(row))
        rows.append((place, length))
        place += length
    return max(rows, key=lambda row: row[1])


def _stage_of_parts(ids: list[int], parts: int, before: int, layers: int, stages: int) -> list[int]:
    """Return the stage of each module: what comes before the layers is in the first, what comes after in the last."""
    if len(ids) == parts:
        return ids
    if len(ids) != layers:
        raise ConfigError(
            f"{IDS} has {len(ids)} numbers, but there are {layers} layers; give one for each, or for each of the "
            f"{parts} modules of pipeline_blocks()"
        )
    return [0] * before + ids + [stages - 1] * (parts - before - layers)


logger = logging.getLogger(__name__)

PRECISIONS = {"bf16": "bf16", "bfloat16": "bf16", "fp16": "fp16", "float16": "fp16"}

LATER = "is not there yet in this version"


FUSED = 24
"""The default of `nccl_fusion_max_ops`, which stands for no wish at all."""


def check_supported(cfg: Any) -> None:
    """Refuse what the config asks for and this version cannot do.

    Raises:
        ConfigError: Something of that kind is asked for.
    """
    if stage_count(cfg) > 1:
        _check_stages(cfg)
    read_plan(cfg, dist.get_world_size())
    if try_get_key(cfg, "graph.auto_parallel.enabled", default=False):
        raise ConfigError(f"graph.auto_parallel.enabled=True: finding a placement by itself {LATER}; set it to False")
    most = try_get_key(cfg, "train.nccl_fusion_max_ops", default=None)
    if most not in (None, FUSED):
        raise ConfigError(
            f"train.nccl_fusion_max_ops={most}: torch joins gradients by size alone; leave it at {FUSED} and set "
            "train.nccl_fusion_threshold_mb"
        )
    read_execution(cfg)
    read_precision(cfg)
    read_loss_scaling(cfg)
    read_lr_scaling(cfg)
    _check_world(cfg)
    _check_placement(cfg)


def _check_placement(cfg: Any) -> None:
    place = try_get_key(cfg, "train.input_placement_device", default=None)
    try:
        torch.device(place or "cpu")
    except RuntimeError as error:
        raise ConfigError(f"train.input_placement_device={place!r} is no device; use 'cuda', 'cpu' or None") from error


def _check_stages(cfg: Any) -> None:
    """Refuse what a model in stages cannot do, by the names that a config has for it."""
    stages = stage_count(cfg)
    execution = read_execution(cfg)
    if execution.compiles or execution.core == "graph":
        raise ConfigError(
            f"train.dist.pipeline_parallel_size={stages}: stages run by torch's schedule, and are not compiled; set "
            "train.execution='eager'"
        )


class Execution(NamedTuple):
    """How a step is executed.

    Attributes:
        compiles: Whether the model is compiled.
        core: What the core does with the whole step: "eager", or to record it, "graph" or "auto".
    """

    compiles: bool
    core: str


def read_execution(cfg: Any) -> Execution:
    """Return how a step is executed: this is the one place that decides it.

    `train.execution` says it; where that is None, `graph.enabled` does, as LiBai's users know it: the model is
    compiled, and on a GPU the whole step is recorded if it can be.

    Raises:
        ConfigError: It says something else.
    """
    chosen = try_get_key(cfg, "train.execution", default=None)
    compiles = bool(try_get_key(cfg, "graph.enabled", default=False))
    if chosen is None:
        return Execution(compiles, "auto")
    if is_file(chosen):
        return Execution(compiles, str(chosen))
    if chosen not in EXECUTIONS:
        near = did_you_mean(str(chosen), EXECUTIONS) or f"; use one of {EXECUTIONS}, or None"
        raise ConfigError(f"train.execution={chosen!r} is unknown{near}")
    if chosen in ("eager", "compile"):
        return Execution(chosen == "compile", "eager")
    return Execution(compiles, str(chosen))


def _check_world(cfg: Any) -> None:
    world = dist.get_world_size()
    asked, tensor, stages = (
        try_get_key(cfg, "train.dist.data_parallel_size", default=1),
        tensor_size(cfg),
        stage_count(cfg),
    )
    if asked not in (None, 1, data_size(cfg)):
        others = {"tensor_parallel_size": tensor, "pipeline_parallel_size": stages}
        named = "".join(f" times {key}={number}" for key, number in others.items() if number > 1)
        together = f"{named} is {asked * tensor * stages}" if named else ""
        raise ConfigError(
            f"train.dist.data_parallel_size={asked}{together}, but {world} processes were started; start as many as it "
            "says, or leave it out"
        )
    nodes = try_get_key(cfg, "train.dist.num_nodes", default=None)
    each = try_get_key(cfg, "train.dist.num_gpus_per_node", default=None)
    if nodes is not None and each is not None and nodes * each != world:
        raise ConfigError(
            f"train.dist.num_nodes={nodes} times num_gpus_per_node={each} is {nodes * each}, but {world} processes "
            "were started; leave both out to take what the launcher says"
        )
    for key, number in (("num_nodes", nodes), ("num_gpus_per_node", each)):
        if number is not None and (number < 1 or world % number):
            raise ConfigError(
                f"train.dist.{key}={number}, but {world} processes were started, which cannot be divided so; leave it "
                "out to take what the launcher says"
            )


def tensor_size(cfg: Any) -> int:
    """Return over how many processes each layer is sharded."""
    return int(try_get_key(cfg, "train.dist.tensor_parallel_size", default=1) or 1)


def data_size(cfg: Any) -> int:
    """Return over how many processes, or groups of them, a batch is shared."""
    return dist.get_world_size() // (tensor_size(cfg) * stage_count(cfg))


def read_plan(cfg: Any, world: int) -> Plan | str:
    """Return how so many processes share the run, by `train.zero_optimization` and `train.dist`.

    Raises:
        ConfigError: The processes cannot be shared out so.
    """
    tensor, stages = tensor_size(cfg), stage_count(cfg)
    for key, number in (("tensor_parallel_size", tensor), ("pipeline_parallel_size", stages)):
        if world % number:
            raise ConfigError(
                f"train.dist.{key}={number}, but {world} processes were started; start a multiple of {number}, or set "
                "it to 1"
            )
    if world % (tensor * stages):
        raise ConfigError(
            f"train.dist: tensor_parallel_size={tensor} times pipeline_parallel_size={stages} is {tensor * stages}, "
            f"but {world} processes were started; start a multiple of {tensor * stages}"
        )
    if not try_get_key(cfg, "train.zero_optimization.enabled", default=False):
        return "auto" if tensor == stages == 1 else Plan(tensor=tensor, pipeline=stages)
    stage = try_get_key(cfg, "train.zero_optimization.stage", default=1)
    if stage not in (1, 2, 3):
        raise ConfigError(f"train.zero_optimization.stage={stage!r} is unknown; use 1, 2 or 3")
    # What stages 1 and 2 leave whole is the weights, between forward and backward pass.
    shard = world // (tensor * stages)
    return Plan(data=1, shard=shard, tensor=tensor, pipeline=stages, reshard_after_forward=stage == 3)


def read_precision(cfg: Any) -> str:
    """Return the number format that `train.amp` asks for: bf16 unless `amp.dtype` says fp16; fp32 if it is off.

    Raises:
        ConfigError: `amp.dtype` is none of these.
    """
    given = try_get_key(cfg, "train.amp.dtype", default=None)
    dtype = "bf16" if given is None else str(given).removeprefix("torch.")
    if dtype not in PRECISIONS:
        raise ConfigError(f"train.amp.dtype={dtype!r} is unknown; use 'bf16' or 'fp16'")
    return PRECISIONS[dtype] if try_get_key(cfg, "train.amp.enabled", default=False) else "fp32"


def read_loss_scaling(cfg: Any) -> LossScaling | None:
    """Return how `train.amp.loss_scaling` wants the loss scaled in fp16; None chooses.

    Raises:
        ConfigError: It has an argument that there is not, or amp is not in fp16, where nothing is scaled.
    """
    given = try_get_key(cfg, "train.amp.loss_scaling", default=None)
    if given is None:
        return None
    if read_precision(cfg) != "fp16":
        raise ConfigError(
            "train.amp.loss_scaling is set, but only fp16 scales the loss; set train.amp.enabled=True and "
            "train.amp.dtype='fp16', or leave it out"
        )
    known = [field.name for field in fields(LossScaling)]
    for name in given:
        if name not in known:
            near = did_you_mean(str(name), known) or f"; use some of {known}"
            raise ConfigError(f"train.amp.loss_scaling has no {name!r}{near}")
    return LossScaling(**given)


def read_lr_scaling(cfg: Any) -> LRScaling:
    """Return how `train.lr_scaling` wants the rates to follow the batch."""
    rule = try_get_key(cfg, "train.lr_scaling.rule", default=None) or "none"
    return LRScaling(rule, try_get_key(cfg, "train.lr_scaling.reference_batch_size", default=None))


def configured_device(cfg: Any) -> str | None:
    """Return the device that `train.dist.device_type` asks for; None takes that of the process."""
    kind = try_get_key(cfg, "train.dist.device_type", default="cuda")
    if kind not in ("cuda", "cpu", "mps", "auto"):
        raise ConfigError(f"train.dist.device_type={kind!r} is unknown; use 'cuda', 'cpu', 'mps' or 'auto'")
    if kind in ("cpu", "mps"):
        return str(kind)
    if kind == "cuda" and not torch.cuda.is_available():
        logger.warning("train.dist.device_type='cuda', but there is no CUDA device: training on the CPU")
    return None


def read_clip_norm(optimizer: Optimizer) -> float | None:
    """Return the bound on the norm of the whole gradient that the optimizer's groups give; None if they give none.

    Raises:
        ConfigError: They give several, or another kind of norm than the usual one.
    """
    bounds = {group.get("clip_grad_max_norm") for group in optimizer.param_groups}
    kinds = {group.get("clip_grad_norm_type") or 2.0 for group in optimizer.param_groups}
    if bounds == {None}:
        return None
    if len(bounds) > 1:
        raise ConfigError(
            f"the groups of the optimizer have several clip_grad_max_norm, {sorted(map(str, bounds))}; the norm is "
            "taken over all of them together, so give one"
        )
    if kinds != {2.0}:
        raise ConfigError(f"clip_grad_norm_type={sorted(kinds)} is not supported; use 2.0")
    (bound,) = bounds
    return float(bound) if bound is not None else None


def core_options(cfg: Any, *, model: nn.Module, optimizer: Optimizer, max_to_keep: int | None) -> CoreOptions:
    """Return how the core is to run."""
    policy = try_get_key(cfg, "train.on_nonfinite", default=None) or "raise"
    rollbacks = try_get_key(cfg, "train.max_rollbacks", default=None)
    return CoreOptions(
        run_dir=os.fspath(cfg.train.output_dir),
        seed=cfg.train.seed,
        precision=read_precision(cfg),
        loss_scaling=read_loss_scaling(cfg),
        matmul_precision=try_get_key(cfg, "train.matmul_precision", default=None),
        convolution_precision=try_get_key(cfg, "train.convolution_precision", default=None),
        offload_optimizer=bool(try_get_key(cfg, "train.offload_optimizer", default=False)),
        device=configured_device(cfg),
        clip_norm=read_clip_norm(optimizer),
        gradient_clip_value=try_get_key(cfg, "train.gradient_clip_value", default=None),
        on_nonfinite=policy,
        max_rollbacks=3 if rollbacks is None else rollbacks,
        microbatch=try_get_key(cfg, "train.microbatch", default=None) or "fixed",
        deterministic=bool(try_get_key(cfg, "train.deterministic", default=False)),
        execution=read_execution(cfg).core,
        max_to_keep=max_to_keep,
        check_period=cfg.train.log_period,
        bucket_megabytes=try_get_key(cfg, "train.nccl_fusion_threshold_mb", default=None),
        timeout=try_get_key(cfg, "train.dist.timeout", default=None),
        parallel=add_pipeline_stages(cfg, read_plan(cfg, dist.get_world_size()), model),
    )
