"""A step never reads the device: whole updates and evaluation steps of real runs, under the guard."""

from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import TensorDataset
from torchmetrics.classification import MulticlassAccuracy

from tests.guards.no_sync import DEVICES, DeviceReadError, host_counters, no_sync
from treadle import DEFAULT_CALLBACKS, Phase, Trainer
from treadle.callback import TrainerCallback
from treadle.callbacks import GradientNormMonitor, LearningRateMonitor, ModelEmaCallback, ThroughputMonitor
from treadle.loop import Log
from treadle.run import Run
from treadle.schedules import CosineSchedule

NEVER = 10_000
"""Steps between two logs, in runs that are over before."""
CLASSES = 3


class GuardedTrainer(Trainer):
    """A trainer whose updates are guarded whole, with everything that callbacks do in them."""

    guarded_updates = 0
    armed = True

    def guard(self) -> AbstractContextManager[None]:
        # Counters of the optimizer are on the host by design; see host_counters.
        exempt = host_counters(self.optimizer) if isinstance(self.optimizer, Optimizer) else tuple
        return no_sync(self.device.type, exempt=exempt) if self.armed else nullcontext()

    def update(self, phase: Phase, window: list[Any]) -> None:
        with self.guard():
            super().update(phase, window)
        self.guarded_updates += self.armed

    def create_run(self) -> Run:
        return GuardedRun(self)

    def fire(self, event: str, **kwargs: Any) -> None:
        # The one event of an update that is outside of the two methods above, because data is drawn in between.
        with self.guard() if event == "on_update_start" else nullcontext():
            super().fire(event, **kwargs)


class GuardedRun(Run):
    """A run in which what follows an update is guarded, too."""

    def after_update(self) -> None:
        with self.trainer.guard():
            super().after_update()


class GuardedEvaluator(Trainer):
    """A trainer whose evaluation steps are guarded from one event to the other; the first batch is let be."""

    guarded_steps = 0

    def fire(self, event: str, **kwargs: Any) -> None:
        if event == "on_eval_epoch_start":
            self.guards = ExitStack()
            self.first = True
        # Torchmetrics checks the values of the first batch, which reads them; the trainer turns that off afterwards.
        if event == "on_eval_step_start" and not self.first:
            self.guards.enter_context(no_sync(self.device.type))
        super().fire(event, **kwargs)
        if event == "on_eval_step_end":
            self.guards.close()
            self.guarded_steps += not self.first
            self.first = False


def data(count: int = 32) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(count, 4, generator=generator)
    return TensorDataset(inputs, torch.randint(CLASSES, (count,), generator=generator))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, CLASSES))


def make(kind: type[Trainer], device: str, optimizer: Any = SGD, model: nn.Module | None = None, **kwargs: Any) -> Any:
    model = (network() if model is None else model).to(device)
    made = optimizer(model.parameters(), lr=0.01)
    arguments = {"callbacks": (), "seed": 1, "device": device} | kwargs
    return kind(model, nn.CrossEntropyLoss(), made, **arguments)


def train(trainer: Trainer, **kwargs: Any) -> Trainer:
    arguments: dict[str, Any] = {"num_epochs": 2, "per_device_batch_size": 4, "log_every": NEVER}
    arguments |= {"train_dataloader_kwargs": {"num_workers": 0, "persistent_workers": False}}
    trainer.train(data(), **(arguments | kwargs))
    return trainer


def fused_adamw(parameters: Any, lr: float) -> Optimizer:
    return AdamW(parameters, lr=lr, fused=True)


def momentum(parameters: Any, lr: float) -> Optimizer:
    return SGD(parameters, lr=lr, momentum=0.9, weight_decay=0.1)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("optimizer", [SGD, momentum, AdamW, fused_adamw])
