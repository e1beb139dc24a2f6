"""The head of a language model and its cross-entropy in one, without the scores of all rows at once."""

from math import ceil
from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from treadle.errors import ConfigError
from treadle.ops.linear_cross_entropy_kernel import AVAILABLE, score_rows_fused

SCORE_BYTES = {"cuda": 2**31, "cpu": 2**27}
"""How much room the scores of one chunk take at most, by the kind of device."""
ALIGNMENT = 16
"""On a GPU a row of scores takes a multiple of so many numbers, so that it is read and written in whole vectors."""
TILE_ROWS = 128


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    ignore_index: int = -100,
    chunk_rows: int | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Return `cross_entropy(linear(hidden, weight), targets)` in much less memory.

    Scores are computed for some rows at a time, and overwritten with their gradient, from which that of `hidden` and
    of `weight` is formed at once: the forward pass does the work of both, the backward pass only scales. So there is
    no second derivative, and no loss for each row. Under autocast the products are in its number format; sums, the
    loss and the gradient of the weight are in fp32 at least. On a GPU with Triton a kernel makes loss and gradient.

    Args:
        hidden: Any number of rows of hidden states, (..., width).
        weight: One row for each class, (classes, width); it may be the weight of an embedding too.
        targets: The class of each row of `hidden`; one that is neither a class nor `ignore_index` makes the loss nan.
        ignore_index: The target of rows that do not count.
        chunk_rows: Rows whose scores are in memory together; by default as many as fit into 2 GiB on a GPU, and into
            128 MiB elsewhere, in chunks of equal size.
        reduction: "mean" over the rows that count, or their "sum".

    Returns:
        A scalar, in fp64 if `hidden` is, else in fp32.

    >>> hidden, weight = torch.ones(4, 2, requires_grad=True), torch.zeros(5, 2, requires_grad=True)
    >>> loss = linear_cross_entropy(hidden, weight, torch.tensor([0, 1, 4, -100]))
    >>> round(loss.item(), 4)  # all five classes are alike: the logarithm of 5
    1.6094
    """
    # Seen by torch function modes like torch's own cross-entropy; `MeansSeen` looks for ignored targets by one.
    if has_torch_function_variadic(hidden, weight, targets):
        options: dict[str, Any] = {"ignore_index": ignore_index, "chunk_rows": chunk_rows, "reduction": reduction}
        tensors = (hidden, weight, targets)
        watched: Tensor = handle_torch_function(linear_cross_entropy, tensors, *tensors, **options)
        return watched
    _check_shapes(hidden, weight, targets)
    if reduction not in ("mean", "sum"):
        raise ConfigError(f"reduction={reduction!r} is not known; use 'mean' or 'sum'")
    if chunk_rows is not None and (type(chunk_rows) is not int or chunk_rows < 1):
        raise ConfigError(f"chunk_rows={chunk_rows!r} must be a whole number from 1, or None")
    dtype = _compute_dtype(hidden, weight)
    rows = targets.numel()
    chunk = _default_chunk(rows, weight.shape[0], dtype, hidden.device.type) if chunk_rows is None else chunk_rows
    learning = torch.is_grad_enabled()
    flags = learning and hidden.requires_grad, learning and weight.requires_grad
    mean = reduction == "mean"
    loss: Tensor = _loss_and_gradients(hidden, weight, targets, ignore_index, chunk, dtype, mean, *flags)[0]
    return loss


def _check_shapes(hidden: Tensor, weight: Tensor, targets: Tensor) -> None:
    if weight.dim() != 2 or hidden.dim() < 1 or hidden.shape[-1] != weight.shape[1]:
        raise ConfigError(
            f"hidden has shape {tuple(hidden.shape)} and weight {tuple(weight.shape)}; they must be (..., width) and "
            "(classes, width)"
        )
    if targets.shape != hidden.shape[:-1]:
        raise ConfigError(
            f"targets have shape {tuple(targets.shape)}, for hidden states of {tuple(hidden.shape)}; give one class "
            f"for each row: {tuple(hidden.shape[:-1])}"
        )
    if targets.dtype not in (torch.int64, torch.int32):
        raise ConfigError(f"targets are {_name(targets.dtype)}; give classes as int64, probabilities do not work here")
    if not hidden.device == weight.device == targets.device:
        raise ConfigError(
            f"hidden is on {hidden.device}, weight on {weight.device} and targets on {targets.device}; use one device"
        )


def _compute_dtype(hidden: Tensor, weight: Tensor) -> torch.dtype:
    """Return the number format of the products: that of autocast, or the one that both have."""
    kind = hidden.device.type
    if hidden.dtype != torch.float64 and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    if hidden.dtype != weight.dtype:
        raise ConfigError(
            f"hidden is {_name(hidden.dtype)} and weight is {_name(weight.dtype)}; convert one of them, or use autocast"
        )
    return hidden.dtype


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _default_chunk(rows: int, classes: int, dtype: torch.dtype, device: str) -> int:
    """Return the size of equal chunks whose scores fit into the room there is."""
    most = max(1, SCORE_BYTES.get(device, SCORE_BYTES["cpu"]) // (classes * dtype.itemsize))
    equal = ceil(rows / max(1, ceil(rows / most)))
    # Matrix products of a GPU work on whole tiles of rows.
    return max(1, min(rows, ceil(equal / TILE_ROWS) * TILE_ROWS))


# One operator to torch.compile, which need not look into it: it stays whole inside a compiled function.
@torch.library.custom_op("treadle::linear_cross_entropy", mutates_args=())
def _loss_and_gradients(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    ignore_index: int,
    chunk_rows: int,
    dtype: torch.dtype,
    mean: bool,
    hidden_learns: bool,
    weight_learns: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the loss, what the sum over its rows was divided by, and the gradients of that undivided sum.

    Undivided gradients keep their size whatever the number of rows, so that none of them underflows in fp16.
    """
    score_rows = score_rows_fused if _fuses(hidden, dtype) else score_rows_plainly
    with torch.autocast(hidden.device.type, enabled=False):
        states, head = hidden.reshape(-1, hidden.shape[-1]).to(dtype), weight.to(dtype)
        labels = targets.reshape(-1)
        losses = torch.empty(len(labels), dtype=_wide(dtype), device=hidden.device)
        hidden_gradient = states.new_empty(states.shape if hidden_learns else 0)
        # In fp32 at least, for it is added to once a chunk: in half precision later chunks would be lost to rounding.
        weight_gradient = losses.new_zeros(head.shape if weight_learns else 0)
        # One buffer for all chunks: the scores of a large vocabulary are the largest tensor of a step.
        buffer = _score_buffer(min(chunk_rows, len(labels)), head)
        for start in range(0, len(labels), chunk_rows):
            here = slice(start, start + chunk_rows)
            scores = torch.mm(states[here], head.t(), out=buffer[: len(labels[here]), : len(head)])
            score_rows(scores, labels[here], losses[here], ignore_index, hidden_learns or weight_learns)
            if hidden_learns:
                torch.mm(scores, head, out=hidden_gradient[here])
            if weight_learns:
                _add_product(weight_gradient, scores, states[here])
        counted = (labels != ignore_index).sum().to(losses.dtype)
    divisor = counted if mean else torch.ones_like(counted)
    shaped = hidden_gradient.view(hidden.shape) if hidden_learns else hidden_gradient
    # A mean over no row is nan, as everywhere; its gradient is zero, and not zero divided by zero.
    return losses.sum() / divisor, divisor.clamp(min=1), shaped, weight_gradient


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Return the number format of sums: at least fp32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _fuses(hidden: Tensor, dtype: torch.dtype) -> bool:
    return AVAILABLE and hidden.is_cuda and dtype != torch.float64


