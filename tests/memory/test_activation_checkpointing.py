"""Activations that are computed again in the backward pass: the same numbers for less memory."""

from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.execution.quick_compiler import quick_compiler
from tests.execution.recording import TapeRecorder
from tests.guards.no_sync import DEVICES
from tests.interrupting import assert_same_bits, check, make_trainer, momentum, samples, simply, state_of, updates_of
from treadle import Trainer
from treadle.callbacks import ModelEmaCallback
from treadle.errors import ConfigError
from treadle.execution import Execution, GraphExecution
from treadle.memory.activation_checkpointing import ActivationCheckpointing, matching_blocks, recompute


class Block(nn.Module):
    """A block with randomness and with buffers that move; it counts its forward passes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.dropout = nn.Dropout(0.5)
        self.passes = 0

    def forward(self, inputs: Tensor, *, scale: float = 1.0) -> Tensor:
        self.passes += 1
        outputs: Tensor = inputs + self.dropout(torch.tanh(self.norm(self.layer(inputs))) * scale)
        return outputs


class Network(nn.Module):
    """A few blocks in a list."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.stem = nn.Linear(2, 8)
            self.blocks = nn.ModuleList(Block() for _ in range(3))
            self.head = nn.Linear(8, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        states = self.stem(inputs)
        for block in self.blocks:
            states = block(states, scale=0.5)
        outputs: Tensor = self.head(states)
        return outputs

    @property
    def passes(self) -> list[int]:
        return [int(block.passes) for block in self.blocks]  # type: ignore[arg-type]


def train(patterns: Any = None, *callbacks: Any, epochs: int = 2, **kwargs: Any) -> Any:
    options = {"build": Network, "activation_checkpointing": patterns, **kwargs}
    run = {name: options.pop(name) for name in ("gradient_accumulation_steps", "eval_dataset") if name in options}
    trainer = make_trainer(None, *callbacks, **options)
    trainer.train(samples(), epochs, **run)
    return trainer


# Numbers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("patterns", [["blocks.*"], ["Block"], ["blocks.1"], ["*"]])
@pytest.mark.parametrize("settings", [{}, {"gradient_accumulation_steps": 2}, {"precision": "bf16"}], ids=str)
def test_dropout_and_batch_norm_have_the_bits_of_a_model_that_keeps_everything(
    patterns: list[str], settings: dict[str, Any]
) -> None:
    saving, keeping = train(patterns, **settings), train(**settings)
    assert_same_bits(state_of(saving), state_of(keeping))
    assert saving.model.blocks[1].passes == 2 * keeping.model.blocks[1].passes


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("execution", ["eager", "graph"])
def test_on_cuda_too_dropout_has_the_bits_of_a_model_that_keeps_everything(execution: str) -> None:
    saving, keeping = (train(one, build=Dropping, device="cuda", execution=execution) for one in (["blocks.*"], None))
    assert_same_bits(state_of(saving), state_of(keeping))


def test_a_recorded_step_computes_its_blocks_again() -> None:
    class Recorded(Trainer):
        def create_execution(self) -> Execution:
            self.recorder = TapeRecorder()
            return GraphExecution(self, self.recorder, required=True)

    recorded = train(["blocks.*"], kind=Recorded, optimizer=momentum, build=Quiet)
    eager = train(["blocks.*"], optimizer=momentum, build=Quiet)
    assert recorded.recorder.replays > 0
    assert_same_bits(recorded.model.state_dict(), eager.model.state_dict())


class Quiet(Network):
    """The network without a count of passes, which a recorded step may not keep."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(1)
            parts = [nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh()) for _ in range(3)]
        self.blocks = nn.ModuleList(parts)

    def forward(self, inputs: Tensor) -> Tensor:
        states = self.stem(inputs)
        for block in self.blocks:
            states = block(states)
        outputs: Tensor = self.head(states)
        return outputs


class Dropping(Quiet):
    """The same with dropout, which only a recording of the device's own can draw anew."""

    def __init__(self) -> None:
        super().__init__()
        for block in self.blocks:
            block.append(nn.Dropout(0.5))  # type: ignore[operator]


def test_only_the_inputs_of_blocks_are_kept_for_the_backward_pass() -> None:
    def kept(model: nn.Module) -> int:
        sizes: list[int] = []
        own = {parameter.data_ptr() for parameter in model.parameters()}

        def pack(tensor: Tensor) -> Tensor:
            sizes.append(0 if tensor.data_ptr() in own else tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model(torch.randn(64, 2))
        return sum(sizes)

    model = Network()
    everything = kept(model)
    with ActivationCheckpointing(model, ["blocks.*"]):
        inputs_only = kept(model)
    assert inputs_only * 3 < everything


def test_a_run_with_recomputed_blocks_goes_on_exactly_after_cuts(tmp_path: Path) -> None:
    check(tmp_path, partial(_make, ["blocks.*"]), simply)


def _make(patterns: Any, run_dir: Path, *callbacks: Any) -> Any:
    return make_trainer(run_dir, *callbacks, build=Network, activation_checkpointing=patterns)


def test_a_run_may_go_on_with_other_blocks_recomputed(tmp_path: Path) -> None:
    keeping = _make(None, tmp_path / "keeping")
    simply(keeping)
    _make(["blocks.0"], tmp_path / "saving").train(samples(), 2, save_every=2, log_every=2)
    saving = _make(["Block"], tmp_path / "saving")
    simply(saving)
    assert updates_of(saving) == (6, 6)
    assert_same_bits(state_of(saving), state_of(keeping))


def test_an_average_of_the_model_is_evaluated_with_weights_of_its_own(tmp_path: Path) -> None:
    def losses(patterns: Any) -> Any:
        average = ModelEmaCallback(decay=0.5, save_path=tmp_path / "average.pt")
        return train(patterns, average, eval_dataset=samples()).run_history.get_metric_values(
            "ema_model_eval_loss_epoch"
        )

    assert losses(["blocks.*"]) == losses(None)


def test_micro_batches_shrink_with_recomputed_blocks_as_without() -> None:
    class Narrow(Quiet):
        def forward(self, inputs: Tensor) -> Tensor:
            if len(inputs) > 4:
                raise torch.OutOfMemoryError(f"no room for {len(inputs)} samples")
            return super().forward(inputs)

    def run(patterns: Any) -> Any:
        return train(patterns, build=Narrow, microbatch="auto")

    saving = run(["blocks.*"])
    assert saving.this_run.updater.splits.parts == 2
    assert_same_bits(state_of(saving), state_of(run(None)))


def test_memory_that_runs_out_while_a_block_is_computed_again_shrinks_the_micro_batch() -> None:
    class Greedy(Block):
        """A block for which memory runs out when it is computed again for more than four samples."""

        def forward(self, inputs: Tensor, *, scale: float = 1.0) -> Tensor:
            again = torch.is_grad_enabled() and torch._C._current_graph_task_id() != -1
            if again and len(inputs) > 4:
                raise torch.OutOfMemoryError("no room")
            return super().forward(inputs, scale=scale)

    class Hungry(Network):
        def __init__(self) -> None:
            super().__init__()
            with torch.random.fork_rng():
                torch.manual_seed(1)
                self.blocks = nn.ModuleList(Greedy() for _ in range(2))

    trainer = train(["blocks.*"], build=Hungry, microbatch="auto")
    assert trainer.this_run.updater.splits.parts == 2
    assert trainer.progress.step == 6
    # 24 samples in parts of 4, twice: the attempt in vain left nothing in the running means.
    assert trainer.model.blocks[0].norm.num_batches_tracked.item() == 12


# The model itself -----------------------------------------------------------------------------------------


def test_names_of_weights_stay_and_the_model_is_afterwards_as_it_was() -> None:
    model = Network()
    names = list(model.state_dict())
    forward = model.blocks[0].forward
    with ActivationCheckpointing(model, ["blocks.*"]) as saving:
        assert list(model.state_dict()) == names
        assert [name for name, _ in saving.blocks] == ["blocks.0", "blocks.1", "blocks.2"]
        assert "forward" in vars(model.blocks[0])
    assert all("forward" not in vars(module) for module in model.modules())
    assert model.blocks[0].forward == forward


def test_a_forward_pass_of_a_modules_own_is_kept() -> None:
    model = Network()
    model.blocks[0].forward = lambda inputs, scale: inputs * 3  # type: ignore[assignment]
    own = model.blocks[0].forward
    with ActivationCheckpointing(model, ["blocks.0"]):
        assert model.blocks[0](torch.ones(1, 8), scale=1.0).tolist() == [[3.0] * 8]
    assert model.blocks[0].forward is own


def test_blocks_are_put_back_after_a_run_that_failed() -> None:
    class Failing(Network):
        def forward(self, inputs: Tensor) -> Tensor:
            raise RuntimeError("no")

    trainer = make_trainer(None, build=Failing, activation_checkpointing=["blocks.*"])
    with pytest.raises(RuntimeError, match="no"):
        trainer.train(samples(), 1)
    assert all("forward" not in vars(module) for module in trainer.model.modules())


def test_a_copy_of_the_model_has_forward_passes_of_its_own() -> None:
    model = Network().eval()
    for block in model.blocks:
        recompute(block)
        recompute(block)
    copied = deepcopy(model)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.zero_()
    assert copied(torch.ones(2, 2)).tolist() == [[0.0], [0.0]]
    assert model(torch.ones(2, 2)).abs().sum() > 0


def test_without_gradients_nothing_is_computed_again() -> None:
    model = Network()
    with ActivationCheckpointing(model, ["blocks.*"]), torch.no_grad():
        model(torch.ones(4, 2))
    assert model.passes == [1, 1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")
def test_a_compiled_model_can_compute_blocks_again(device: str) -> None:
    with quick_compiler() as counts:
        saving = train(["blocks.*"], build=Quiet, epochs=1, optimizer=momentum, compile=True, device=device)
        assert counts["unique_graphs"] > 0
    keeping = train(None, build=Quiet, epochs=1, optimizer=momentum, device=device)
    for one, other in zip(saving.model.parameters(), keeping.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


# Patterns ---------------------------------------------------------------------------------------------------


def test_a_block_inside_of_another_is_computed_again_with_it() -> None:
    found = matching_blocks(Network(), ["blocks*", "Linear"], setting="x")
    assert [name for name, _ in found] == ["stem", "blocks.0", "blocks.1", "blocks.2", "head"]


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (
            ["block.*"],
            "activation_checkpointing: 'block.*' matches no module of Network; did you mean 'blocks.*'?",
        ),
        (
            ["encoder"],
            "activation_checkpointing: 'encoder' matches no module of Network; it has stem, blocks, blocks.0, "
            "blocks.0.layer, blocks.0.norm, blocks.0.dropout, blocks.1, blocks.1.layer and 7 more",
        ),
        (
            ["blocks"],
            "activation_checkpointing: 'blocks' matches blocks, a ModuleList, which is never called itself; write "
            "'blocks.*'",
        ),
        (
            "blocks.*",
            "activation_checkpointing='blocks.*' must be a list of patterns; write ['blocks.*'], or 'auto' for the "
            "blocks that the model is a row of",
        ),
    ],
)
def test_a_pattern_that_matches_nothing_is_refused_when_the_trainer_is_built(patterns: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_trainer(None, build=Network, activation_checkpointing=patterns)
    assert str(caught.value) == message


def test_the_patterns_are_in_the_config_of_the_run() -> None:
    assert train(["blocks.*"], epochs=1).run_config.to_dict()["activation_checkpointing"] == ["blocks.*"]
    assert train(None, epochs=1).run_config.to_dict()["activation_checkpointing"] is None
