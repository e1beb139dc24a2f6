"""How the processes of a run share its data, its weights and its layers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, NamedTuple

from torch import nn

from treadle.errors import ConfigError, did_you_mean

STYLES = ("column", "row", "column_gathered", "summed")
AXES = ("pipeline", "data", "shard", "tensor")
"""From the outermost to the innermost: ranks that talk the most are neighbours, on one machine."""


class Degrees(NamedTuple):
    """Over how many ranks a plan spreads what; the product is the number of processes."""

    pipeline: int
    data: int
    shard: int
    tensor: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How the processes share a run: the product of the four numbers is how many there are.

    Data, too, is shared by `data` times `shard` ranks: those of one `tensor` or `pipeline` group work on the same
    samples. A plan of `data` alone is torch's DistributedDataParallel, which `"auto"` stands for.

    Args:
        data: Copies of the model; None takes what the other numbers leave.
        shard: Ranks that share the weights of one copy, each with samples of its own (torch's FSDP2). With `data`
            above 1 this is hybrid sharding. "all" takes what the other numbers leave, one rank alone too.
        tensor: Ranks that share the layers named in `tensor_plan`, on the same samples.
        pipeline: Stages that the layers are cut into, which pass micro-batches on to each other (1F1B).
        blocks: Patterns for names or classes of modules whose weights are gathered at once, as "trunk.blocks.*". None
            takes the entries of the outermost lists of modules.
        tensor_plan: For patterns of names of layers, "column" (outputs are sharded), "row" (inputs are),
            "column_gathered" (outputs are gathered again, as those of a head) or "summed" (weights are whole, and each
            rank has a part of their gradient, as of a norm within a head). None asks the model, if it has
            `tensor_plan()`, or is one of transformers that says it.
        stages: Returns, for a model, the modules that data goes through one after the other. None asks the model, if
            it has `pipeline_blocks()`, or is one of transformers; an `nn.Sequential` has its own.
        stage_of: For each of these modules its stage, from 0. None makes the stages alike in weights.
        cpu_offload: Whether sharded weights, gradients and the state of the optimizer are kept by the host.
        reshard_after_forward: Whether gathered weights of blocks are given up until the backward pass. False takes
            more memory and less communication, as ZeRO's stage 2.
        gathered: The format that sharded weights are gathered in: "bf16" halves what is exchanged, for models all of
            whose layers take such weights; None is their own, which autocast rounds where it should.
        forward_methods: Names of other methods of the model that a loss verb calls, as "calculate_loss"; sharded
            weights are gathered for `forward` and for these.
    """

    data: int | None = None
    shard: int | Literal["all"] = 1
    tensor: int = 1
    pipeline: int = 1
    blocks: Sequence[str] | None = None
    tensor_plan: Mapping[str, str] | None = None
    stages: Callable[[Any], Sequence[nn.Module]] | None = None
    stage_of: Sequence[int] | None = None
    cpu_offload: bool = False
    reshard_after_forward: bool = True
    gathered: str | None = None
    forward_methods: Sequence[str] = ()

    def __post_init__(self) -> None:
        for axis in AXES:
            _check_degree(axis, getattr(self, axis))
        if isinstance(self.blocks, str):
            raise ConfigError(f"Plan: blocks={self.blocks!r} must be a list of patterns; write [{self.blocks!r}]")
        for pattern, style in (self.tensor_plan or {}).items():
            if style not in STYLES:
                near = did_you_mean(str(style), STYLES) or f"; use one of {STYLES}"
                raise ConfigError(f"Plan: tensor_plan[{pattern!r}]={style!r} is unknown{near}")
        if self.gathered not in (None, "bf16"):
            raise ConfigError(f"Plan: gathered={self.gathered!r} is unknown; use 'bf16' or None")
        if self.shard == "all" and self.data is None:
            object.__setattr__(self, "data", 1)
        self._check_extras()

    def _check_extras(self) -> None:
        """Refuse settings of an axis that the plan does not use: they would be ignored."""
        used = {"tensor_plan": self.tensor > 1, "stages": self.pipeline > 1, "stage_of": self.pipeline > 1}
        axis = {"tensor_plan": "tensor", "stages": "pipeline", "stage_of": "pipeline"}
        for name, wanted in used.items():
            if getattr(self, name) is not None and not wanted:
                raise ConfigError(f"Plan: {name} is for {axis[name]}= above 1; set it, or leave {name} out")
        if self.shard == 1:
            for name in ("blocks", "cpu_offload", "gathered", "forward_methods"):
                if getattr(self, name):
                    raise ConfigError(f"Plan: {name} is for shard= above 1 or 'all'; set it, or leave {name} out")
        for name in ("cpu_offload", "forward_methods"):
            if self.pipeline > 1 and getattr(self, name):
                raise ConfigError(
                    f"Plan: pipeline={self.pipeline} does not go with {name}={getattr(self, name)!r}: stages are on "
                    "the device, and are called by forward; leave it out"
                )

    def degrees(self, world: int) -> Degrees:
        """Return the four numbers for so many processes.

        Raises:
            ConfigError: Their product is another number; the message names all of them.
        """
        given = {axis: getattr(self, axis) for axis in AXES}
        open_axis = next((axis for axis, number in given.items() if number in (None, "all")), None)
        known = prod(number for axis, number in given.items() if axis != open_axis)
        rest, left = divmod(world, known)
        fits = not left and rest >= 1 if open_axis is not None else known == world
        if not fits:
            written = " x ".join(f"{axis}={number}" for axis, number in given.items() if axis != open_axis)
            raise ConfigError(
                f"Plan: {written} is {known} processes, but {world} were started; start "
                f"{'a multiple of ' if open_axis else ''}{known}, or change the plan"
            )
        return Degrees(**given | ({} if open_axis is None else {open_axis: rest}))

    def is_sharded(self, degrees: Degrees) -> bool:
        """Whether ranks hold other weights than their neighbours, so that DistributedDataParallel will not do."""
        return self.shard == "all" or degrees.shard * degrees.tensor * degrees.pipeline > 1


def resolve_plan(parallel: "Plan | str") -> Plan:
    """Return the plan that the argument `parallel` of a trainer means.

    Raises:
        ConfigError: It is neither a plan nor "auto".
    """
    if isinstance(parallel, Plan):
        return parallel
    if parallel != "auto":
        raise ConfigError(f"parallel={parallel!r} is unknown; use 'auto' or treadle.parallel.Plan(...)")
    return Plan()


def _check_degree(axis: str, number: Any) -> None:
    if (axis == "data" and number is None) or (axis == "shard" and number == "all"):
        return
    if type(number) is not int or number < 1:
        raise ConfigError(f"Plan: {axis}={number!r} must be a whole number above 0")