def _score_buffer(rows: int, head: Tensor) -> Tensor:
    """Return room for the scores of a chunk, with rows of aligned length on a GPU."""
    unit = ALIGNMENT if head.is_cuda else 1
    return head.new_empty(rows, ceil(len(head) / unit) * unit)


def score_rows_plainly(scores: Tensor, targets: Tensor, losses: Tensor, ignore_index: int, learns: bool) -> None:
    """Write the loss of each row of `scores` into `losses`, and the gradient of their sum over the scores.

    Args:
        scores: The scores of all classes, one row each; overwritten if `learns`.
        targets: The class of each row.
        losses: Where the losses go, in the number format of sums.
        ignore_index: The target of rows whose loss and gradient are zero.
        learns: Whether the gradient is wanted.
    """
    counts = targets != ignore_index
    known = (targets >= 0) & (targets < scores.shape[1])
    column = targets.where(known, 0).long().unsqueeze(1)
    numbers = scores.to(losses.dtype)
    total = numbers.logsumexp(1, keepdim=True)
    loss = (total - numbers.gather(1, column)).squeeze(1)
    losses.copy_(loss.masked_fill(~known, torch.nan).masked_fill(~counts, 0.0))
    if learns:
        gradient = numbers.sub(total).exp_()
        gradient.scatter_add_(1, column, -known.to(gradient.dtype).unsqueeze(1))
        scores.copy_(gradient.masked_fill_(~counts.unsqueeze(1), 0.0))


def _add_product(total: Tensor, gradient: Tensor, states: Tensor) -> None:
    """Add the gradient of the weight from some rows to `total`."""
    if gradient.dtype == total.dtype:
        total.addmm_(gradient.t(), states)
    elif gradient.dtype == torch.bfloat16:
        total.add_(gradient.t() @ states)
    elif gradient.is_cuda:
        # Summed over thousands of rows, a product would overflow in fp16.
        total.add_(torch.mm(gradient.t(), states, out_dtype=total.dtype))
    else:
        total.addmm_(gradient.t().to(total.dtype), states.to(total.dtype))


@_loss_and_gradients.register_fake
def _(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    ignore_index: int,
    chunk_rows: int,
    dtype: torch.dtype,
    mean: bool,
    hidden_learns: bool,
    weight_learns: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    scalar = hidden.new_empty((), dtype=_wide(dtype))
    hidden_gradient = hidden.new_empty(hidden.shape if hidden_learns else 0, dtype=dtype)
    weight_gradient = weight.new_empty(weight.shape if weight_learns else 0, dtype=_wide(dtype))
    return scalar, torch.empty_like(scalar), hidden_gradient, weight_gradient


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    hidden, weight, *_, hidden_learns, weight_learns = inputs
    ctx.dtypes = hidden.dtype if hidden_learns else None, weight.dtype if weight_learns else None
    ctx.save_for_backward(*output[1:])
    # The gradients that come out of the operator have none themselves: nothing is to be filled with zeros for them.
    ctx.set_materialize_grads(False)


def _scale(ctx: Any, loss_gradient: Tensor, *unused: Any) -> tuple[Tensor | None, ...]:
    if torch.is_grad_enabled():
        raise ConfigError("linear_cross_entropy has no second derivative; use cross_entropy(linear(hidden, weight))")
    divisor, *gradients = ctx.saved_tensors
    factor = loss_gradient / divisor
    hidden, weight = (
        None if dtype is None else gradient.to(dtype) * factor
        for gradient, dtype in zip(gradients, ctx.dtypes, strict=True)
    )
    return hidden, weight, None, None, None, None, None, None, None


_loss_and_gradients.register_autograd(_scale, setup_context=_save_for_backward)
