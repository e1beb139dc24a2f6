"""Models of sequences and clicks on a GPU: in half precision, without waiting, and in a captured step."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.guards.no_sync import no_sync
from tests.recsys.models.tiny_shop import VARIANTS, Built, build
from treadle.recsys import Interaction

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
    pytest.mark.parametrize("variant", VARIANTS),
]

Make = Callable[[str], tuple[Built, Interaction]]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def built(variant: str) -> tuple[Built, Interaction]:
        name, settings = VARIANTS[variant]
        found = build(tmp_path, name, **settings)
        found.model.cuda().train()
        for module in found.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
            if hasattr(module, "attn_dropout_prob"):
                module.attn_dropout_prob = 0.0
        return found, found.batch().to("cuda")

    return built


def gradients(model: nn.Module) -> list[Tensor]:
    return [one.grad.clone() for one in model.parameters() if one.grad is not None]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_loss_and_gradients_are_finite_in_half_precision(make: Make, variant: str, dtype: torch.dtype) -> None:
    built, batch = make(variant)
    exact = built.model.calculate_loss(batch)
    with torch.autocast("cuda", dtype):
        loss = built.model.calculate_loss(batch)
    (loss * 1024).backward()
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, exact, rtol=0.05, atol=0.01)
    assert all(one.isfinite().all() for one in gradients(built.model))


def test_a_loss_never_waits(make: Make, variant: str) -> None:
    built, batch = make(variant)
    built.model.calculate_loss(batch).backward()
    with no_sync("cuda"):
        built.model.calculate_loss(batch).backward()


def test_a_captured_step_gives_the_gradients_of_an_eager_one(make: Make, variant: str) -> None:
    built, batch = make(variant)
    model = built.model
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            model.zero_grad(set_to_none=True)
            model.calculate_loss(batch).backward()
    torch.cuda.current_stream().wait_stream(side)
    expected = gradients(model)
    model.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model.calculate_loss(batch).backward()
    graph.replay()
    for found, wanted in zip(gradients(model), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-5)
