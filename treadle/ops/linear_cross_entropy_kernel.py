"""The kernel behind `linear_cross_entropy`: the loss of each row of scores, and its gradient in their place.

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

LARGEST_BLOCK = 8192
LEAST_BLOCK = 128
BLOCK_OF_A_WARP = 512
"""Classes for 32 threads: 16 each, which is two vectors of 16 bytes in bf16."""


def score_rows_fused(scores: Tensor, targets: Tensor, losses: Tensor, ignore_index: int, learns: bool) -> None:
    """Do what `score_rows_plainly` does in one kernel, without another copy of the scores.

    What lies in memory between the end of a row and the beginning of the next is overwritten too.
    """
    rows, classes = scores.shape
    block = min(LARGEST_BLOCK, max(LEAST_BLOCK, triton.next_power_of_2(classes)))
    warps = max(1, block // BLOCK_OF_A_WARP)
    with torch.cuda.device_of(scores):  # type: ignore[no-untyped-call]
        _score_row[(rows,)](
            scores,
            targets,
            losses,
            scores.stride(0),
            classes,
            ignore_index,
            learns=learns,
            block=block,
            num_warps=warps,
        )


if AVAILABLE:

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _score_row(  # type: ignore[no-untyped-def]
        scores, targets, losses, stride, classes, ignore_index, learns: tl.constexpr, block: tl.constexpr
    ):
        # One program a row: the row is read twice, the second time from the cache, and written once. Its aligned length
        # bounds what is read and written, for a bound that is no multiple of a vector would cut all vectors up.
        row = tl.program_id(0).to(tl.int64)
        line = scores + row * stride
        lanes = tl.arange(0, block)
        target = tl.load(targets + row)
        if target == ignore_index:
            tl.store(losses + row, 0.0)
            if learns:
                nothing = tl.zeros([block], dtype=scores.dtype.element_ty)
                for start in range(0, stride, block):
                    tl.store(line + start + lanes, nothing, mask=start + lanes < stride)
        else:
            # Before the reductions below, which all warps wait for: after them another one may have overwritten it.
            known = (target >= 0) & (target < classes)
            chosen = tl.load(line + target, mask=known, other=float("nan")).to(tl.float32)
            # Each lane keeps its own greatest score and the sum of exponentials below it. Of the two that a new score
            # asks for, one is always exp(0): a single exponential does.
            greatest = tl.full([block], -1e30, dtype=tl.float32)
            total = tl.zeros([block], dtype=tl.float32)
            for start in range(0, stride, block):
                column = start + lanes
                score = tl.load(line + column, mask=column < stride, other=0.0).to(tl.float32)
                score = tl.where(column < classes, score, float("-inf"))
                shrunk = tl.exp(-tl.abs(score - greatest))
                total = tl.where(score > greatest, total * shrunk + 1.0, total + shrunk)
                greatest = tl.maximum(greatest, score)
            peak = tl.max(greatest, axis=0)
            logarithm = peak + tl.log(tl.sum(total * tl.exp(greatest - peak), axis=0))
            tl.store(losses + row, logarithm - chosen)
            if learns:
                for start in range(0, stride, block):
                    column = start + lanes
                    inside = column < stride
                    score = tl.load(line + column, mask=inside, other=0.0).to(tl.float32)
                    gradient = tl.exp(score - logarithm) - tl.where(column == target, 1.0, 0.0)
                    tl.store(line + column, gradient.to(scores.dtype.element_ty), mask=inside)
