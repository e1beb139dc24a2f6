"""Products with sparse matrices under autocast: they run in fp32, in models that know nothing of it."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

from tests.guards.no_sync import DEVICES
from treadle import Phase
from treadle.errors import ConfigError
from treadle.precision import LossScaling, Precision
from treadle.precision.sparse import UNSEEN, SparseMode, holds_sparse
from treadle.trainer import Trainer

CPU = torch.device("cpu")
USERS, ITEMS, SIZE = 6, 5, 4
LAYOUTS = ("coo", "csr")
HALVES = ("bf16", "fp16")


@pytest.fixture(autouse=True)
def _quietly() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
        warnings.filterwarnings("ignore", message="Sparse invariant checks are implicitly disabled")
        yield


def edges(layout: str) -> Tensor:
    """The graph of users and items, normalised, as LightGCN has it."""
    generator = torch.Generator().manual_seed(0)
    linked = (torch.rand(USERS, ITEMS, generator=generator) < 0.5).float()
    whole = torch.zeros(USERS + ITEMS, USERS + ITEMS)
    whole[:USERS, USERS:], whole[USERS:, :USERS] = linked, linked.T
    degree = whole.sum(1).clamp_min(1).rsqrt()
    whole = degree[:, None] * whole * degree[None, :]
    return whole.to_sparse() if layout == "coo" else whole.to_sparse_csr()


PRODUCTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "torch.sparse.mm": torch.sparse.mm,
    "torch.sparse.addmm": lambda matrix, dense: torch.sparse.addmm(torch.zeros_like(dense), matrix, dense),
    "@": lambda matrix, dense: matrix @ dense,
    "torch.mm": torch.mm,
    "torch.matmul": torch.matmul,
    "matmul": lambda matrix, dense: matrix.matmul(dense),
    "torch.spmm": torch.spmm,
    "torch.addmm": lambda matrix, dense: torch.addmm(torch.zeros_like(dense), matrix, dense),
    "keywords": lambda matrix, dense: torch.mm(input=matrix, mat2=dense),
}


class Graph(nn.Module):
    """A recommender that spreads embeddings over a graph.

    Args:
        layout: "coo" or "csr".
        product: How the graph and the embeddings are multiplied.
        home: Where the graph is: a "buffer", an "attribute", a "list", or "made" in every pass.
    """

    def __init__(self, layout: str = "coo", product: str = "torch.sparse.mm", home: str = "attribute") -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.embeddings = nn.Embedding(USERS + ITEMS, SIZE)
            self.mix = nn.Linear(SIZE, SIZE)
        self.layout, self.home = layout, home
        self.multiply = PRODUCTS[product]
        if home == "buffer":
            self.register_buffer("graph", edges(layout), persistent=False)
        elif home == "list":
            self.graphs = [edges(layout)]
        elif home == "attribute":
            self.graph = edges(layout)

    def _graph(self) -> Tensor:
        device = self.embeddings.weight.device
        if self.home == "made":
            return edges(self.layout).to(device)
        graph = self.graphs[0] if self.home == "list" else self.graph
        return graph.to(device)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        # The linear layer makes what is multiplied a tensor in half precision.
        states = self.mix(self.embeddings.weight)
        states = states + self.multiply(self._graph(), states)
        return (states[users] * states[USERS + items]).sum(1)


class RankingTrainer(Trainer):
    """Trains a model of pairs."""

    def calculate_train_batch_loss(self, batch: Any) -> Any:
        users, items, labels = batch
        scores = self.model(users, items)
        loss = nn.functional.binary_cross_entropy_with_logits(scores.float(), labels)
        return {"loss": loss, "model_outputs": scores, "batch_size": len(users)}

    calculate_eval_batch_loss = calculate_train_batch_loss


def pairs() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    users = torch.randint(USERS, (32,), generator=generator)
    items = torch.randint(ITEMS, (32,), generator=generator)
    return TensorDataset(users, items, (users % 2 == items % 2).float())


def train(model: nn.Module, precision: str, device: str = "cpu", **kwargs: Any) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    if precision == "fp16":
        kwargs.setdefault("loss_scaling", LossScaling(initial=64.0))
    trainer = RankingTrainer(model, None, optimizer, callbacks=(), seed=1, device=device, precision=precision, **kwargs)
    history = trainer.train(pairs(), 3, eval_dataset=pairs(), train_dataloader_kwargs={"num_workers": 0}).history
    return trainer, history


# In a run -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", HALVES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("product", list(PRODUCTS))
def test_a_model_with_a_sparse_product_trains_in_half_precision_unchanged(
    product: str, layout: str, precision: str, device: str
) -> None:
    trainer, history = train(Graph(layout, product), precision, device)
    _, expected = train(Graph(layout, product), "fp32", device)
    for name in ("train_loss_epoch", "eval_loss_epoch"):
        assert history[name] == pytest.approx(expected[name], abs=0.02)
    assert all(weight.isfinite().all() for weight in trainer.model.parameters())


@pytest.mark.parametrize("precision", HALVES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("product", ["torch.sparse.mm", "@"])
@pytest.mark.parametrize("home", ["buffer", "attribute", "list", "made"])
def test_it_does_not_matter_where_the_sparse_tensor_is(home: str, product: str, layout: str, precision: str) -> None:
    _, history = train(Graph(layout, product, home), precision)
    _, expected = train(Graph(layout, "torch.sparse.mm", "attribute"), precision)
    assert history == expected


@pytest.mark.parametrize("precision", HALVES)
def test_a_sparse_tensor_in_the_batch_is_found(precision: str) -> None:
    class OfBatches(RankingTrainer):
        def calculate_train_batch_loss(self, batch: Any) -> Any:
            graph, *rest = batch
            self.model.graph = graph
            return super().calculate_train_batch_loss(rest)

    model = Graph("csr", "@", "attribute")
    graph = model.graph
    del model.graph

    class Batches:
        def __iter__(self) -> Iterator[Any]:
            return ((graph, *pairs()[first : first + 8]) for first in range(0, 32, 8))

    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    trainer = OfBatches(model, None, optimizer, callbacks=(), device="cpu", precision=precision)
    assert trainer.train(Batches(), 2).steps == 8


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("product", ["torch.sparse.mm", "@"])
def test_a_sparse_product_that_is_computed_again_for_the_gradient_is_safe_too(
    product: str, layout: str, device: str
) -> None:
    class Again(Graph):
        def forward(self, users: Tensor, items: Tensor) -> Tensor:
            outputs: Tensor = checkpoint(super().forward, users, items, use_reentrant=False)
            return outputs

    _, history = train(Again(layout, product), "bf16", device)
    _, expected = train(Graph(layout, product), "bf16", device)
    for name, values in expected.items():
        assert history[name] == pytest.approx(values, abs=0 if device == "cpu" else 1e-2)


def test_a_phase_with_weights_of_its_own_trains_those_alone_through_a_sparse_product() -> None:
    class Mixing(RankingTrainer):
        def phases(self, epoch: int) -> Any:
            (phase,) = super().phases(epoch)
            yield Phase("mix", phase.stream, phase.loss, phase.optimizer, parameters=list(self.model.mix.parameters()))

    def weights(precision: str) -> Any:
        model = Graph("csr", "@")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        trainer = Mixing(model, None, optimizer, callbacks=(), seed=1, device="cpu", precision=precision)
        trainer.train(pairs(), 1)
        return model

    fresh, half, single = Graph("csr", "@"), weights("bf16"), weights("fp32")
    assert torch.equal(half.embeddings.weight, fresh.embeddings.weight)
    torch.testing.assert_close(half.mix.weight, single.mix.weight, rtol=0, atol=0.02)
    assert not torch.allclose(half.mix.weight, fresh.mix.weight, atol=0.02)


def test_predictions_of_a_model_with_a_sparse_product_are_safe() -> None:
    class Predicting(RankingTrainer):
        def calculate_prediction(self, batch: Any) -> Any:
            return self.model(batch[0], batch[1])

    trainer = Predicting(Graph("csr", "@"), None, None, callbacks=(), device="cpu", precision="bf16")
    assert trainer.predict(pairs()).shape == (32,)


@pytest.mark.parametrize("on_nonfinite", ["raise", "skip"])
def test_a_sparse_buffer_is_no_hindrance_to_leaving_updates_out(on_nonfinite: str) -> None:
    trainer, _ = train(Graph("csr", "@", "buffer"), "fp16", on_nonfinite=on_nonfinite)
    assert trainer.precision.kind == "fp16"


# One product ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", HALVES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("product", list(PRODUCTS))
def test_a_sparse_product_and_its_gradient_have_the_bits_of_single_precision(
    product: str, layout: str, precision: str, device: str
) -> None:
    matrix = edges(layout).to(device)
    generator = torch.Generator().manual_seed(0)
    dense = torch.randn(USERS + ITEMS, SIZE, generator=generator)
    half = dense.to(torch.bfloat16 if precision == "bf16" else torch.float16).to(device)
    once, again = half.clone().requires_grad_(), half.float().requires_grad_()
    with Precision(precision, torch.device(device)).autocast():
        outputs = PRODUCTS[product](matrix, once)
    expected = PRODUCTS[product](matrix, again)
    assert outputs.dtype == torch.float32
    torch.testing.assert_close(outputs, expected, rtol=0, atol=0 if device == "cpu" else 1e-6)
    outputs.square().sum().backward()
    expected.square().sum().backward()
    assert once.grad is not None
    assert again.grad is not None
    torch.testing.assert_close(once.grad, again.grad.to(half.dtype), rtol=0, atol=0 if device == "cpu" else 1e-2)


@pytest.mark.parametrize("kind", HALVES)
def test_without_care_autocast_breaks_or_rounds_the_product(kind: str) -> None:
    """What the rest of this file is about; should torch come to do it right, the care can go."""
    dtype = torch.bfloat16 if kind == "bf16" else torch.float16
    with torch.autocast("cpu", dtype=dtype):
        assert (edges("coo") @ torch.ones(USERS + ITEMS, SIZE)).dtype == dtype
        with pytest.raises(NotImplementedError, match="not implemented for"):
            edges("csr") @ torch.ones(USERS + ITEMS, SIZE)


def test_a_sparse_matrix_in_half_precision_is_multiplied_in_single() -> None:
    matrix = edges("coo").to(torch.bfloat16)
    with Precision("bf16", CPU).autocast():
        assert (matrix @ torch.ones(USERS + ITEMS, SIZE)).dtype == torch.float32


# What it costs ----------------------------------------------------------------------------------------------


def watched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the functions of torch that pass through Python from now on."""
    seen: list[Any] = []
    original = SparseMode.__torch_function__

    def look(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        seen.append(func)
        return original(self, func, types, args, kwargs)

    monkeypatch.setattr(SparseMode, "__torch_function__", look)
    return seen


def test_a_dense_model_is_watched_in_the_first_micro_batch_of_an_epoch_only(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watched(monkeypatch)
    counts: list[int] = []

    class Counting(Trainer):
        def update(self, phase: Any, window: Any) -> None:
            before = len(seen)
            super().update(phase, window)
            counts.append(len(seen) - before)

    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = Counting(model, nn.MSELoss(), optimizer, callbacks=(), device="cpu", precision="bf16")
    trainer.train(TensorDataset(torch.ones(24, 2), torch.ones(24, 1)), 2)
    assert [count > 0 for count in counts] == [True, False, False] * 2
    assert not trainer.precision.products.expected


def test_in_single_precision_nothing_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watched(monkeypatch)
    train(Graph("coo", "@"), "fp32")
    assert seen == []


@pytest.mark.parametrize("given", ["trainer", "user"])
def test_a_compiled_model_is_not_compiled_twice_for_being_watched(given: str) -> None:
    compiled: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(1)
        return graph.forward

    model = nn.Linear(2, 1)
    wrapped = torch.compile(model, backend=backend, dynamic=False) if given == "user" else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    precision = Precision("bf16", CPU)
    if given == "user":
        precision.products.look_again(wrapped)  # type: ignore[arg-type]
    else:
        wrapped = torch.compile(model, backend=backend, dynamic=False)
        precision.products.look_again(model, compiled=True)
    for _ in range(3):
        with precision.autocast("train"):
            wrapped(torch.ones(4, 2)).sum().backward()  # type: ignore[operator]
        optimizer.step()
    assert sum(compiled) == 1


# Finding sparse tensors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("home", ["buffer", "attribute", "list"])
def test_a_model_that_holds_a_sparse_tensor_is_known(home: str) -> None:
    assert holds_sparse(nn.Sequential(nn.Linear(1, 1), Graph("csr", "@", home)))
    assert not holds_sparse(nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1)))
    assert not holds_sparse(Graph("csr", "@", "made"))


