"""Recorded steps on a CUDA device: the same bits as ordinary steps, and a usable device when recording fails."""

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim
from torch.utils.data import TensorDataset

from treadle import Trainer
from treadle.callbacks import ModelEmaCallback, TrainerCallback
from treadle.data import Batch
from treadle.errors import CaptureError
from treadle.execution import Compile, GraphExecution
from treadle.execution.cuda_graph.capture import CudaGraphs
from treadle.phase import Phase, alternate

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 10))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 4, 4)),
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


class Attending(nn.Module):
    """A transformer layer over four pieces of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.head = nn.Linear(32, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        pieces = F.pad(inputs, (0, 16)).view(-1, 4, 8)
        outputs: Tensor = self.head(self.layer(pieces).flatten(1))
        return outputs


MODELS = {"mlp": mlp, "cnn": cnn, "attention": Attending}
OPTIMIZERS: dict[str, Any] = {
    "adamw": lambda p: optim.AdamW(p, lr=2**-8),
    "adamw foreach": lambda p: optim.AdamW(p, lr=2**-8, foreach=True),
    "sgd": lambda p: optim.SGD(p, lr=2**-5, momentum=0.9, dampening=0.1),
    "rmsprop": lambda p: optim.RMSprop(p, lr=2**-8),
    "adamax": lambda p: optim.Adamax(p, lr=2**-6),
    "nadam": lambda p: optim.NAdam(p, lr=2**-8),
}
RUNS: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulation": {"gradient_accumulation_steps": 3},
    "clip": {"clip_norm": 0.5},
    "schedule": {
        "create_scheduler_fn": lambda o: optim.lr_scheduler.LambdaLR(o, lambda step: 0.5 ** (step % 3)),
        "clip_norm": 1.0,
    },
}


def data(count: int = 116) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, 16, generator=generator)
    return TensorDataset(inputs, torch.randint(0, 10, (count,), generator=generator))


def train(execution: Any, model: str, optimizer: str = "adamw", kind: type[Trainer] = Trainer, **given: Any) -> Trainer:
    run = {"num_epochs": 4, "per_device_batch_size": 16, "train_dataloader_kwargs": {"num_workers": 0}}
    names = set(Trainer.train.__annotations__) | set(Trainer.train.__kwdefaults__ or {})
    run |= {name: value for name, value in given.items() if name in names}
    options = {"seed": 3, "callbacks": (), "deterministic": True}
    options |= {name: value for name, value in given.items() if name not in names}
    torch.manual_seed(0)
    network = MODELS[model]()
    network.cuda()
    made = OPTIMIZERS[optimizer](network.parameters())
    trainer = kind(network, nn.CrossEntropyLoss(), made, execution=execution, **options)
    trainer.result = trainer.train(data(), **run)  # type: ignore[attr-defined]
    return trainer


def assert_same(one: Trainer, other: Trainer) -> None:
    for (name, mine), theirs in zip(one.model.state_dict().items(), other.model.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs), (name, float((mine.double() - theirs.double()).abs().max()))
    assert one.result.history == other.result.history  # type: ignore[attr-defined]


def recordings(trainer: Trainer) -> int:
    assert isinstance(trainer.this_run.execution, GraphExecution)
    return trainer.this_run.execution.count


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("model", MODELS)
def test_replays_give_the_bits_of_steps(model: str, precision: str, run: str) -> None:
    eager = train("eager", model, precision=precision, **RUNS[run])
    graph = train("graph", model, precision=precision, **RUNS[run])
    assert recordings(graph) >= 1
    assert_same(eager, graph)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_that_can_be_recorded_gives_the_same(optimizer: str) -> None:
    eager, graph = train("eager", "mlp", optimizer), train("graph", "mlp", optimizer)
    assert recordings(graph) == 2
    for mine, theirs in zip(eager.model.parameters(), graph.model.parameters(), strict=True):
        # Counters on the device take other roundings than counters on the host.
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def test_an_optimizer_counts_after_a_run_where_it_did_before() -> None:
    trainer = train("graph", "mlp", "nadam")
    assert [group["capturable"] for group in trainer.optimizer.param_groups] == [False]
    assert all(state["step"].device.type == "cpu" for state in trainer.optimizer.state.values())


def test_an_optimizer_that_counts_on_the_host_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPTIMIZERS, "adagrad", lambda p: optim.Adagrad(p, lr=2**-6))
    with pytest.raises(CaptureError, match="Adagrad keeps 'step' on the host"):
        train("graph", "mlp", "adagrad")


def test_the_short_last_batch_is_recorded_when_it_comes_again() -> None:
    assert recordings(train("graph", "cnn")) == 2


@pytest.mark.parametrize("gate", ["skip", "raise"])
def test_a_nonfinite_loss_is_dealt_with_as_in_ordinary_steps(gate: str) -> None:
    class Poisoned(Trainer):
        def calculate_train_batch_loss(self, batch: Batch) -> dict[str, Any]:
            output = super().calculate_train_batch_loss(batch)
            output["loss"] = output["loss"] / (batch[1][0] != 3)
            return output

    if gate == "raise":
        messages = []
        for execution in ("eager", "graph"):
            with pytest.raises(ArithmeticError, match=r"loss is .* at step") as caught:
                train(execution, "mlp", kind=Poisoned, log_every=1)
            messages.append(str(caught.value))
        assert messages[0] == messages[1]
        return
    eager = train("eager", "mlp", kind=Poisoned, on_nonfinite="skip")
    graph = train("graph", "mlp", kind=Poisoned, on_nonfinite="skip")
    assert recordings(graph) >= 1
    assert float(graph.this_run.updater.gate.skipped) == float(eager.this_run.updater.gate.skipped) > 0  # type: ignore[union-attr]
    assert_same(eager, graph)


def test_the_average_of_the_weights_is_part_of_the_recording(tmp_path: Path) -> None:
    averages = []
    for execution in ("eager", "graph"):
        average = ModelEmaCallback(decay=0.5, save_path=tmp_path / "ema.pt", evaluate_during_training=False)
        trainer = train(execution, "cnn", callbacks=(average,))
        averages.append(average.ema_model)
    assert trainer.this_run.execution.recorded_callbacks
    for mine, theirs in zip(averages[0].state_dict().values(), averages[1].state_dict().values(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("execution", ["eager", "compile", "graph", "auto"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_run_that_is_cut_and_resumed_ends_in_the_same_bits(execution: str, precision: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"precision": precision, "clip_norm": 0.5}
    whole = train(execution, "cnn", **options)
    folder = tmp_path / "run"
    train(execution, "cnn", run_dir=folder, save_every="5 steps", max_steps=19, **options)
    resumed = train(execution, "cnn", run_dir=folder, resume="auto", **options)
    assert_same(whole, resumed)


@pytest.mark.parametrize("optimizer", ["adamw foreach", "nadam"])
def test_a_run_whose_optimizer_is_not_fused_is_resumed_in_the_same_bits(optimizer: str, tmp_path: Path) -> None:
    whole = train("graph", "mlp", optimizer)
    train("graph", "mlp", optimizer, run_dir=tmp_path / "run", save_every="5 steps", max_steps=19)
    assert_same(whole, train("graph", "mlp", optimizer, run_dir=tmp_path / "run", resume="auto"))


def test_a_run_with_a_schedule_is_resumed_in_the_same_bits(tmp_path: Path) -> None:
    # Rates that are no numbers of single precision, which is what replays read.
    options: dict[str, Any] = {
        "create_scheduler_fn": lambda o: optim.lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + 0.37 * step))
    }
    whole = train("graph", "cnn", **options)
    train("graph", "cnn", run_dir=tmp_path / "run", save_every="5 steps", max_steps=19, **options)
    assert_same(whole, train("graph", "cnn", run_dir=tmp_path / "run", resume="auto", **options))


def test_rates_that_move_by_epochs_are_recorded_for_as_long_as_it_takes() -> None:
    options: dict[str, Any] = {
        "create_scheduler_fn": lambda o: optim.lr_scheduler.StepLR(o, 1, 0.9),
        "scheduler_interval": "epoch",
        "num_epochs": 20,
        "per_device_batch_size": 8,
    }
    graph = train("graph", "mlp", **options)
    assert recordings(graph) == 20
    assert_same(train("eager", "mlp", **options), graph)


def test_a_run_records_anew_after_all_of_its_recordings_are_gone() -> None:
    class Thawing(TrainerCallback):
        def on_train_epoch_start(self, trainer: Trainer, **kwargs: Any) -> None:
            trainer.model.get_submodule("0").requires_grad_(trainer.progress.epoch > 1)

    graph = train("graph", "mlp", callbacks=(Thawing(),))
    assert recordings(graph) >= 2
    assert_same(train("eager", "mlp", callbacks=(Thawing(),)), graph)


def test_a_run_can_change_between_ordinary_and_recorded_steps(tmp_path: Path) -> None:
    whole = train("eager", "cnn")
    train("graph", "cnn", run_dir=tmp_path / "run", max_steps=19)
    resumed = train("eager", "cnn", run_dir=tmp_path / "run", resume="auto")
    assert_same(whole, resumed)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator, self.critic = nn.Linear(4, 16), nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 1))


class Adversarial(Trainer):
    def phases(self, epoch: int) -> Iterator[Phase]:
        stream, model = self.streams["train"], self.model
        yield from alternate(
            Phase("critic", stream, self.critic_loss, self.optimizer["critic"], steps=1,
                  parameters=list(model.critic.parameters())),
            Phase("generator", stream, self.generator_loss, self.optimizer["generator"], steps=1, reuse=True,
                  parameters=list(model.generator.parameters())),
        )  # fmt: skip

    def critic_loss(self, batch: Batch) -> dict[str, Any]:
        made = self.model.generator(torch.randn(len(batch[0]), 4, device=self.device)).detach()
        return {"loss": (self.model.critic(made) - self.model.critic(batch[0])).mean(), "batch_size": len(batch[0])}

    def generator_loss(self, batch: Batch) -> dict[str, Any]:
        made = self.model.generator(torch.randn(len(batch[0]), 4, device=self.device))
        return {"loss": -self.model.critic(made).mean(), "batch_size": len(batch[0])}


def test_each_phase_has_recordings_of_its_own() -> None:
    ends = []
    for execution in ("eager", "graph"):
        torch.manual_seed(0)
        pair = Pair().cuda()
        optimizers = {name: optim.AdamW(getattr(pair, name).parameters(), lr=2**-8) for name in ("critic", "generator")}
        trainer = Adversarial(
            pair, None, optimizers, callbacks=(), seed=3, execution=execution, deterministic=True
        )  # fmt: skip
        trainer.train(data(), num_epochs=4, per_device_batch_size=16, train_dataloader_kwargs={"num_workers": 0})
        ends.append(pair)
    assert recordings(trainer) == 4
    for mine, theirs in zip(*(end.parameters() for end in ends), strict=True):
        assert torch.equal(mine, theirs)


class Reading(Trainer):
    def calculate_train_batch_loss(self, batch: Batch) -> dict[str, Any]:
        output = super().calculate_train_batch_loss(batch)
        if output["loss"].item() > 1000:
            output["loss"] = output["loss"] / 2
        return output


class Copying(Trainer):
    def calculate_train_batch_loss(self, batch: Batch) -> dict[str, Any]:
        output = super().calculate_train_batch_loss(batch)
        output["loss"] = output["loss"] * torch.tensor(1.0, device=self.device)
        return output


class Masking(Trainer):
    def calculate_train_batch_loss(self, batch: Batch) -> dict[str, Any]:
        inputs, targets = batch
        kept = targets >= 0
        return {"loss": F.cross_entropy(self.model(inputs)[kept], targets[kept]), "batch_size": len(inputs)}


class DrawingOnTheHost(Trainer):
    def calculate_train_batch_loss(self, batch: Batch) -> dict[str, Any]:
        noise = torch.randn(batch[0].shape).to(self.device, non_blocking=True)
        return super().calculate_train_batch_loss((batch[0] + 0 * noise, batch[1]))


class Synchronising(Trainer):
    def optimizer_step(self) -> None:
        torch.cuda.synchronize()
        super().optimizer_step()


FAULTS: dict[type[Trainer], str] = {
    Reading: r"wait for the device .* at test_graph_gpu\.py:\d+: if output\[\"loss\"\]\.item\(\) > 1000",
    Copying: r"(wait for the device|copies between host and device).* at test_graph_gpu\.py:\d+",
    Masking: r"wait for the device .* at test_graph_gpu\.py:\d+",
    DrawingOnTheHost: r"draws from torch's generator on the host",
    Synchronising: r"wait for the device .* at test_graph_gpu\.py:\d+: torch\.cuda\.synchronize\(\)",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_what_cannot_be_recorded_is_named_and_the_device_stays_usable(fault: type[Trainer]) -> None:
    with pytest.raises(CaptureError, match=FAULTS[fault]):
        train("graph", "mlp", kind=fault)
    assert torch.isfinite(torch.rand(3, device="cuda").sum())
    assert recordings(train("graph", "mlp")) == 2


def tried(trainer: Trainer) -> GraphExecution:
    """Return what records where it can, and goes step by step where it cannot after all."""
    return GraphExecution(trainer, CudaGraphs(trainer.device), required=False)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_auto_goes_step_by_step_and_says_so(fault: type[Trainer], capsys: pytest.CaptureFixture[str]) -> None:
    automatic = train(tried, "mlp", kind=fault)
    assert "execution='auto' goes step by step: " in capsys.readouterr().out
    assert_same(train("eager", "mlp", kind=fault), automatic)


@pytest.mark.parametrize("optimizer", ["adamw foreach", "nadam"])
def test_a_run_that_goes_step_by_step_after_all_is_resumed_in_the_same_bits(optimizer: str, tmp_path: Path) -> None:
    whole = train(tried, "mlp", optimizer, kind=Reading)
    assert isinstance(whole.this_run.execution, GraphExecution)
    assert whole.this_run.execution.reason is not None
    for cut in (2, 19):
        folder = tmp_path / str(cut)
        train(tried, "mlp", optimizer, kind=Reading, run_dir=folder, save_every="1 step", max_steps=cut)
        assert_same(whole, train(tried, "mlp", optimizer, kind=Reading, run_dir=folder, resume="auto"))


def test_a_callback_that_changes_the_rate_is_followed() -> None:
    class Halving(TrainerCallback):
        def on_update_start(self, trainer: Trainer, **kwargs: Any) -> None:
            trainer.optimizer.param_groups[0]["lr"] = 2**-8 if trainer.progress.step < 13 else 2**-9

    assert_same(train("eager", "mlp", callbacks=(Halving(),)), train("graph", "mlp", callbacks=(Halving(),)))


class Noisy(nn.Module):
    """Draws from a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator("cuda").manual_seed(5)
        self.layer = nn.Linear(16, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        noise = torch.randn(inputs.shape, device=inputs.device, generator=self.generator)
        outputs: Tensor = self.layer(inputs + noise)
        return outputs


def test_a_generator_of_the_models_own_draws_anew_in_every_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "noisy", Noisy)
    train_graph = train("graph", "noisy")
    assert recordings(train_graph) == 2
    assert len(set(train_graph.result.history["train_loss_epoch"])) == 4  # type: ignore[attr-defined]


