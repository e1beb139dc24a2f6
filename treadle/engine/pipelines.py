"""Models of this door as stages: what a config says of them, and whether a model can be cut so."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from torch import nn

from treadle.config import try_get_key
from treadle.errors import ConfigError
from treadle.parallel import Plan
from treadle.parallel.cut import enters_first, names_taken, parameters_of
from treadle.parallel.stages import parts_of, stages_of

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


def cut_plan(cfg: Any, plan: Plan | str, model: nn.Module) -> Plan | str:
    """Return the plan with the stages that `custom_pipeline_stage_id` says, having looked whether the model has them.

    Raises:
        ConfigError: The model cannot be cut, or not so.
    """
    if not isinstance(plan, Plan) or plan.pipeline == 1:
        return plan
    parts = _parts_of(model, plan)
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
        stages_of(parts, plan)
    except ConfigError as error:
        raise ConfigError(f"{IDS}={list(ids)}: {error}") from error
    return plan


def _parts_of(model: nn.Module, plan: Plan) -> list[nn.Module]:
    if not hasattr(model, "pipeline_blocks"):
        raise ConfigError(
            f"{SIZE}={plan.pipeline}, but {type(model).__name__} does not say how it is cut; define pipeline_blocks(), "
            "which returns the modules that data goes through one after the other, the last of which returns what the "
            "model does"
        )
    return parts_of(model, plan)


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
    needed = [one for one in parameters_of(model) if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD]
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
    for _, row in groupby(parts, type):
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
