"""The fused head gives the loss and the gradients of `cross_entropy(linear(hidden, weight), targets)`."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import treadle
from treadle import Trainer, linear_cross_entropy
from treadle.errors import ConfigError
from treadle.ops.linear_cross_entropy import _default_chunk

WIDTH, CLASSES = 6, 11
CUDA = pytest.param(
    "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")]
)
ON_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
DEVICES = ["cpu", CUDA]

Numbers = tuple[Tensor, Tensor, Tensor]


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def make_numbers(
    *shape: int, classes: int = CLASSES, width: int = WIDTH, dtype: torch.dtype = torch.float64, device: str = "cpu"
) -> Numbers:
    """Draw hidden states, a weight and targets, of which every third does not count."""
    hidden = torch.randn(*shape, width, dtype=dtype, device=device, requires_grad=True)
    weight = torch.randn(classes, width, dtype=dtype, device=device, requires_grad=True)
    targets = torch.randint(classes, shape, device=device)
    targets.view(-1)[::3] = -100
    return hidden, weight, targets


def plain(hidden: Tensor, weight: Tensor, targets: Tensor, **options: Any) -> Tensor:
    return F.cross_entropy(F.linear(hidden, weight).flatten(0, -2), targets.flatten(), **options)


def gradients(loss: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, inputs)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("chunk_rows", [None, 1, 4, 7, 21, 1000])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_loss_and_gradients_are_those_of_the_two_functions_however_it_is_chunked(
    reduction: str, chunk_rows: int | None, device: str
) -> None:
    hidden, weight, targets = make_numbers(21, device=device)
    loss = linear_cross_entropy(hidden, weight, targets, reduction=reduction, chunk_rows=chunk_rows)
    expected = plain(hidden, weight, targets, reduction=reduction)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)
    # A factor in front, for the loss of a window is scaled before its backward pass.
    for ours, theirs in zip(gradients(loss * 3, hidden, weight), gradients(expected * 3, hidden, weight), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("classes", [2, CLASSES, 128, 1000, 9001])
def test_fp32_is_as_near_to_fp64_as_the_two_functions_are(classes: int, device: str) -> None:
    hidden, weight, targets = make_numbers(13, classes=classes, dtype=torch.float32, device=device)
    exact = [part.detach().double().requires_grad_() for part in (hidden, weight)]
    loss, expected = linear_cross_entropy(hidden, weight, targets, chunk_rows=5), plain(*exact, targets)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-5)
    for ours, theirs in zip(gradients(loss, hidden, weight), gradients(expected, *exact), strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("hidden_dtype", [torch.float32, "autocast"])
def test_autocast_gives_its_products_and_gradients_in_the_formats_of_the_inputs(
    dtype: torch.dtype, hidden_dtype: Any, device: str
) -> None:
    hidden, weight, targets = make_numbers(3, 40, classes=300, width=64, dtype=torch.float32, device=device)
    hidden = hidden.detach().to(dtype if hidden_dtype == "autocast" else hidden_dtype).requires_grad_()
    weight = (weight.detach() / 8).requires_grad_()
    exact = [part.detach().double().requires_grad_() for part in (hidden, weight)]
    with torch.autocast(device, dtype=dtype):
        loss = linear_cross_entropy(hidden, weight, targets, chunk_rows=32)
    expected = plain(*exact, targets)
    assert loss.dtype == torch.float32
    assert abs(loss.item() - expected.item()) < 2e-3 * expected.item()
    for ours, theirs, source in zip(
        gradients(loss, hidden, weight), gradients(expected, *exact), (hidden, weight), strict=True
    ):
        assert ours.dtype == source.dtype
        assert (ours.double() - theirs).norm() < 1e-2 * theirs.norm()


@pytest.mark.parametrize("device", DEVICES)
def test_without_autocast_half_precision_inputs_give_a_loss_in_fp32(device: str) -> None:
    hidden, weight, targets = make_numbers(8, dtype=torch.bfloat16, device=device)
    loss = linear_cross_entropy(hidden, weight, targets)
    assert loss.dtype == torch.float32
    hidden_gradient, weight_gradient = gradients(loss, hidden, weight)
    assert (hidden_gradient.dtype, weight_gradient.dtype) == (torch.bfloat16, torch.bfloat16)


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_of_many_rows_neither_underflow_nor_overflow_in_fp16(device: str) -> None:
    rows = 8192
    hidden = torch.full((rows, 2), 50.0, device=device, requires_grad=True)
    weight = torch.zeros(4, 2, device=device, requires_grad=True)
    with torch.autocast(device, dtype=torch.float16):
        loss = linear_cross_entropy(hidden, weight, torch.zeros(rows, dtype=torch.int64, device=device))
    _, weight_gradient = gradients(loss, hidden, weight)
    # All classes are alike: probability 1/4 each, for every row. The sum over rows is 307,200, above what fp16 holds.
    expected = torch.tensor([-0.75, 0.25, 0.25, 0.25], device=device).unsqueeze(1).expand(4, 2) * 50.0
    torch.testing.assert_close(weight_gradient, expected)


@pytest.mark.parametrize("device", DEVICES)
def test_rows_of_the_ignored_class_have_no_loss_and_no_gradient(device: str) -> None:
    hidden, weight, targets = make_numbers(9, device=device)
    loss = linear_cross_entropy(hidden, weight, targets % CLASSES, ignore_index=4, chunk_rows=2)
    expected = plain(hidden, weight, targets % CLASSES, ignore_index=4)
    torch.testing.assert_close(loss, expected)
    ours, theirs = gradients(loss, hidden)[0], gradients(expected, hidden)[0]
    torch.testing.assert_close(ours, theirs)
    assert not ours[targets % CLASSES == 4].any()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_mean_over_no_row_is_nan_with_zero_gradients_as_in_torch(dtype: torch.dtype, device: str) -> None:
    hidden, weight, targets = make_numbers(4, dtype=dtype, device=device)
    targets.fill_(-100)
    loss, expected = linear_cross_entropy(hidden, weight, targets), plain(hidden, weight, targets)
    assert math.isnan(loss.item())
    assert math.isnan(expected.item())
    for gradient in (*gradients(loss, hidden, weight), *gradients(expected, hidden, weight)):
        assert not gradient.any()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_no_rows_at_all_are_no_error(dtype: torch.dtype, device: str) -> None:
    hidden, weight, targets = make_numbers(0, dtype=dtype, device=device)
    loss = linear_cross_entropy(hidden, weight, targets, reduction="sum")
    assert loss.item() == 0.0
    hidden_gradient, weight_gradient = gradients(loss, hidden, weight)
    assert hidden_gradient.shape == (0, WIDTH)
    assert not weight_gradient.any()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("target", [CLASSES, -1])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_target_outside_of_the_classes_makes_the_loss_nan(dtype: torch.dtype, target: int, device: str) -> None:
    hidden, weight, targets = make_numbers(4, dtype=dtype, device=device)
    targets[1] = target
    assert math.isnan(linear_cross_entropy(hidden, weight, targets).item())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("scores", [1e4, -1e4, math.nan, math.inf])
def test_extreme_scores_give_what_torch_gives(scores: float, device: str) -> None:
    hidden, weight, targets = make_numbers(4, dtype=torch.float32, device=device)
    with torch.no_grad():
        weight[3] *= scores
    loss, expected = linear_cross_entropy(hidden, weight, targets), plain(hidden, weight, targets)
    torch.testing.assert_close(loss, expected, equal_nan=True)


@pytest.mark.parametrize("learner", ["hidden", "weight", "neither"])
def test_what_does_not_learn_gets_no_gradient(learner: str) -> None:
    hidden, weight, targets = make_numbers(5)
    hidden.requires_grad_(learner == "hidden")
    weight.requires_grad_(learner == "weight")
    loss = linear_cross_entropy(hidden, weight, targets)
    expected = plain(hidden, weight, targets)
    torch.testing.assert_close(loss, expected)
    assert loss.requires_grad == (learner != "neither")
    for part in (hidden, weight):
        if part.requires_grad:
            torch.testing.assert_close(gradients(loss, part)[0], gradients(expected, part)[0])


def test_without_gradients_only_the_loss_is_computed() -> None:
    hidden, weight, targets = make_numbers(5)
    with torch.no_grad():
        loss = linear_cross_entropy(hidden, weight, targets)
    assert not loss.requires_grad
    torch.testing.assert_close(loss, plain(hidden, weight, targets))


def test_hidden_states_may_have_any_leading_shape_and_layout_and_int32_targets() -> None:
    hidden, weight, targets = make_numbers(3, 4, 5)
    turned = hidden.transpose(0, 2)
    loss = linear_cross_entropy(turned, weight, targets.transpose(0, 2).int(), chunk_rows=7)
    expected = plain(hidden, weight, targets)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradients(loss, hidden)[0], gradients(expected, hidden)[0])


class Tied(nn.Module):
    """An embedding whose weight is the head's too."""

    def __init__(self, fused: bool, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.tokens = nn.Embedding(CLASSES, WIDTH, dtype=dtype)
        self.body = nn.Linear(WIDTH, WIDTH, dtype=dtype)
        self.fused = fused

    def forward(self, tokens: Tensor, targets: Tensor) -> dict[str, Tensor]:
        hidden = torch.tanh(self.body(self.tokens(tokens)))
        head = linear_cross_entropy if self.fused else plain
        return {"loss": head(hidden, self.tokens.weight, targets)}


def make_tied(fused: bool, **options: Any) -> Tied:
    torch.manual_seed(1)
    return Tied(fused, **options)


@pytest.mark.parametrize("device", DEVICES)
def test_a_weight_tied_with_the_embedding_gets_both_gradients(device: str) -> None:
    tokens, targets = torch.randint(CLASSES, (2, 4, 8), device=device)
    fused, separate = make_tied(True).to(device), make_tied(False).to(device)
    for model in (fused, separate):
        model(tokens, targets)["loss"].backward()
    for ours, theirs in zip(fused.parameters(), separate.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_a_trainer_learns_the_same_with_it_over_windows_of_several_micro_batches() -> None:
    batches = [(torch.randint(CLASSES, (4, 5)), torch.randint(CLASSES, (4, 5))) for _ in range(6)]
    trained = []
    for fused in (True, False):
        model = make_tied(fused)
        trainer = Trainer(model, None, torch.optim.SGD(model.parameters(), lr=0.5), callbacks=())
        loader: DataLoader[Any] = DataLoader(batches, batch_size=None)  # type: ignore[arg-type]
        trainer.train(loader, num_epochs=2, gradient_accumulation_steps=2, clip_norm=0.5)
        trained.append(nn.utils.parameters_to_vector(model.parameters()).detach())
    torch.testing.assert_close(*trained)


def test_gradients_may_be_asked_for_twice() -> None:
    hidden, weight, targets = make_numbers(5)
    loss = linear_cross_entropy(hidden, weight, targets)
    first = torch.autograd.grad(loss, (hidden, weight), retain_graph=True)
    second = torch.autograd.grad(loss, (hidden, weight))
    for once, again in zip(first, second, strict=True):
        assert torch.equal(once, again)


def test_a_second_derivative_is_refused() -> None:
    hidden, weight, targets = make_numbers(5)
    loss = linear_cross_entropy(hidden, weight, targets)
    with pytest.raises(ConfigError, match=r"has no second derivative; use cross_entropy\(linear\(hidden, weight\)\)"):
        torch.autograd.grad(loss, hidden, create_graph=True)


def test_the_operator_says_of_itself_what_it_does() -> None:
    hidden, weight, targets = make_numbers(5, dtype=torch.float32)
    arguments = (hidden, weight, targets, -100, 2, torch.float32, True, True, True)
    torch.library.opcheck(torch.ops.treadle.linear_cross_entropy.default, arguments)


@pytest.mark.parametrize("autocast", [False, True])
def test_it_stays_one_operator_inside_a_compiled_function(autocast: bool) -> None:
    hidden, weight, targets = make_numbers(2, 9, dtype=torch.float32)

    def double(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            return linear_cross_entropy(hidden * 2, weight, targets, chunk_rows=4) * 3

    compiled = torch.compile(double, fullgraph=True, backend="aot_eager")
    loss, expected = compiled(hidden, weight, targets), double(hidden, weight, targets)
    torch.testing.assert_close(loss, expected)
    for ours, theirs in zip(gradients(loss, hidden, weight), gradients(expected, hidden, weight), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reduction": "none"}, r"^reduction='none' is not known; use 'mean' or 'sum'$"),
        ({"chunk_rows": 0}, r"^chunk_rows=0 must be a whole number from 1, or None$"),
        ({"chunk_rows": 2.5}, r"^chunk_rows=2\.5 must be a whole number"),
        ({"weight": torch.zeros(CLASSES, 7)}, r"^hidden has shape \(4, 6\) and weight \(11, 7\); they must be"),
        ({"weight": torch.zeros(WIDTH)}, r"^hidden has shape \(4, 6\) and weight \(6,\); they must be"),
        ({"targets": torch.zeros(3, dtype=torch.int64)}, r"^targets have shape \(3,\), for .* each row: \(4,\)$"),
        ({"targets": torch.zeros(4)}, r"^targets are float32; give classes as int64"),
        ({"weight": torch.zeros(CLASSES, WIDTH)}, r"^hidden is float64 and weight is float32; convert one"),
        (
            {"targets": torch.zeros(4, dtype=torch.int64, device="meta")},
            r"^hidden is on cpu, .*targets on meta; use one",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(change: dict[str, Any], message: str) -> None:
    hidden, weight, targets = make_numbers(4)
    arguments = {"hidden": hidden, "weight": weight, "targets": targets, **change}
    with pytest.raises(ConfigError, match=message):
        linear_cross_entropy(**arguments)


@pytest.mark.parametrize(
    ("rows", "classes", "expected"),
    # 2 GiB hold 21,345 rows of GPT-2's scores in bf16: 64 sequences of 1,024 tokens are four chunks of 16,384.
    [(65536, 50304, 16384), (16384, 50304, 16384), (40000, 50304, 20096), (100, 50304, 100), (0, 50304, 1)],
)
def test_chunks_are_equal_and_fit_into_their_room(rows: int, classes: int, expected: int) -> None:
    assert _default_chunk(rows, classes, torch.bfloat16, "cuda") == expected


def test_rows_that_do_not_fit_are_taken_one_by_one() -> None:
    assert _default_chunk(10, 2**31, torch.float32, "cpu") == 10


def test_it_is_a_name_of_the_package() -> None:
    assert treadle.linear_cross_entropy is linear_cross_entropy


# On the GPU ---------------------------------------------------------------------------------------------------


@ON_GPU
@pytest.mark.gpu
@pytest.mark.parametrize("classes", [50257, 50304])
def test_the_kernel_agrees_with_the_plain_way_on_a_real_vocabulary(classes: int) -> None:
    from treadle.ops.linear_cross_entropy import score_rows_plainly
    from treadle.ops.linear_cross_entropy_kernel import score_rows_fused

    buffer = torch.randn(64, 50304, device="cuda", dtype=torch.bfloat16) * 3
    scores = buffer[:, :classes]
    targets = torch.randint(classes, (64,), device="cuda")
    targets[::5] = -100
    plainly, expected, losses = scores.clone(), torch.empty(64, device="cuda"), torch.full((64,), 9.0, device="cuda")
    score_rows_plainly(plainly, targets, expected, -100, True)
    score_rows_fused(scores, targets, losses, -100, True)
    torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(scores, plainly, rtol=1e-2, atol=1e-7)
    again = torch.empty_like(losses)
    score_rows_fused(plainly.copy_(torch.randn_like(plainly)), targets, again, -100, False)
    assert not torch.equal(again, losses)


@ON_GPU
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_it_can_be_captured_in_a_graph_whose_replays_see_new_numbers(dtype: torch.dtype) -> None:
    hidden, weight, targets = make_numbers(300, classes=1000, width=64, dtype=torch.float32, device="cuda")

    def step() -> tuple[Tensor, ...]:
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            loss = linear_cross_entropy(hidden, weight, targets, chunk_rows=128)
        return loss, *torch.autograd.grad(loss, (hidden, weight))

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        static = step()
    for _ in range(2):
        with torch.no_grad():
            hidden.normal_()
            targets.random_(1000)
        graph.replay()
        replayed = [part.clone() for part in static]
        for ours, eager in zip(replayed, step(), strict=True):
            torch.testing.assert_close(ours, eager, rtol=1e-3, atol=1e-5)


@ON_GPU
@pytest.mark.gpu
def test_it_takes_a_fraction_of_the_memory_of_the_scores() -> None:
    rows, classes, width = 16384, 50304, 64
    hidden, weight, targets = make_numbers(rows, classes=classes, width=width, dtype=torch.float32, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = linear_cross_entropy(hidden, weight, targets, chunk_rows=1024)
    loss.backward()  # type: ignore[no-untyped-call]
    peak = torch.cuda.max_memory_allocated() - before
    assert peak < rows * classes * 2 / 4


@ON_GPU
@pytest.mark.gpu
def test_the_host_does_not_wait_for_the_device() -> None:
    hidden, weight, targets = make_numbers(64, classes=1000, dtype=torch.float32, device="cuda")
    linear_cross_entropy(hidden, weight, targets).backward()  # type: ignore[no-untyped-call]
    torch.cuda.set_sync_debug_mode("error")
    try:
        linear_cross_entropy(hidden, weight, targets).backward()  # type: ignore[no-untyped-call]
    finally:
        torch.cuda.set_sync_debug_mode("default")
