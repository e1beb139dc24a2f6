"""`execution="auto"` on a CUDA device: what is tried leaves no trace, and a run has the bits of what it took."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn, optim

from tests.execution import test_graph_gpu as graphs
from tests.execution.test_graph_gpu import MODELS, Reading, assert_same, bare
from treadle import Trainer
from treadle.callbacks import TrainerCallback
from treadle.execution import Choice, GraphExecution

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]


@pytest.fixture(autouse=True)
def _tries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every run try the other ways, however short it is; it is compiled where a test says so."""
    monkeypatch.setattr("treadle.execution.auto.FIXED", 0.0)
    monkeypatch.setattr("treadle.execution.auto.TRIES", 0)
    monkeypatch.setitem(MODELS, "bare", bare)


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have it tried to compile, too."""
    monkeypatch.setattr("treadle.execution.auto.seconds_to_compile", lambda trainer: 0.0)


@pytest.fixture
def fastest(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """What makes a way the fastest: it is still made, run and thrown away as any."""

    def make(way: str) -> None:
        def timed(run: Callable[[], None], device: torch.device) -> float:
            for _ in range(3):
                run()
            torch.cuda.synchronize()
            return 0.5 if run.__self__.name == way else 1.0  # type: ignore[attr-defined]

        monkeypatch.setattr("treadle.execution.candidates.timed", timed)

    return make


def train(execution: Any, model: str, *optimizer: str, **given: Any) -> Trainer:
    return graphs.train(execution, model, *optimizer, **given)


def chosen_by(trainer: Trainer) -> Choice:
    choice: Choice = trainer.tracked._objects["execution"].choice  # type: ignore[attr-defined]
    return choice


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("model", MODELS)
def test_a_deterministic_run_takes_a_recording_and_has_the_bits_of_eager_updates(model: str, precision: str) -> None:
    auto = train("auto", model, precision=precision, clip_norm=0.5)
    choice = chosen_by(auto)
    assert choice.chosen == "graph", choice.describe()
    assert isinstance(auto.this_run.execution, GraphExecution)
    assert choice.trials[2].refused == "deterministic=True, and compiled steps have other bits"
    assert_same(auto, train("eager", model, precision=precision, clip_norm=0.5))


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_where_eager_updates_are_chosen_nothing_is_left_of_what_was_tried(
    model: str, fastest: Callable[[str], None], compiles: None
) -> None:
    fastest("eager")
    auto = train("auto", model)
    assert chosen_by(auto).trials[1].is_taken, chosen_by(auto).describe()
    drawn = torch.rand(3, device="cuda")
    assert_same(auto, train("eager", model))
    assert torch.equal(torch.rand(3, device="cuda"), drawn)


@pytest.mark.parametrize("way", ["eager", "graph", "compile", "graph+compile"])
def test_a_run_that_chose_has_the_bits_of_one_that_was_told_so(
    way: str, fastest: Callable[[str], None], compiles: None, tmp_path: Path
) -> None:
    fastest(way)
    options = {"deterministic": False, "clip_norm": 0.5}
    auto = train("auto", "bare", run_dir=tmp_path / "run", **options)
    choice = Choice.read(tmp_path / "run")
    assert (choice.chosen, [trial.is_taken for trial in choice.trials]) == (way, [True] * 4), choice.describe()
    assert_same(auto, train(str(tmp_path / "run" / "execution.json"), "bare", **options))


@pytest.mark.parametrize("way", ["graph", "graph+compile"])
def test_a_run_that_chose_is_resumed_in_the_same_bits(
    way: str, fastest: Callable[[str], None], compiles: None, tmp_path: Path
) -> None:
    fastest(way)
    options: dict[str, Any] = {"deterministic": False}
    whole = train("auto", "bare", **options)
    train("auto", "bare", run_dir=tmp_path / "run", save_every="5 steps", max_steps=19, **options)
    fastest("eager")
    resumed = train("auto", "bare", run_dir=tmp_path / "run", resume="auto", **options)
    assert chosen_by(resumed).chosen == way
    assert_same(whole, resumed)


def test_what_stands_in_the_way_is_said_with_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    auto = train("auto", "mlp", kind=Reading)
    said = capsys.readouterr().out
    assert "execution='auto' is eager from step 4 on: eager " in said
    assert ", no graph (the step makes the host wait for the device " in said
    assert "at test_graph_gpu.py:" in said
    assert 'if output["loss"].item() > 1000' in said
    assert_same(auto, train("eager", "mlp", kind=Reading))


def test_no_step_waits_for_the_device_once_it_is_chosen() -> None:
    class Watching(TrainerCallback):
        def on_train_epoch_start(self, trainer: Trainer, **kwargs: Any) -> None:
            if trainer.progress.epoch == 2:
                torch.cuda.set_sync_debug_mode("error")

    class Quiet(Trainer):
        def train_epoch_end(self) -> None:
            torch.cuda.set_sync_debug_mode("default")

    try:
        trainer = train("auto", "mlp", kind=Quiet, callbacks=(Watching(),), log_every=1000)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert trainer.progress.epoch == 4


def test_a_large_state_is_saved_on_the_host_while_others_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.execution.cuda_graph.replay_check.ON_DEVICE", 0)
    monkeypatch.setattr("treadle.execution.cuda_graph.replay_check.SHARE", 0.0)
    monkeypatch.setattr("treadle.execution.cuda_graph.replay_check.LARGEST", 64)
    auto = train("auto", "cnn")
    assert chosen_by(auto).chosen == "graph", chosen_by(auto).describe()
    assert_same(auto, train("eager", "cnn"))


@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
def test_a_model_of_transformers_is_recorded_once_it_is_compiled(bf16: bool, compiles: None) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128, vocab_size=100,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    tokens = torch.randint(100, (20 * 8, 16), generator=torch.Generator().manual_seed(1))
    batches = [
        {"input_ids": rows, "attention_mask": torch.ones_like(rows), "labels": rows[:, 0] % 2}
        for rows in tokens.split(8)
    ]

    class Losses(TrainerCallback):
        def __init__(self) -> None:
            self.found: list[float] = []

        def on_update_end(self, trainer: Trainer, **kwargs: Any) -> None:
            self.found.append(trainer.this_run.losses.loss_value)

    ends = []
    for execution in ("eager", "auto"):
        torch.manual_seed(0)
        model = transformers.BertForSequenceClassification(config)
        losses = Losses()
        precision = "bf16" if bf16 else "fp32"
        trainer = Trainer(
            model, None, optim.AdamW(model.parameters(), lr=1e-4), callbacks=(losses,), seed=0, execution=execution,
            precision=precision,
        )  # fmt: skip
        trainer.train(torch.utils.data.DataLoader(batches, batch_size=None), num_epochs=2)  # type: ignore[arg-type]
        ends.append(losses.found)
    choice = chosen_by(trainer)
    assert "at masking_utils.py" in choice.trials[1].refused or choice.trials[1].is_taken, choice.describe()
    assert choice.trials[-1].is_taken, choice.describe()
    assert choice.chosen == "graph+compile", choice.describe()
    assert ends[1] == pytest.approx(ends[0], rel=2e-2 if bf16 else 1e-5)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_layers_with_dropout_are_recorded(kind: Any) -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = kind(4, 16, num_layers=2, dropout=0.5, batch_first=True)
            self.head = nn.Linear(16, 10)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            outputs: torch.Tensor = self.head(self.layers(inputs.view(-1, 4, 4))[0][:, -1])
            return outputs

    assert os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    MODELS["recurrent"] = Recurrent
    try:
        auto = train("auto", "recurrent")
        assert chosen_by(auto).chosen == "graph", chosen_by(auto).describe()
        assert_same(auto, train("eager", "recurrent"))
    finally:
        del MODELS["recurrent"]