class Later(nn.Module):
    """A model that multiplies with a sparse tensor, made there and then, from its third call on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.calls = 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        outputs: Tensor = self.layer(inputs)
        return outputs if self.calls < 3 else torch.eye(len(inputs)).to_sparse_csr() @ outputs


def train_later(**kwargs: Any) -> Any:
    model = Later()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = Trainer(model, nn.MSELoss(), optimizer, callbacks=(), device="cpu", precision="bf16")
    if kwargs.get("expects"):
        trainer.precision.expect_sparse()
    return trainer.train(TensorDataset(torch.ones(32, 2), torch.ones(32, 2)), 1)


def test_a_sparse_product_that_begins_in_the_middle_of_an_epoch_fails_with_advice_and_works_with_it() -> None:
    with pytest.raises(NotImplementedError) as caught:
        train_later()
    assert UNSEEN in caught.value.__notes__
    assert train_later(expects=True).steps == 4


def test_the_advice_is_about_sparse_products_only() -> None:
    with pytest.raises(NotImplementedError) as caught, Precision("bf16", CPU).autocast():
        raise NotImplementedError("something else")
    assert not hasattr(caught.value, "__notes__")
    with pytest.raises(ConfigError), Precision("bf16", CPU).autocast():
        raise ConfigError("sparse")
