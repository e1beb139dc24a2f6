"""Layers as stages: which of them belong together, and what a process keeps of the model."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

from torch import nn

from treadle.errors import ConfigError
from treadle.parallel.plan import Plan
from treadle.parallel.pretrained import is_pretrained, sections_of


def stage_modules(model: nn.Module, plan: Plan) -> list[nn.Module]:
    """Return the modules that data goes through one after the other.

    Raises:
        ConfigError: Nobody says which these are, or there are fewer than stages.
    """
    own = getattr(model, "pipeline_blocks", None)
    if plan.stages is not None:
        parts = list(plan.stages(model))
    elif own is not None:
        parts = list(own())
    elif isinstance(model, nn.Sequential):
        parts = list(model)
    elif is_pretrained(model):
        parts = sections_of(model)
    else:
        raise ConfigError(
            f"Plan: pipeline={plan.pipeline}, but {type(model).__name__} has no pipeline_blocks(); pass stages=, which "
            "returns the modules that data goes through one after the other"
        )
    if len(parts) < plan.pipeline:
        raise ConfigError(f"Plan: pipeline={plan.pipeline}, but there are {len(parts)} modules to share out")
    return parts


def is_named(model: nn.Module, plan: Plan) -> bool:
    """Whether the stages of a model were found as those of models of transformers are, and take batches by name."""
    said = plan.stages is not None or hasattr(model, "pipeline_blocks") or isinstance(model, nn.Sequential)
    return not said and is_pretrained(model)


def assign_stages(parts: Sequence[nn.Module], plan: Plan) -> list[int]:
    """Return the stage of each module: as the plan says, else so that the largest stage has few weights.

    Raises:
        ConfigError: The plan says it for another number of modules, or not in order.
    """
    if plan.stage_of is None:
        return balanced([_weights_in(part) for part in parts], plan.pipeline)
    given = list(plan.stage_of)
    if len(given) != len(parts):
        raise ConfigError(f"Plan: stage_of has {len(given)} numbers for {len(parts)} modules")
    steps = {later - earlier for earlier, later in pairwise(given)}
    if given[0] != 0 or given[-1] != plan.pipeline - 1 or not steps <= {0, 1}:
        raise ConfigError(f"Plan: stage_of={given} must go from 0 to {plan.pipeline - 1} without a gap")
    return given


def balanced(sizes: Sequence[int], stages: int) -> list[int]:
    """Return the stage of each module such that the largest sum of sizes in a stage is as small as can be.

    >>> balanced([4, 2, 2, 2, 2], 2)
    [0, 0, 1, 1, 1]
    """
    limit = max(*sizes, -(-sum(sizes) // stages))
    while (found := _filled(sizes, stages, limit)) is None:
        # In steps of 1.6 %: a large model needs few rounds too, and the largest stage is that close to the best.
        limit += max(1, limit // 64)
    return found


def _filled(sizes: Sequence[int], stages: int, limit: int) -> list[int] | None:
    stage, filled, result = 0, 0, []
    for place, size in enumerate(sizes):
        left = len(sizes) - place
        # Each stage that is still to come needs a module too.
        if place and (filled + size > limit or left <= stages - 1 - stage) and stage < stages - 1:
            stage, filled = stage + 1, 0
        filled += size
        result.append(stage)
        if filled > limit:
            return None
    return result if stage == stages - 1 else None


def _weights_in(part: nn.Module) -> int:
    return sum(weight.numel() for weight in part.parameters())


def hollow(model: nn.Module, kept: Sequence[nn.Module]) -> None:
    """Take everything out of `model` that is not in the modules `kept`."""
    staying = {id(module) for part in kept for module in part.modules()}
    weights = {id(weight) for part in kept for weight in part.parameters()}
    for module in model.modules():
        for name, weight in module._parameters.items():
            if weight is not None and id(weight) not in weights:
                module._parameters[name] = None
        for name in module._buffers:
            if id(module) not in staying:
                module._buffers[name] = None


def require_apart(roots: Sequence[nn.Module]) -> None:
    """Refuse a weight that both the last module and another one of its stage have: each is sharded by itself.

    Raises:
        ConfigError: There is one.
    """
    seen: dict[int, int] = {}
    for place, root in enumerate(roots):
        for name, weight in root.named_parameters():
            if seen.setdefault(id(weight), place) != place:
                raise ConfigError(
                    f"Plan: pipeline: {name} of the last module is the weight of another module of its stage, too, and "
                    "shard= would cut it twice; give that one another stage with stage_of=, or use shard=1"
                )


@contextmanager
def following(model: nn.Module, roots: Sequence[nn.Module]) -> Iterator[None]:
    """Have modules hold the new weight wherever one of them gets it in place of an old one.

    Modules that a model makes only to be cut may hold weights of their own right, which are the model's, too.
    """
    owners = list({id(module): module for one in (model, *roots) for module in one.modules()}.values())
    before = [(owner, name, weight) for owner in owners for name, weight in owner._parameters.items()]
    yield
    new = {
        id(weight): owner._parameters[name] for owner, name, weight in before if owner._parameters[name] is not weight
    }
    for owner, name, weight in before:
        if weight is not None and owner._parameters[name] is weight:
            owner._parameters[name] = new.get(id(weight), weight)
