"""What a step costs on many devices, on paper: the bytes that each plan exchanges, and how long they take."""

from dataclasses import dataclass

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


def volume(shape: Shape, plan: str) -> dict[str, int]:
    """Return the bytes of the collectives of one step in fp32 on the first rank, by kind, for one micro-batch a step.

    DDP sums every gradient, and one number: the weight of the window. FSDP2 gathers all weights for the forward pass,
    those of the blocks again for the backward pass, and scatters all gradients. Tensor parallelism sums hidden states
    after the two halves of each block, forward, and their gradients before them, backward. A stage sends hidden states
    on and gets their gradients back; weights that two stages share are summed.
    """
    weights, hidden = FLOAT * shape.weights, FLOAT * shape.tokens * shape.width
    if plan == "DDP":
        return {"all_reduce": weights + FLOAT}
    if plan == "FSDP2":
        gathered = weights + FLOAT * shape.block_weights
        return {"all_gather": gathered, "all_reduce": FLOAT, "reduce_scatter": weights}
    if plan == "tensor":
        return {"all_reduce": 4 * shape.layers * hidden}
    if plan == "pipeline":
        return {"all_reduce": FLOAT * shape.shared_weights, "receive": hidden, "send": hidden}
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


def seconds(shape: Shape, plan: str, ranks: int, machine: Machine) -> tuple[float, float]:
    """Return how long a rank computes in one step, and how long it would exchange if nothing overlapped."""
    compute = 6 * shape.weights * shape.tokens / machine.flops
    speed = machine.inside if ranks <= machine.devices else machine.between
    return compute, on_the_wire(volume(shape, plan), ranks) / speed


def efficiency(shape: Shape, plan: str, ranks: int, machine: Machine) -> tuple[float, float]:
    """Return the share of time spent computing: with no overlap at all, and with all that can be."""
    compute, exchange = seconds(shape, plan, ranks, machine)
    return compute / (compute + exchange), compute / max(compute, exchange)
