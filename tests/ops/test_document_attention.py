"""Attention within documents: masks, offsets of fixed shape, and which kernel is taken."""

import logging
import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from treadle.errors import ConfigError
from treadle.ops import document_attention
from treadle.ops.document_attention import attend, choose_kernel, document_layout, document_offsets

CPU = torch.device("cpu")
POSITIONS = torch.tensor([[0, 1, 2, 0, 1, 0, 1, 2], [0, 1, 2, 3, 4, 5, 6, 0]])


def parts(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    torch.manual_seed(0)
    return list(torch.randn(3, 2, 4, 8, 6, dtype=dtype).unbind(0))


def alone(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """What each document sees by itself."""
    result = torch.empty_like(query)
    for row, bounds in enumerate(([0, 3, 5, 8], [0, 7, 8])):
        for begin, end in pairwise(bounds):
            pieces = (one[row, :, begin:end] for one in (query, key, value))
            result[row, :, begin:end] = F.scaled_dot_product_attention(*pieces, is_causal=True)
    return result


def test_with_a_mask_documents_see_what_they_see_alone() -> None:
    query, key, value = parts()
    seen = attend(query, key, value, document_layout(POSITIONS))
    torch.testing.assert_close(seen, alone(query, key, value), rtol=0, atol=1e-14)


@pytest.mark.parametrize("most", [3, 4, 8])
def test_offsets_have_a_shape_that_does_not_depend_on_the_documents(most: int) -> None:
    offsets = document_offsets(POSITIONS, most)
    assert offsets.shape == (2 * most + 1,)
    assert offsets.tolist() == [0, 3, 5, 8, 15] + [16] * (2 * most - 4)
    assert offsets.dtype == torch.int32
    assert document_offsets(torch.arange(8).expand(2, 8), most).tolist() == [0, 8] + [16] * (2 * most - 1)


def by_offsets(query: Tensor, key: Tensor, value: Tensor, begins: Tensor, _: Tensor, longest: int, __: int) -> Tensor:
    """What a kernel for sequences of unequal length computes; of an empty one nothing."""
    pieces = []
    for begin, end in pairwise(begins.tolist()):
        assert end - begin <= longest
        one = (part[begin:end].transpose(0, 1) for part in (query, key, value))
        pieces.append(F.scaled_dot_product_attention(*one, is_causal=True).transpose(0, 1))
    return torch.cat(pieces)


def whole(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> Tensor:
    """A kernel that mixes everything."""
    one = (part.transpose(0, 1) for part in (query, key, value))
    return F.scaled_dot_product_attention(*one, is_causal=True).transpose(0, 1)


def broken(*_: Any) -> Tensor:
    raise RuntimeError("no kernel for this device")


def put_in_place(kernel: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a kernel of ours stand for torch's, which does not run on the CPU, and choose anew."""
    monkeypatch.setattr(document_attention, "_varlen", lambda: kernel)
    monkeypatch.setattr(document_attention, "DEVICES", ("cpu",))
    document_attention._tried.cache_clear()


@pytest.fixture(autouse=True)
def _choose_anew() -> Any:
    yield
    document_attention._tried.cache_clear()


def test_by_offsets_documents_see_what_they_see_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_place(by_offsets, monkeypatch)
    query, key, value = parts()
    layout = document_layout(POSITIONS, max_documents=5, kernel="varlen")
    assert layout.mask is None
    torch.testing.assert_close(attend(query, key, value, layout), alone(query, key, value), rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("kernel", "chosen", "said"),
    [
        (by_offsets, "varlen", ""),
        (whole, "mask", r"varlen attention is off by \d"),
        (broken, "mask", "varlen attention does not run here: no kernel for this device"),
    ],
)
def test_a_kernel_is_taken_where_it_agrees_with_the_mask(
    kernel: Any, chosen: str, said: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    put_in_place(kernel, monkeypatch)
    with caplog.at_level(logging.INFO):
        assert choose_kernel(CPU, torch.bfloat16, 8) == chosen
        assert choose_kernel(CPU, torch.bfloat16, 8) == chosen
    assert [one.levelname for one in caplog.records] == (["INFO"] if said else [])
    if said:
        assert caplog.records[0].message.startswith("documents are kept apart by a mask")
        assert re.search(said, caplog.text)
    assert choose_kernel(CPU, torch.float32, 8) == "mask"
    assert choose_kernel(CPU, torch.bfloat16, 8, dropout=0.1) == "mask"


def test_a_cpu_gets_the_mask() -> None:
    assert choose_kernel(CPU, torch.bfloat16, 64) == "mask"
    with pytest.raises(ConfigError, match="kernel='flash' does not exist"):
        document_layout(POSITIONS, kernel="flash")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_whatever_is_chosen_sees_what_documents_see_alone() -> None:
    device = torch.device("cuda")
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 4, 8, 64, dtype=torch.bfloat16, device=device).unbind(0)
    kernel = choose_kernel(device, torch.bfloat16, 64)
    layout = document_layout(POSITIONS.to(device), max_documents=4, kernel=kernel)
    expected = alone(*(one.double() for one in (query, key, value)))
    torch.testing.assert_close(attend(query, key, value, layout).double(), expected, rtol=0.02, atol=0.02)
