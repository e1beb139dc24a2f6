"""What a step costs on many devices, on paper: the bytes that each plan exchanges, and how long they take."""

from dataclasses import dataclass, replace

FLOAT = 4


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A transformer, and the work of one step.

    Args:
        weights: Numbers that are learned.
        block_weights: How many of them are in the blocks.
        layers: Blocks.
        width: The size of a hidden state.
        tokens: Tokens that one rank, or one group of ranks on the same samples, works on in a step.
        shared_weights: Numbers that the first and the last stage both have, such as a tied embedding.
        first_stage: Numbers that the first stage has.
        spread_weights: Numbers of the layers that tensor parallelism spreads.
    """

    weights: int
    block_weights: int
    layers: int
    width: int
    tokens: int
    shared_weights: int = 0
    first_stage: int = 0
    spread_weights: int = 0


def volume(shape: Shape, plan: str, parts: int = 2) -> dict[str, int]:
    """Return the bytes of the collectives of one step in fp32 on the first rank, by kind, for one micro-batch a step.

    DDP sums every gradient, and one number: the weight of the window. FSDP2 gathers all weights for the forward pass,
    those of the blocks again for the backward pass, and scatters all gradients. Tensor parallelism sums hidden states
    after the two halves of each block, forward, and their gradients before them, backward. A stage sends hidden states
    on and gets their gradients back; weights that two stages share are summed. Hybrid sharding sums, beside what FSDP2
    does, the shards of gradients over the groups; with tensor parallelism, FSDP2 has less to gather; and the replicas
    of a stage sum the gradients of that stage.

    Args:
        shape: The model and the work.
        plan: The plan, by its name in the tables.
        parts: In hybrid sharding the ranks of a group, beside FSDP2 those that share a layer.
    """
    weights, hidden = FLOAT * shape.weights, FLOAT * shape.tokens * shape.width
    if plan == "DDP":
        return {"all_reduce": weights + FLOAT}
    if plan in ("FSDP2", "hybrid"):
        gathered = weights + FLOAT * shape.block_weights
        summed = weights // parts if plan == "hybrid" else 0
        return {"all_gather": gathered, "all_reduce": summed + FLOAT, "reduce_scatter": weights}
    if plan == "tensor":
        return {"all_reduce": 4 * shape.layers * hidden}
    if plan == "FSDP2 + tensor":
        elsewhere = FLOAT * shape.spread_weights * (parts - 1) // parts
        kept, blocks = weights - elsewhere, FLOAT * shape.block_weights - elsewhere
        return {
            "all_gather": kept + blocks,
            "all_reduce": 4 * shape.layers * hidden + FLOAT,
            "reduce_scatter": kept,
        }
    if plan in ("pipeline", "DDP + pipeline"):
        summed = FLOAT * (shape.first_stage + 1) if plan == "DDP + pipeline" else 0
        return {"all_reduce": FLOAT * shape.shared_weights + summed, "receive": hidden, "send": hidden}
    raise ValueError(f"no formula for the plan {plan!r}")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What devices and wires are capable of.

    Args:
        flops: Operations per second that a device really does.
        inside: Bytes per second between devices of one machine, for each.
        between: Bytes per second between machines, for each device.
        devices: Devices of a machine.
    """

    flops: float = 4.0e14
    inside: float = 3.0e11
    between: float = 4.0e10
    devices: int = 8


def on_the_wire(sizes: dict[str, int], ranks: int) -> float:
    """Return the bytes that each rank sends, if collectives go around a ring."""
    ring = (ranks - 1) / ranks
    factor = {"all_reduce": 2 * ring, "all_gather": ring, "reduce_scatter": ring, "broadcast": 1.0, "send": 1.0}
    return sum(factor.get(kind, 0.0) * size for kind, size in sizes.items())


def exchanges(shape: Shape, plan: str, ranks: int, machine: Machine) -> list[tuple[dict[str, int], int, float]]:
    """Return what is exchanged: the bytes by kind, among how many ranks, and how fast.

    Hybrid sharding has its groups, tensor parallelism its layers and a pipeline its stages inside of one machine; what
    is left goes between machines. The tokens of `shape` are those of one rank: a group works on as many for each.
    """
    group = min(ranks, machine.devices)
    outside = ranks // group
    if plan == "hybrid":
        sizes = volume(shape, plan, group)
        summed = {"all_reduce": sizes.pop("all_reduce")}
        return [(sizes, group, machine.inside), (summed, outside, machine.between)]
    if plan in ("FSDP2 + tensor", "DDP + pipeline"):
        sizes = volume(replace(shape, tokens=group * shape.tokens), plan, group)
        between = {"all_reduce": 0, "all_gather": sizes.pop("all_gather", 0)}
        between["reduce_scatter"] = sizes.pop("reduce_scatter", 0)
        if plan == "DDP + pipeline":
            between["all_reduce"] = sizes.pop("all_reduce")
        return [(sizes, group, machine.inside), (between, outside, machine.between)]
    return [(volume(shape, plan), ranks, machine.inside if outside == 1 else machine.between)]


def efficiency(shape: Shape, plan: str, ranks: int, machine: Machine, micro_batches: int = 32) -> tuple[float, float]:
    """Return the share of time spent computing: with no overlap at all, and with all that can be.

    The stages of a pipeline wait while it is filled and emptied, whatever overlaps.
    """
    compute = 6 * shape.weights * shape.tokens / machine.flops
    wires = exchanges(shape, plan, ranks, machine)
    exchange = sum(on_the_wire(sizes, among) / speed for sizes, among, speed in wires)
    stages = min(ranks, machine.devices) if "pipeline" in plan else 1
    busy = micro_batches / (micro_batches + stages - 1)
    return busy * compute / (compute + exchange), busy * compute / max(compute, exchange)
