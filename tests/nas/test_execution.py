"""Precision, compiled and recorded steps, and ways to save memory: the same call works."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from tests.execution.quick_compiler import quick_compiler
from tests.execution.recording import TapeRecorder
from tests.nas.small import Small, make, small
from treadle import nas
from treadle.errors import ConfigError
from treadle.nas import zoo as spaces
from treadle.nas.space.weighted_sum import weighted_sum

KINDS = [nas.DartsTrainer, nas.GumbelDartsTrainer, nas.ProxylessTrainer, nas.EnasTrainer, nas.SposTrainer]
every_trainer = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


@every_trainer
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_darts_10_a_search_runs_in_half_precision(kind: Any, precision: str) -> None:
    trainer = make(kind, precision=precision)
    trainer.fit()
    assert trainer.export()["layer"] in ("deep", "flat", "none")
    assert all(torch.isfinite(value).all() for value in trainer.supernet.state_dict().values())


def test_darts_10_bf16_gives_nearly_the_same_weights_of_candidates() -> None:
    half, single = make(nas.DartsTrainer, precision="bf16"), make(nas.DartsTrainer)
    half.fit()
    single.fit()
    torch.testing.assert_close(half.supernet.weights.alpha, single.supernet.weights.alpha, rtol=0, atol=0.05)


def assert_close(compiled: Any, eager: Any) -> None:
    """Compare all that two searches ended in."""
    for (name, own), other in zip(
        compiled.supernet.state_dict().items(), eager.supernet.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(own, other, rtol=1e-3, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # torch's own, where it loads its compiler
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # torch's own, where it looks at its inputs
@every_trainer
def test_darts_10_a_compiled_search_gives_nearly_the_same(kind: Any) -> None:
    compiled, eager = make(kind, small(dropout=0.0), execution="compile"), make(kind, small(dropout=0.0))
    with quick_compiler() as counts:
        compiled.fit()
        assert counts["unique_graphs"] > 0
    eager.fit()
    assert_close(compiled, eager)


class Least(nn.Module):
    """A space of two networks: to generate the code of a larger one takes half a minute."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nas.LayerChoice([nn.Linear(4, 3), nn.Linear(4, 3, bias=False)], label="layer")

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.layer(inputs)
        return output


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # torch's own, where it loads its compiler
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # torch's own, where it looks at its inputs
def test_the_real_compiler_gives_nearly_the_same_search() -> None:
    compiled, eager = make(nas.DartsTrainer, small(Least), execution="compile"), make(nas.DartsTrainer, small(Least))
    torch._dynamo.reset()
    counters.clear()
    compiled.fit()
    assert counters["stats"]["unique_graphs"] > 0
    eager.fit()
    assert_close(compiled, eager)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (nas.ProxylessTrainer, {}),
        (nas.EnasTrainer, {}),
        (nas.SposTrainer, {}),
        (nas.GumbelDartsTrainer, {"hard": True}),
    ],
    ids=["proxyless", "enas", "spos", "hard gumbel"],
)
def test_steps_that_go_another_way_each_time_cannot_be_recorded(kind: Any, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="goes another way in every step, and a recorded step goes the same for ever"):
        make(kind, execution="graph", **options)
    assert make(kind, execution="auto", **options).core.execution == "eager"


def test_candidates_are_compiled_one_by_one_where_paths_are_drawn() -> None:
    for kind, options in ((nas.SposTrainer, {}), (nas.GumbelDartsTrainer, {"hard": True})):
        assert make(kind, compile=True, **options).core.compile.modules == ["space.layer.flat"]

    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 3)
            self.layer = nas.LayerChoice([nn.ReLU(), nn.Tanh()], label="layer")

    with pytest.raises(ConfigError, match="there is no candidate to compile"):
        make(nas.SposTrainer, Bare(), compile=True)


# Recorded steps -----------------------------------------------------------------------------------------------


def fused_adam(parameters: Any) -> torch.optim.Optimizer:
    """Return the optimizer that the core makes of Adam on a GPU: no other kind of it can be recorded on the CPU."""
    return torch.optim.Adam(parameters, lr=0.05, betas=(0.5, 0.999), weight_decay=1e-3, fused=True)


