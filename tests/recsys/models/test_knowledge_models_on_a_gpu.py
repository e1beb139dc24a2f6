"""Models with a knowledge graph on a GPU."""

import pytest
import torch

from tests.guards.no_sync import no_sync
from tests.recsys.models.tiny_graph import TRAINED, Built, build
from tests.recsys.models.tiny_ratings import every_pair

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
CUDA = torch.device("cuda")
every = pytest.mark.parametrize("variant", TRAINED)


def on_gpu(variant: str) -> Built:
    built = build(variant)
    built.model.to(CUDA)
    built.train.to(CUDA)
    return built


@every
def test_loss_and_scores_are_those_of_the_cpu(variant: str) -> None:
    host, device = build(variant), on_gpu(variant)
    for built in (host, device):
        built.model.eval()  # without noise, which differs by device
    batch = host.batch()
    assert all(torch.equal(device.batch()[name].cpu(), batch[name]) for name in batch)
    torch.testing.assert_close(device.loss(device.batch()).cpu(), host.loss(batch), rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        scores = device.model.predict(every_pair(device).to(CUDA)).cpu()
        torch.testing.assert_close(scores, host.model.predict(every_pair(host)), rtol=1e-4, atol=1e-4)


@every
@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
def test_loss_and_gradients_are_finite_and_close_in_half_precision(variant: str, precision: torch.dtype) -> None:
    built = on_gpu(variant)
    built.model.eval()
    exact = built.loss(built.batch()).item()
    with torch.autocast("cuda", precision):
        loss = built.loss(built.batch())
    loss.backward()
    assert loss.item() == pytest.approx(exact, rel=0.05, abs=0.02)
    assert all(one.grad.isfinite().all() for one in built.model.parameters() if one.grad is not None)


@every
def test_a_step_never_waits_for_the_gpu(variant: str) -> None:
    built = on_gpu(variant)
    built.model.train()
    built.loss(built.batch()).backward()
    batch = built.batch()
    with no_sync():
        built.loss(batch).backward()


def test_kgats_attention_is_that_of_the_cpu() -> None:
    host, device = build("KGAT"), on_gpu("KGAT")
    for built in (host, device):
        built.model.update_attentive_A()
    torch.testing.assert_close(device.model.attention.cpu(), host.model.attention, rtol=1e-5, atol=1e-6)
