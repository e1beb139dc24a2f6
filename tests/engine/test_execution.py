"""Precision, recomputed activations, sharding, clipping, numbers that go wrong, and compiled models."""

import json
import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.engine.parts import Classifier, make_config
from tests.execution.quick_compiler import quick_compiler
from treadle.config import LazyCall
from treadle.engine import DefaultTrainer, EagerTrainer, Graph, GraphTrainer, hooks
from treadle.engine.config.builders import set_activation_checkpoint
from treadle.errors import ConfigError, NonFiniteError
from treadle.optim.param_groups import get_default_optimizer_params


class Watching(Classifier):
    """Notes in which types its layers compute, and how often each block is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.types: set[torch.dtype] = set()
        self.passes = 0
        self.body.register_forward_hook(lambda *args: self._note(args[2]))

    def _note(self, output: Tensor) -> None:
        self.passes += 1

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        self.types.add(self.head(inputs.new_zeros(1, 8)).dtype)
        return super().forward(inputs, labels)

    def set_activation_checkpoint(self) -> list[nn.Module]:
        return [self.body]


def config(folder: Path, mode: str, **train: Any) -> Any:
    made = make_config(folder, train_iter=2, **train)
    made.model = LazyCall(Watching)()
    made.graph = {"enabled": mode == "graph", "backend": "eager"}
    return made


MODES = pytest.mark.parametrize("mode", ["eager", "graph"])


@MODES
def test_b16_amp_takes_effect_in_both_modes(tmp_path: Path, mode: str) -> None:
    trainer = DefaultTrainer(config(tmp_path, mode, amp={"enabled": True}))
    trainer.train()
    assert trainer.model.types == {torch.bfloat16}
    assert trainer.core.precision.kind == "bf16"


@MODES
def test_b16_amp_in_fp16_scales_the_loss_in_both_modes(tmp_path: Path, mode: str) -> None:
    made = config(tmp_path, mode)
    made.train.amp = {"enabled": True, "dtype": "fp16"}
    trainer = DefaultTrainer(made)
    trainer.train()
    assert trainer.model.types == {torch.float16}
    assert trainer.core.precision.scaler is not None


@MODES
def test_b16_activations_are_computed_again_in_both_modes(tmp_path: Path, mode: str) -> None:
    trainer = DefaultTrainer(config(tmp_path / "again", mode, activation_checkpoint={"enabled": True}))
    trainer.train()
    plain = DefaultTrainer(config(tmp_path / "kept", mode))
    plain.train()
    assert isinstance(trainer.model.body, nn.Sequential)
    for own, other in zip(trainer.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(own, other)


def test_b16_a_recomputed_block_runs_twice_in_training_and_once_without_gradients() -> None:
    passes: list[int] = []

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, inputs: Tensor) -> Tensor:
            passes.append(1)
            return torch.tanh(self.layer(inputs))

    model = nn.Sequential(Block(), nn.Linear(2, 1))
    assert set_activation_checkpoint(model) == ["0"]
    inputs = torch.ones(1, 2, requires_grad=True)
    model(inputs).sum().backward()
    assert len(passes) == 2
    with torch.no_grad():
        model(inputs)
    model.eval()(inputs)
    assert len(passes) == 4
    assert sorted(model.state_dict()) == ["0.layer.bias", "0.layer.weight", "1.bias", "1.weight"]


def test_b16_a_static_method_and_one_that_does_all_itself_are_asked_too() -> None:
    class Static(nn.Sequential):
        asked: Any = None

        @staticmethod
        def set_activation_checkpoint(model: Any) -> None:
            Static.asked = model

    model = Static(nn.Linear(1, 1))
    assert set_activation_checkpoint(model) == []
    assert Static.asked is model


def test_b16_blocks_are_found_by_patterns_and_none_found_is_an_error() -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.Tanh())
    assert set_activation_checkpoint(model, ["Lin*"]) == ["0"]
    message = r"no module of Sequential matches \['Blok'\]; name some of \['Linear', 'Sequential', 'Tanh'\]"
    with pytest.raises(ConfigError, match=message):
        set_activation_checkpoint(model, ["Blok"])


@MODES
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"zero_optimization": {"enabled": True, "stage": 4}}, r"train.zero_optimization.stage=4 is unknown; use 1, 2"),
        ({"dist": {"tensor_parallel_size": 2}}, r"train.dist.tensor_parallel_size=2, but 1 processes were started"),
        ({"dist": {"pipeline_parallel_size": 4}, "execution": "eager"}, r"pipeline_parallel_size=4, but 1 processes"),
        ({"dist": {"data_parallel_size": 3}}, r"data_parallel_size=3, but 1 processes were started"),
        ({"dist": {"num_nodes": 2, "num_gpus_per_node": 4}}, r"num_nodes=2 times num_gpus_per_node=4 is 8, but 1 pro"),
        ({"dist": {"device_type": "tpu"}}, r"device_type='tpu' is unknown; use 'cuda', 'cpu', 'mps' or 'auto'"),
    ],
)
def test_b16_what_cannot_be_done_is_refused_in_both_modes(
    tmp_path: Path, mode: str, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        DefaultTrainer(config(tmp_path, mode, **change))


def test_b16_an_unknown_type_and_parallelism_found_by_itself_are_refused(tmp_path: Path) -> None:
    made = config(tmp_path, "graph")
    made.train.amp = {"enabled": True, "dtype": "int8"}
    with pytest.raises(ConfigError, match=r"train.amp.dtype='int8' is unknown; use 'bf16' or 'fp16'"):
        DefaultTrainer(made).train()
    made.graph.auto_parallel = {"enabled": True}
    with pytest.raises(ConfigError, match=r"graph.auto_parallel.enabled=True"):
        DefaultTrainer(made)


class OwnStep(EagerTrainer):
    def run_step(self, get_batch: Any) -> None:  # type: ignore[override]
        losses = self.model(**get_batch(next(self._data_loader_iter)))
        losses["losses"].backward()
        self.write_metrics(losses, 0.0)
        self.optimizer.step()
        self.optimizer.zero_grad()


def with_own_step(made: Any) -> DefaultTrainer:
    trainer = DefaultTrainer(made)
    trainer._trainer = OwnStep(trainer.model, trainer.train_loader, trainer.optimizer)
    return trainer


def test_b16_a_step_of_ones_own_gets_amp_or_an_error(tmp_path: Path) -> None:
    trainer = with_own_step(config(tmp_path / "bf16", "eager", amp={"enabled": True}))
    trainer.train()
    assert trainer.model.types == {torch.bfloat16}
    made = config(tmp_path / "fp16", "eager")
    made.train.amp = {"enabled": True, "dtype": "fp16"}
    with pytest.raises(ConfigError, match=r"train.amp.dtype='fp16' scales the loss, which a run_step of your own"):
        with_own_step(made).train()
    skipping = config(tmp_path / "skip", "eager")
    skipping.train.on_nonfinite = "skip"
    with pytest.raises(ConfigError, match="on_nonfinite='skip' works with the built-in run_step only"):
        with_own_step(skipping).train()


class Poisoned(Classifier):
    """Returns a loss that is not a number in its fourth pass."""

    passes = 0

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        self.passes += 1
        outputs = super().forward(inputs, labels)
        return {"losses": outputs["losses"] * (math.nan if self.passes == 4 else 1.0)}


def poisoned(folder: Path, policy: str, **train: Any) -> DefaultTrainer:
    made = make_config(folder, **train)
    made.model = LazyCall(Poisoned)()
    made.train.on_nonfinite = policy
    return DefaultTrainer(made)


@pytest.mark.parametrize("period", [1, 5, 100])
def test_b38_a_loss_that_is_no_number_stops_the_run_and_is_named_with_its_iteration(
    tmp_path: Path, period: int
) -> None:
    trainer = poisoned(tmp_path, "raise", log_period=period, checkpointer={"period": 0})
    with pytest.raises(NonFiniteError, match="total_loss is nan at iteration 3; lower the learning rate"):
        trainer.train()


def test_b38_no_checkpoint_is_taken_of_a_run_that_went_wrong(tmp_path: Path) -> None:
    trainer = poisoned(tmp_path, "raise", log_period=100, checkpointer={"period": 5})
    with pytest.raises(NonFiniteError, match="total_loss is nan at iteration 3"):
        trainer.train()
    assert trainer.iter == 4
    assert trainer.checkpointer.store.steps() == [0]  # what the run began with


def test_b38_a_bad_update_is_skipped_if_the_policy_says_so(tmp_path: Path) -> None:
    trainer = poisoned(tmp_path, "skip")
    trainer.train()
    assert trainer.iter == 10
    assert all(parameter.isfinite().all() for parameter in trainer.model.parameters())
    assert trainer.storage.latest()["skipped_steps"][0] == 1.0


def test_b38_the_run_goes_back_and_skips_the_data_if_the_policy_says_so(tmp_path: Path) -> None:
    trainer = poisoned(tmp_path, "rollback", checkpointer={"period": 2})
    trainer.train()
    assert trainer.iter == 10
    assert all(parameter.isfinite().all() for parameter in trainer.model.parameters())
    lines = [json.loads(line) for line in (tmp_path / "metrics.json").read_text().splitlines()]
    assert [line["iteration"] for line in lines] == list(range(10))
    assert "total_loss" not in lines[3]  # its data was skipped


def test_b38_a_step_of_ones_own_is_watched_too(tmp_path: Path) -> None:
    made = make_config(tmp_path)
    made.model = LazyCall(Poisoned)()
    with pytest.raises(NonFiniteError, match="total_loss is nan at iteration 3"):
        with_own_step(made).train()


def test_b38_a_gradient_norm_that_is_no_number_is_named(tmp_path: Path) -> None:
    class Steep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(()))

        def forward(self, inputs: Tensor) -> Tensor:
            return self.weight.sqrt() * 0 * inputs.mean()

    model = Steep()
    groups = get_default_optimizer_params(model, clip_grad_max_norm=1.0, clip_grad_norm_type=2.0)
    made = make_config(tmp_path)
    trainer = DefaultTrainer(made)
    optimizer = torch.optim.SGD(groups, lr=0.1)
    trainer._trainer = EagerTrainer(model, [(torch.ones(2),)], optimizer)
    with pytest.raises(NonFiniteError, match="grad_norm is nan at iteration 0"):
        trainer.train()


def clipped(folder: Path, own_step: bool = False) -> DefaultTrainer:
    made = make_config(folder, train_iter=1, scheduler=None)
    made.optim = LazyCall(torch.optim.SGD)(
        params=LazyCall(get_default_optimizer_params)(
            weight_decay=0.1, weight_decay_bias=0.0, clip_grad_max_norm=0.01, clip_grad_norm_type=2.0
        ),
        lr=1.0,
    )
    made.optim.params.weight_decay = 0.0
    made.optim.params.overrides = {"weight": {"momentum": 0.0}}
    return with_own_step(made) if own_step else DefaultTrainer(made)


@pytest.mark.parametrize("own_step", [False, True])
def test_b46_the_norm_is_taken_over_all_groups_together_and_logged(tmp_path: Path, own_step: bool) -> None:
    trainer = clipped(tmp_path, own_step)
    assert len(trainer.optimizer.param_groups) == 2
    before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
    trainer.train()
    moved = [old - new for old, new in zip(before, trainer.model.parameters(), strict=True)]
    assert math.sqrt(sum(part.pow(2).sum().item() for part in moved)) == pytest.approx(0.01, rel=1e-3)
    norm, iteration = trainer.storage.latest()["grad_norm"]
    assert norm > 0.01
    assert iteration == 0
    assert '"grad_norm"' in (tmp_path / "metrics.json").read_text()


def test_b46_bounds_that_differ_and_other_norms_are_refused(tmp_path: Path) -> None:
    trainer = clipped(tmp_path)
    trainer.optimizer.param_groups[0]["clip_grad_max_norm"] = 2.0
    with pytest.raises(ConfigError, match=r"several clip_grad_max_norm, \['0.01', '2.0'\]; the norm is taken over all"):
        trainer.train()
    other = clipped(tmp_path / "other")
    for group in other.optimizer.param_groups:
        group["clip_grad_norm_type"] = 1.0
    with pytest.raises(ConfigError, match=r"clip_grad_norm_type=\[1.0\] is not supported; use 2.0"):
        other.train()


def batches(*sizes: int) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(size, 2, generator=generator) for size in sizes]
    return [{"inputs": points, "labels": (points.sum(dim=1) > 0).long()} for points in inputs]


def trained(data: Any, iterations: int, **graph: Any) -> tuple[nn.Module, EagerTrainer]:
    torch.manual_seed(0)
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = GraphTrainer(Graph(model, optimizer, **graph), data) if graph else EagerTrainer(model, data, optimizer)
    trainer.train(0, iterations)
    return model, trainer


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")
def test_b47_a_compiled_model_gives_what_an_eager_one_gives() -> None:
    with quick_compiler() as counts:
        compiled, _ = trained(batches(4, 4), 4, backend="inductor")
        assert counts["unique_graphs"] > 0
    eager, _ = trained(batches(4, 4), 4)
    for own, other in zip(compiled.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-6)


def test_b47_a_change_of_shape_is_compiled_within_the_budget_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "treadle"):
        model, trainer = trained(batches(4, 3, 2), 6, backend="eager", budget=2)
    assert isinstance(trainer, GraphTrainer)
    assert trainer.graph.num_shapes == 2
    said = [record.message for record in caplog.records if "input shapes" in record.message]
    assert said == [
        "compiling with torch.compile for input shapes inputs (4, 2), labels (4,) (1 of 2)",
        "compiling with torch.compile for input shapes inputs (3, 2), labels (3,) (2 of 2)",
        "input shapes inputs (2, 2), labels (2,) run uncompiled: the model was compiled for 2 already",
    ]
    eager, _ = trained(batches(4, 3, 2), 6)
    for own, other in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(own, other)


def test_b47_graph_mode_says_that_it_runs_on_torch_compile(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "treadle"):
        trainer = DefaultTrainer(config(tmp_path, "graph"))
    assert "graph mode: the model is compiled by torch.compile" in caplog.text
    assert isinstance(trainer._trainer, GraphTrainer)


def test_a_graph_needs_an_optimizer_to_train_and_a_budget() -> None:
    model = Classifier()
    with pytest.raises(ConfigError, match="GraphTrainer needs a Graph with an optimizer"):
        GraphTrainer(Graph(model, backend="eager"), [])
    with pytest.raises(ConfigError, match=r"graph.compile_budget=0 must be at least 1"):
        Graph(model, budget=0)


def test_hooks_are_the_same_in_graph_mode(tmp_path: Path) -> None:
    trainer = DefaultTrainer(config(tmp_path, "graph"))
    assert [type(hook) for hook in trainer._hooks][:3] == [hooks.IterationTimer, hooks.Throughput, hooks.LRScheduler]