def bare() -> nn.Module:
    # Without dropout: compiled code draws other masks.
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 10))


@pytest.mark.parametrize("how", [True, Compile(modules="0")])
def test_a_compiled_step_can_be_recorded(how: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "bare", bare)
    eager = train("eager", "bare")
    graph = train("graph", "bare", compile=how)
    assert recordings(graph) == 2
    for mine, theirs in zip(eager.model.parameters(), graph.model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("execution", ["eager", "compile", "graph"])
def test_no_step_of_a_run_waits_for_the_device(execution: str) -> None:
    class Watching(TrainerCallback):
        def on_train_epoch_start(self, trainer: Trainer, **kwargs: Any) -> None:
            if trainer.progress.epoch == 2:
                torch.cuda.set_sync_debug_mode("error")

        def on_train_epoch_end(self, trainer: Trainer, **kwargs: Any) -> None:
            torch.cuda.set_sync_debug_mode("default")

    class Quiet(Trainer):
        def train_epoch_end(self) -> None:
            torch.cuda.set_sync_debug_mode("default")

    try:
        trainer = train(execution, "mlp", kind=Quiet, callbacks=(Watching(),), clip_norm=0.5, log_every=1000)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert trainer.progress.epoch == 4
    if execution == "graph":
        assert recordings(trainer) == 2


def test_a_graph_that_became_garbage_is_not_destroyed_during_a_recording() -> None:
    counted = torch.zeros(1, device="cuda")
    kept: list[Any] = [CudaGraphs(counted.device).capture(lambda: counted.add_(1))]
    kept.append(kept)
    del kept
    thresholds = gc.get_threshold()

    def work() -> None:
        gc.set_threshold(1)
        cycles: list[Any] = []
        for _ in range(100):
            cycles.append([cycles])
        counted.add_(10)

    try:
        replay = CudaGraphs(counted.device).capture(work)
    finally:
        gc.set_threshold(*thresholds)
    replay()
    assert gc.isenabled()
    assert counted.tolist() == [10.0]