def recorded(kind: Any, **options: Any) -> tuple[Any, TapeRecorder]:
    """Return a trainer whose steps are recorded on the CPU, as a CUDA graph would."""
    trainer = make(kind, small(dropout=0.0), num_epochs=6, arc_optimizer=fused_adam, **options)
    recorder = TapeRecorder()
    trainer.core.execution = "graph"
    trainer.core.create_recorder = lambda: recorder
    return trainer, recorder


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (nas.DartsTrainer, {}),
        (nas.DartsTrainer, {"unrolled": True}),
        (nas.DartsTrainer, {"grad_clip": None}),
        (nas.DartsTrainer, {"precision": "bf16"}),
        (nas.GumbelDartsTrainer, {}),
    ],
)
def test_a_recorded_search_is_the_search_step_by_step_to_the_last_bit(kind: Any, options: dict[str, Any]) -> None:
    plain = make(kind, small(dropout=0.0), num_epochs=6, arc_optimizer=fused_adam, **options)
    plain.fit()
    trainer, recorder = recorded(kind, **options)
    trainer.fit()
    assert recorder.captures == 2
    assert recorder.replays > 20
    for (name, own), other in zip(
        trainer.supernet.state_dict().items(), plain.supernet.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(own, other, rtol=0, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")


def test_a_recorded_step_of_second_order_follows_the_schedule_of_the_weights() -> None:
    def schedule(optimizer: Any) -> Any:
        return torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

    options = {"unrolled": True, "scheduler": schedule}
    plain = make(nas.DartsTrainer, small(dropout=0.0), num_epochs=6, arc_optimizer=fused_adam, **options)
    plain.fit(scheduler_interval="epoch")
    trainer, _ = recorded(nas.DartsTrainer, **options)
    trainer.fit(scheduler_interval="epoch")
    torch.testing.assert_close(trainer.supernet.weights.alpha, plain.supernet.weights.alpha, rtol=0, atol=1e-6)


# Memory -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("patterns", [["LayerChoice"], ["layer"], ["layer.deep"]])
@pytest.mark.parametrize("kind", [nas.DartsTrainer, nas.GumbelDartsTrainer, nas.SposTrainer])
def test_candidates_that_are_computed_again_give_the_same_search_bit_for_bit(kind: Any, patterns: list[str]) -> None:
    kept, again = make(kind), make(kind, activation_checkpointing=patterns)
    kept.fit()
    again.fit()
    for (name, own), other in zip(
        again.supernet.state_dict().items(), kept.supernet.state_dict().values(), strict=True
    ):
        assert torch.equal(own, other), name


class Saved:
    """Counts the bytes that autograd keeps for the backward pass."""

    def __init__(self) -> None:
        self.bytes = 0

    def keep(self, tensor: Tensor) -> Tensor:
        self.bytes += tensor.numel() * tensor.element_size()
        return tensor


def kept_by(model: nn.Module, **options: Any) -> int:
    trainer = make(nas.DartsTrainer, model, **options)
    saved = Saved()
    with trainer.core.activation_checkpointing, torch.autograd.graph.saved_tensors_hooks(saved.keep, lambda one: one):
        trainer.supernet(torch.randn(4, 1, 8, 8)).sum()
    return saved.bytes


def test_computing_candidates_again_and_partial_channels_both_save_memory() -> None:
    def space(**more: Any) -> nn.Module:
        return spaces.DartsSpace(8, 3, in_channels=1, affine=False, **more)

    everything = kept_by(space())
    assert kept_by(space(), activation_checkpointing=["Cell"]) < everything / 4
    assert kept_by(space(partial_channels=4)) < everything / 2


def test_where_only_the_weights_learn_nothing_is_kept_for_the_weights_of_candidates() -> None:
    trainer = make(nas.DartsTrainer, Small())
    sizes = []
    for learning in (True, False):
        trainer.supernet.weights.learning = learning
        saved = Saved()
        with torch.autograd.graph.saved_tensors_hooks(saved.keep, lambda one: one):
            trainer.supernet(torch.randn(64, 4)).sum()
        sizes.append(saved.bytes)
    assert sizes[1] < sizes[0]


def test_a_partial_supernet_is_searched_and_its_architecture_fits_the_whole_space() -> None:
    generator = torch.Generator().manual_seed(0)
    pictures = torch.utils.data.TensorDataset(
        torch.randn(16, 1, 8, 8, generator=generator), torch.randint(10, (16,), generator=generator)
    )
    model = spaces.DartsSpace(8, 3, in_channels=1, affine=False, partial_channels=4)
    trainer = make(nas.DartsTrainer, model, dataset=pictures, batch_size=4, num_epochs=1, metrics=None)
    trainer.fit()
    network = nas.freeze(spaces.DartsSpace(8, 6, in_channels=1), trainer.export())
    assert network.eval()(torch.randn(1, 1, 8, 8)).shape == (1, 10)


# Weighted sums ------------------------------------------------------------------------------------------------


def test_a_weighted_sum_of_a_half_and_a_whole_is_whole_and_each_has_a_gradient_of_its_own_kind() -> None:
    weights = torch.tensor([0.25, 0.75], requires_grad=True)
    half = torch.tensor([2.0, 4.0], dtype=torch.bfloat16, requires_grad=True)
    whole = torch.tensor([1.0, 3.0], requires_grad=True)
    for one, other in ((half, whole), (whole, half)):
        mixed = weighted_sum(weights, [one, other], where="op")
        assert mixed.dtype == torch.float32
        assert mixed.tolist() == (0.25 * one + 0.75 * other).tolist()
        gradients = torch.autograd.grad(mixed.sum(), [weights, one, other])
        assert [gradient.dtype for gradient in gradients] == [torch.float32, one.dtype, other.dtype]
        assert gradients[0].tolist() == [one.sum().item(), other.sum().item()]
        assert gradients[1].tolist() == [0.25, 0.25]


def test_the_gradient_of_weights_in_fp16_has_room_for_sums_that_fp16_has_not() -> None:
    weights = torch.ones(1, requires_grad=True)
    many = torch.full((1024,), 64.0, dtype=torch.float16)
    (gradient,) = torch.autograd.grad(weighted_sum(weights, [many], where="op").float().mul(16).sum(), [weights])
    assert gradient.tolist() == [1024.0 * 64 * 16]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_weighted_sum_and_its_gradients_are_those_of_the_plain_formula(layout: torch.memory_format) -> None:
    weights = torch.randn(3, dtype=torch.float64).requires_grad_()
    tensors = [
        torch.randn(2, 4, 3, 3, dtype=torch.float64).contiguous(memory_format=layout).requires_grad_() for _ in range(3)
    ]
    mixed = weighted_sum(weights, tensors, where="op")
    plain = sum(weight * tensor for weight, tensor in zip(weights, tensors, strict=True))
    torch.testing.assert_close(mixed, plain)
    assert mixed.is_contiguous(memory_format=layout)
    upstream = torch.randn_like(plain)
    own = torch.autograd.grad(mixed, [weights, *tensors], upstream)
    other = torch.autograd.grad(plain, [weights, *tensors], upstream)
    for one, two in zip(own, other, strict=True):
        torch.testing.assert_close(one, two)
    assert own[1].is_contiguous(memory_format=layout)


def test_a_weighted_sum_has_gradients_of_gradients() -> None:
    weights = torch.rand(2, dtype=torch.float64).requires_grad_()
    tensors = [torch.rand(3, dtype=torch.float64).requires_grad_() for _ in range(2)]
    assert torch.autograd.gradgradcheck(
        lambda weights, *tensors: weighted_sum(weights, tensors, where="op").square(), (weights, *tensors)
    )


def test_candidates_that_return_zeros_are_not_called_and_their_weights_have_no_gradient_of_their_own() -> None:
    class WithZero(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nas.LayerChoice({"none": spaces.operations.Zero(), "conv": nn.Conv2d(1, 1, 1)}, label="layer")

    model = WithZero()
    model.layer["none"].forward = None  # type: ignore[assignment, method-assign]
    make(nas.DartsTrainer, model, metrics=None)
    model.layer.chooser.weights = weights = torch.tensor([[0.25, 0.75]], requires_grad=True)
    inputs = torch.randn(2, 1, 3, 3)
    output = model.layer(inputs)
    torch.testing.assert_close(output, 0.75 * model.layer["conv"](inputs))
    (gradient,) = torch.autograd.grad(output.sum(), [weights])
    assert float(gradient[0, 0]) == 0.0