def test_an_update_reads_nothing(optimizer: Any, device: str) -> None:
    trainer = train(make(GuardedTrainer, device, optimizer))
    assert trainer.guarded_updates == 16


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("optimizer", [SGD, AdamW])
def test_an_update_with_everything_on_reads_nothing(optimizer: Any, device: str, tmp_path: Path) -> None:
    callbacks = (
        *DEFAULT_CALLBACKS,
        LearningRateMonitor,
        GradientNormMonitor,
        ThroughputMonitor,
        ModelEmaCallback(save_path=tmp_path / "average.pt"),
    )
    metrics = {"accuracy": MulticlassAccuracy(CLASSES, average="micro")}
    trainer = make(GuardedTrainer, device, optimizer, callbacks=callbacks, metrics=metrics, precision="bf16")
    train(
        trainer,
        eval_dataset=data(8),
        gradient_accumulation_steps=2,
        clip_norm=0.5,
        create_scheduler_fn=lambda optimizer: CosineSchedule(optimizer, total_steps=8),
    )
    assert trainer.guarded_updates == 8
    # What was put during the updates came to the host at the end of each epoch, and not before.
    assert trainer.storage.series("gradient_norm").steps == list(range(1, 9))
    assert trainer.storage.series("lr").steps == [4, 8]
    assert len(trainer.run_history.get_metric_values("ema_model_accuracy")) == 2


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "settings",
    [
        {"gradient_accumulation_steps": 3},
        {"gradient_clip_value": 0.1},
        {"clip_norm": 0.1},
        {"create_scheduler_fn": lambda optimizer: CosineAnnealingLR(optimizer, T_max=16)},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_each_setting_of_a_run_by_itself_reads_nothing(settings: dict[str, Any], device: str) -> None:
    assert train(make(GuardedTrainer, device), **settings).guarded_updates > 0


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("optimizer", [momentum, AdamW])
@pytest.mark.parametrize(
    "settings",
    [{"precision": "bf16"}, {"on_nonfinite": "skip"}, {"microbatch": "auto"}, {"loss_reduction": "sum"}],
    ids=lambda settings: next(iter(settings)),
)
def test_each_setting_of_a_trainer_by_itself_reads_nothing(
    settings: dict[str, Any], optimizer: Any, device: str
) -> None:
    assert train(make(GuardedTrainer, device, optimizer, **settings)).guarded_updates == 16


NAMES = ["accuracy", "precision", "f1", "auroc", "perplexity"]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("settings", [{}, {"precision": "bf16"}, {"microbatch": "auto"}], ids=str)
def test_metrics_of_training_read_nothing(settings: dict[str, Any], device: str) -> None:
    def share(outputs: Any, targets: Any) -> Any:
        return (outputs.argmax(1) == targets).float().mean()

    trainer = train(make(GuardedTrainer, device, metrics=[*NAMES, share], **settings), gradient_accumulation_steps=3)
    assert trainer.guarded_updates == 6
    assert {"train_accuracy", "train_f1", "train_share"} <= set(trainer.run_history.get_metric_names())


@pytest.mark.parametrize("device", DEVICES)
def test_metrics_by_name_read_nothing_in_an_evaluation_step(device: str) -> None:
    trainer = make(GuardedEvaluator, device, metrics=NAMES)
    results = trainer.evaluate(data(), per_device_batch_size=4)
    assert trainer.guarded_steps == 7
    assert results["accuracy"] == pytest.approx(
        (trainer.predict(data()).argmax(1) == data().tensors[1]).float().mean().item()
    )


@pytest.mark.parametrize("device", DEVICES)
def test_metrics_of_values_read_nothing(device: str) -> None:
    trainer = GuardedTrainer(
        (model := nn.Linear(4, 4).to(device)),
        nn.MSELoss(),
        SGD(model.parameters(), lr=0.1),
        metrics=["mae", "mse", "rmse", "r2"],
        **{"callbacks": (), "seed": 1, "device": device},
    )
    inputs = data().tensors[0]
    trainer.train(TensorDataset(inputs, inputs), 2, per_device_batch_size=4, log_every=NEVER)
    assert trainer.guarded_updates == 16
    assert len(trainer.run_history.get_metric_values("train_r2")) == 2


@pytest.mark.parametrize("device", DEVICES)
def test_a_run_with_a_folder_reads_nothing_between_its_checkpoints(device: str, tmp_path: Path) -> None:
    assert train(make(GuardedTrainer, device, run_dir=tmp_path / "run")).guarded_updates == 16


@pytest.mark.parametrize("device", DEVICES)
def test_a_loss_over_tokens_counted_on_the_device_is_weighed_without_reading_the_count(device: str) -> None:
    class OverTokens(GuardedTrainer):
        def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
            return {**super().calculate_train_batch_loss(batch), "num_items_in_batch": (batch[1] > 0).sum()}

    trainer = train(make(OverTokens, device), gradient_accumulation_steps=2)
    assert trainer.guarded_updates == 8


@pytest.mark.parametrize("device", DEVICES)
def test_phases_read_nothing(device: str) -> None:
    class TwoLosses(GuardedTrainer):
        def phases(self, epoch: int) -> Any:
            stream, optimizer = self._train_dataloader, self.optimizer
            yield Phase("first", stream, self.calculate_train_batch_loss, optimizer, steps=2)
            yield Phase("second", stream, self.calculate_train_batch_loss, optimizer, accumulation=2)

    assert train(make(TwoLosses, device)).guarded_updates == 10


@pytest.mark.parametrize("device", DEVICES)
def test_the_step_at_which_a_log_is_due_does_read(device: str) -> None:
    with pytest.raises(DeviceReadError, match="tolist reads the device"):
        train(make(GuardedTrainer, device), log_every=3)


@pytest.mark.parametrize("device", DEVICES)
def test_steps_between_two_logs_read_nothing(device: str) -> None:
    class NotedLog(Log):
        def write(self) -> None:
            self.trainer.logs.append(self.trainer.progress.step)
            super().write()

    class DisarmedAtTheLog(GuardedRun):
        def after_update(self) -> None:
            self.trainer.armed = (self.trainer.progress.step + 1) % 3 != 0
            super().after_update()
            self.trainer.armed = True

    class ReadsAtTheLog(GuardedTrainer):
        def create_log(self) -> Log:
            return NotedLog(self)

        def create_run(self) -> Run:
            return DisarmedAtTheLog(self)

    trainer = make(ReadsAtTheLog, device)
    trainer.logs = []
    train(trainer, log_every=3, num_epochs=1)
    assert trainer.guarded_updates == 8
    assert trainer.logs == [3, 6, 8]


@pytest.mark.parametrize("event", ["on_update_start", "on_train_step_start", "on_train_step_end", "on_update_end"])
def test_a_callback_that_reads_in_a_step_is_caught(event: str) -> None:
    def read(self: Any, trainer: Trainer, **kwargs: Any) -> None:
        next(iter(trainer.model.parameters())).sum().item()

    reading = type("Reading", (TrainerCallback,), {event: read})
    with pytest.raises(DeviceReadError, match="item reads the device"):
        train(make(GuardedTrainer, "cpu", callbacks=(reading,)))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_an_evaluation_step_reads_nothing(precision: str, device: str) -> None:
    metrics = {"accuracy": MulticlassAccuracy(CLASSES, average="micro")}
    trainer = make(GuardedEvaluator, device, callbacks=DEFAULT_CALLBACKS, metrics=metrics, precision=precision)
    results = trainer.evaluate(data(), per_device_batch_size=4)
    assert trainer.guarded_steps == 7
    outputs = trainer.predict(data())
    assert results["accuracy"] == pytest.approx((outputs.argmax(1) == data().tensors[1]).float().mean().item())


@pytest.mark.parametrize("device", DEVICES)
def test_evaluations_during_training_read_nothing(device: str, tmp_path: Path) -> None:
    metrics = {"accuracy": MulticlassAccuracy(CLASSES, average="micro")}
    average = ModelEmaCallback(save_path=tmp_path / "average.pt")
    trainer = make(GuardedEvaluator, device, callbacks=(average,), metrics=metrics)
    train(trainer, eval_dataset=data(8), eval_every="4 steps")
    # 4 evaluations of the model and 4 of its average, the second of two batches each.
    assert trainer.guarded_steps == 8


def test_an_evaluation_step_that_reads_is_caught() -> None:
    class Reading(GuardedEvaluator):
        def calculate_eval_batch_loss(self, batch: Any) -> dict[str, Any]:
            output = super().calculate_eval_batch_loss(batch)
            output["loss"].item()
            return output

    trainer = make(Reading, "cpu")
    try:
        with pytest.raises(DeviceReadError) as caught:
            trainer.evaluate(data())
    finally:
        trainer.guards.close()
    # The guard is still up when the trainer puts the random generators back, which reads them in turn.
    assert "item reads the device" in {str(caught.value), str(caught.value.__context__)}
