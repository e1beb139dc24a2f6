"""The kernel behind `Graph` on a GPU: a weighted sum of neighbours for each node, and a base added to it.

It is written in Triton, which comes with torch for CUDA. Where that is missing, this can still be imported.
"""

import torch
from torch import Tensor

try:
    import triton  # type: ignore[import-not-found, unused-ignore]
    import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
except ImportError:
    AVAILABLE = False
else:
    AVAILABLE = True

EDGES = 32
"""How many neighbours are read together; on an H200 more of them, or more than one warp a node, is slower."""
WIDEST = 128
"""How many numbers of a node one program adds up at most."""


def sum_neighbours(
    starts: Tensor,
    neighbours: Tensor,
    weights: Tensor,
    order: Tensor,
    features: Tensor,
    base: Tensor | None,
    *,
    scale: float,
    base_scale: float,
    dtype: torch.dtype,
) -> Tensor:
    """Return `scale * A @ features + base_scale * base` in `dtype`; sums are in float32.

    Args:
        starts: Where the edges of each node begin, and where all of them end.
        neighbours: The node at the other end of each edge.
        weights: The weight of each edge, float32.
        order: The nodes, those with most edges first: they take longest, and must not begin last.
        features: `[nodes, size]`, of any floating type.
        base: `[nodes, size]`, or None for nothing.
        scale, base_scale: Factors of the two parts.
        dtype: The type of the result.
    """
    features = features.contiguous()
    nodes, size = len(order), features.shape[1]
    made = torch.empty(nodes, size, dtype=dtype, device=features.device)
    if not made.numel():
        return made
    block = min(WIDEST, max(16, triton.next_power_of_2(size)))
    grid = (nodes, triton.cdiv(size, block))
    with torch.cuda.device_of(features):  # type: ignore[no-untyped-call]
        _sum_neighbours[grid](
            starts,
            neighbours,
            weights,
            order,
            features,
            features if base is None else base.contiguous(),
            made,
            size,
            scale,
            base_scale,
            has_base=base is not None,
            edges=EDGES,
            block=block,
            num_warps=1,
        )
    return made


if AVAILABLE:

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _sum_neighbours(  # type: ignore[no-untyped-def]
        starts,
        neighbours,
        weights,
        order,
        features,
        base,
        made,
        size,
        scale,
        base_scale,
        has_base: tl.constexpr,
        edges: tl.constexpr,
        block: tl.constexpr,
    ):
        # One program a node: each sum has one order, so that the result is the same every time.
        node = tl.load(order + tl.program_id(0)).to(tl.int64)
        first = tl.load(starts + node)
        last = tl.load(starts + node + 1)
        lanes = tl.program_id(1) * block + tl.arange(0, block)
        inside = lanes < size
        total = tl.zeros([block], dtype=tl.float32)
        for start in range(first, last, edges):
            edge = start + tl.arange(0, edges)
            there = edge < last
            other = tl.load(neighbours + edge, mask=there, other=0).to(tl.int64)
            weight = tl.load(weights + edge, mask=there, other=0.0)
            place = features + other[:, None] * size + lanes[None, :]
            value = tl.load(place, mask=there[:, None] & inside[None, :], other=0.0).to(tl.float32)
            total += tl.sum(value * weight[:, None], axis=0)
        total *= scale
        if has_base:
            own = tl.load(base + node * size + lanes, mask=inside, other=0.0).to(tl.float32)
            total += base_scale * own
        tl.store(made + node * size + lanes, total.to(made.dtype.element_ty), mask=inside)
