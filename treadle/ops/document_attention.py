"""Attention within documents that share a row: where each begins follows from the positions, which begin anew."""

import inspect
import logging
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from treadle.errors import check_choice

logger = logging.getLogger(__name__)

KERNELS = ("mask", "varlen")
DEVICES = ("cuda",)
"""Where the varlen kernel is tried at all."""
TOLERANCE = 2e-2
"""How far, in half precision, a kernel may be from the masked attention to be taken."""


class DocumentLayout(NamedTuple):
    """Which places of a batch of rows belong together, in the form that a kernel takes.

    Attributes:
        mask: Which place looks at which, of shape (rows, 1, length, length); None for the varlen kernel.
        offsets: Where each document begins in the rows laid end to end, and where the last one ends; None for a mask.
        longest: The most tokens that a document may have.
    """

    mask: Tensor | None
    offsets: Tensor | None
    longest: int


def document_ids(positions: Tensor) -> Tensor:
    """Return the number of the document, within its row, that each place belongs to.

    >>> document_ids(torch.tensor([[0, 1, 2, 0, 1, 0]])).tolist()
    [[0, 0, 0, 1, 1, 2]]
    """
    return (positions == 0).cumsum(-1) - 1


def document_mask(positions: Tensor) -> Tensor:
    """Return which place looks at which: at those before it and at itself, in its own document.

    >>> document_mask(torch.tensor([[0, 1, 0]]))[0, 0].int().tolist()
    [[1, 0, 0], [1, 1, 0], [0, 0, 1]]
    """
    ids = document_ids(positions)
    length = positions.shape[-1]
    causal = torch.ones(length, length, dtype=torch.bool, device=positions.device).tril()
    return ((ids[:, :, None] == ids[:, None, :]) & causal)[:, None]


def document_offsets(positions: Tensor, max_documents: int) -> Tensor:
    """Return where each document begins in the rows laid end to end; the shape does not depend on how many there are.

    What is left of it has the place behind the last token, as of documents without one. Nothing is read.

    >>> document_offsets(torch.tensor([[0, 1, 2], [0, 0, 1]]), max_documents=2).tolist()
    [0, 3, 4, 6, 6]

    Args:
        positions: The positions of the tokens, rows by length.
        max_documents: The most documents in a row.
    """
    begins = (positions == 0).flatten()
    count, size = begins.numel(), positions.shape[0] * max_documents
    places = torch.arange(count, device=begins.device)
    number = begins.cumsum(0) - 1
    offsets = torch.full((size + 1,), count, dtype=torch.int64, device=begins.device)
    # Every place that begins nothing writes the same number to the last entry.
    return offsets.scatter(0, torch.where(begins, number, size), torch.where(begins, places, count)).to(torch.int32)


def document_layout(
    positions: Tensor, *, max_documents: int | None = None, kernel: str = "mask", longest: int | None = None
) -> DocumentLayout:
    """Return the layout of a batch, to be made once for all layers.

    Args:
        positions: The place of each token in its document, rows by length.
        max_documents: The most documents in a row; the varlen kernel needs it.
        kernel: "mask", or "varlen" where `choose_kernel` says so.
        longest: The most tokens of a document; None is the length of a row.
    """
    check_choice("kernel", kernel, KERNELS)
    length = longest or positions.shape[-1]
    if kernel == "varlen" and max_documents is not None:
        return DocumentLayout(None, document_offsets(positions, max_documents), length)
    return DocumentLayout(document_mask(positions), None, length)


def attend(query: Tensor, key: Tensor, value: Tensor, layout: DocumentLayout, *, dropout: float = 0.0) -> Tensor:
    """Return what each place sees of its document up to itself.

    Args:
        query: Rows by heads by length by size of a head; `key` and `value` alike.
        key: The keys.
        value: The values.
        layout: Which places belong together.
        dropout: The share of weights that is left out; only with a mask.
    """
    if layout.offsets is None:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=layout.mask, dropout_p=dropout)
    rows, heads, length, size = query.shape
    parts = [part.transpose(1, 2).reshape(rows * length, heads, size) for part in (query, key, value)]
    seen = _varlen()(*parts, layout.offsets, layout.offsets, layout.longest, layout.longest)
    return seen.view(rows, length, heads, size).transpose(1, 2)


def choose_kernel(device: torch.device, dtype: torch.dtype, head_size: int, *, dropout: float = 0.0) -> str:
    """Return the kernel for this device and format: "varlen" where torch has it and it is right there, else "mask".

    It is tried out once, forward and backward, against the masked attention.
    """
    half = dtype in (torch.float16, torch.bfloat16)
    if device.type not in DEVICES or not half or dropout:
        return "mask"
    return _tried(device, dtype, head_size)


@cache
def _tried(device: torch.device, dtype: torch.dtype, head_size: int) -> str:
    try:
        off = _disagreement(device, dtype, head_size)
    except (ImportError, RuntimeError, TypeError, ValueError) as error:
        logger.info("documents are kept apart by a mask: varlen attention does not run here: %s", error)
        return "mask"
    if off <= TOLERANCE:
        return "varlen"
    logger.info("documents are kept apart by a mask: varlen attention is off by %.1e here", off)
    return "mask"


def _disagreement(device: torch.device, dtype: torch.dtype, head_size: int) -> float:
    """Return by how much results and gradients of the varlen kernel differ from those with a mask."""
    positions = torch.tensor([[*range(5), *range(9), *range(2)], [*range(16)]], device=device)
    generator = torch.Generator().manual_seed(0)
    parts = torch.randn(3, 2, 2, 16, head_size, generator=generator).to(device, dtype)
    found = []
    for kernel in ("mask", "varlen"):
        with torch.enable_grad():
            leaves = [part.clone().requires_grad_() for part in parts]
            query, key, value = leaves
            result = attend(query, key, value, document_layout(positions, max_documents=4, kernel=kernel))
            gradients = torch.autograd.grad(result.float().square().sum(), leaves)
        found.append(torch.cat([result.detach().flatten(), *(one.flatten() for one in gradients)]).float())
    scale = found[0].abs().max()
    return float((found[0] - found[1]).abs().max() / scale)


@cache
def _varlen() -> Callable[..., Tensor]:
    """Return torch's attention over sequences of unequal length, causal; how that is said changed with its versions."""
    from torch.nn.attention.varlen import varlen_attn

    parameters = inspect.signature(varlen_attn).parameters
    causal: dict[str, Any] = {"window_size": (-1, 0)} if "window_size" in parameters else {"is_causal": True}
    function: Callable[..., Tensor] = partial(varlen_attn, **causal)  # type: ignore[assignment]
    return function
