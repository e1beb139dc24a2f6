"""General models and the graph on a GPU."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.guards.no_sync import no_sync
from tests.recsys.models.tiny_ratings import FITTED, TRAINED, Built, all_scores, build, fitted
from treadle.recsys import Interaction
from treadle.recsys.models import graph as graph_module
from treadle.recsys.models.graph import Graph

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
CUDA = torch.device("cuda")
every_trained = pytest.mark.parametrize("variant", TRAINED)


def random_graph(users: int = 300, items: int = 500, edges: int = 9000) -> Graph:
    generator = torch.Generator().manual_seed(0)
    # Few items have most of the edges, as in real data.
    keys = torch.rand(edges, generator=generator).pow(3).mul(items).long()
    keys += torch.randint(0, users, (edges,), generator=generator) * items
    keys = keys.unique()
    return Graph(keys // items, keys % items, users, items)


def features(nodes: int, size: int = 64, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(nodes, size, generator=generator).to(dtype)


def on_gpu(variant: str, **settings: Any) -> Built:
    built = build(variant, **settings)
    built.model.to(CUDA)
    built.train.to(CUDA)
    return built


@pytest.mark.parametrize("size", [1, 16, 50, 64, 100, 200])
@pytest.mark.parametrize("kernel", [True, False])
def test_products_are_those_of_the_cpu(monkeypatch: pytest.MonkeyPatch, size: int, kernel: bool) -> None:
    if not kernel:
        monkeypatch.setattr(graph_module, "_kernel_is_there", lambda: False)
    graph = random_graph()
    given = features(graph.n_nodes, size)
    single, powers = graph(given), graph.mean_of_powers(given, 3)
    graph.to(CUDA)
    found = graph(given.to(CUDA)), graph.mean_of_powers(given.to(CUDA), 3)
    torch.testing.assert_close(found[0].cpu(), single, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found[1].cpu(), powers, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kernel", [True, False])
def test_gradients_are_those_of_the_cpu(monkeypatch: pytest.MonkeyPatch, kernel: bool) -> None:
    if not kernel:
        monkeypatch.setattr(graph_module, "_kernel_is_there", lambda: False)
    graph = random_graph()
    weight = features(graph.n_nodes).flip(0)
    gradients = []
    for device in ("cpu", CUDA):
        graph.to(device)
        given = features(graph.n_nodes).to(device).requires_grad_()
        ((graph(given) + graph.mean_of_powers(given, 3)) * weight.to(device)).sum().backward()
        assert given.grad is not None
        gradients.append(given.grad.cpu())
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-4)


def test_the_kernel_gives_the_same_bits_each_time() -> None:
    graph = random_graph().to(CUDA)
    given = features(graph.n_nodes).to(CUDA)
    first = graph.mean_of_powers(given, 3)
    assert all(torch.equal(graph.mean_of_powers(given, 3), first) for _ in range(5))


def test_products_in_float64_are_exact() -> None:
    graph = random_graph()
    given = features(graph.n_nodes).double()
    expected = graph.mean_of_powers(given, 3)
    graph.to(CUDA)
    torch.testing.assert_close(graph.mean_of_powers(given.to(CUDA), 3).cpu(), expected, rtol=1e-10, atol=1e-10)


def test_bf16_messages_are_summed_in_float32() -> None:
    graph = random_graph()
    given = features(graph.n_nodes)
    exact = graph.mean_of_powers(given, 3)
    graph.to(CUDA)
    found = graph.mean_of_powers(given.to(CUDA), 3, messages=torch.bfloat16)
    assert found.dtype == torch.float32
    error = (found.cpu() - exact).norm() / exact.norm()
    assert 1e-6 < error < 5e-3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kernel", [True, False])
def test_products_stay_in_float32_under_autocast(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, kernel: bool
) -> None:
    if not kernel:
        monkeypatch.setattr(graph_module, "_kernel_is_there", lambda: False)
    graph = random_graph().to(CUDA)
    given = features(graph.n_nodes).to(CUDA).requires_grad_()
    exact = graph(given)
    with torch.autocast("cuda", dtype):
        found = graph(given)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, exact, rtol=1e-5, atol=1e-6)
    found.sum().backward()


@every_trained
def test_a_loss_on_the_gpu_is_that_on_the_cpu(variant: str) -> None:
    built = build(variant)
    built.model.eval()  # without dropout
    batch = built.batch()
    loss = built.model.calculate_loss(batch)
    built.model.to(CUDA)
    if hasattr(built.model, "update"):
        built.model.update.zero_()
    found = built.model.calculate_loss(batch.to(CUDA))
    tolerance = 2e-2 if "bf16" in variant else 1e-4
    torch.testing.assert_close(found.cpu(), loss, rtol=tolerance, atol=tolerance)


@every_trained
def test_a_step_never_reads_the_device(variant: str) -> None:
    built = on_gpu(variant)
    built.model.train()
    batch = built.batch()
    built.model.calculate_loss(batch).backward()  # what is prepared once
    torch.cuda.synchronize()
    with no_sync("cuda"):
        built.model.calculate_loss(batch).backward()


@every_trained
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_model_trains_in_half_precision(variant: str, dtype: torch.dtype) -> None:
    built = on_gpu(variant)
    built.model.train()
    optimizer = torch.optim.Adam([one for one in built.model.parameters() if one.requires_grad], lr=0.05)
    scaler = torch.amp.GradScaler("cuda", enabled=dtype == torch.float16)
    batch, losses = built.batch(), []
    for _ in range(40):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype):
            loss = built.model.calculate_loss(batch)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert all(one.isfinite().all() for one in built.model.parameters())
    assert losses[-1] < 0.97 * losses[0]


@every_trained
def test_a_step_can_be_captured_and_replayed(variant: str) -> None:
    built = on_gpu(variant)
    model = built.model.train()
    learns = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.Adam(learns, lr=0.01, fused=True, capturable=True)
    batch = built.batch()

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss: Tensor = model.calculate_loss(batch)
        loss.backward()
        optimizer.step()
        return loss

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        loss = step()
    losses = []
    for _ in range(30):
        graph.replay()
        losses.append(loss.item())
    assert all(torch.isfinite(one).all() for one in learns)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("variant", FITTED)
def test_a_model_is_fitted_on_the_gpu_as_on_the_cpu(variant: str) -> None:
    expected = all_scores(fitted(variant))
    built = build(variant)
    built.model.to(CUDA)
    built.model.fit(built.train.dataset)
    with torch.no_grad():
        users = torch.arange(built.model.n_users, device=CUDA)
        found = built.model.full_sort_predict(Interaction({"user_id": users})).view_as(expected)
    assert found.is_cuda
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-3, atol=1e-4)


@every_trained
def test_scores_on_the_gpu_are_those_on_the_cpu(variant: str) -> None:
    built = build(variant)
    expected = all_scores(built)
    built.model.to(CUDA)
    with torch.no_grad():
        users = torch.arange(built.model.n_users, device=CUDA)
        found = built.model.full_sort_predict(Interaction({"user_id": users})).view_as(expected)
    tolerance = 2e-2 if "bf16" in variant else 1e-4
    torch.testing.assert_close(found.cpu(), expected, rtol=tolerance, atol=tolerance)
