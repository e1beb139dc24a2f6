"""Models with steps of their own are trained by the one loop, and what they log is where metrics are."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.interrupting import CutAt, CutError, Updates, assert_same_bits
from treadle import TrainerCallback
from treadle.errors import ConfigError, LossError
from treadle.lightning import StepModel, StepTrainer


def loader(count: int = 12, **options: Any) -> Any:
    inputs = torch.arange(count * 2.0).reshape(count, 2) / count
    return DataLoader(TensorDataset(inputs, inputs.sum(dim=1, keepdim=True)), batch_size=4, **options)


class Line(StepModel):
    def __init__(self, rate: float = 0.1, gamma: float = 0.5) -> None:
        super().__init__()
        self.save_hyperparameters()
        torch.manual_seed(0)
        self.layer = nn.Linear(2, 1)
        self.moments: list[str] = []

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.layer(inputs)
        return output

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = nn.functional.mse_loss(self(batch[0]), batch[1])
        self.log("train_loss", loss, prog_bar=True)
        self.log("place", float(batch_idx), on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log_dict({"val_loss": nn.functional.mse_loss(self(batch[0]), batch[1]), "val_first": batch[0][0, 0]})

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams.rate)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, self.hparams.gamma)]

    def on_train_start(self) -> None:
        self.moments.append(f"start {self.global_step}")

    def on_train_epoch_end(self) -> None:
        self.moments.append(f"epoch {self.current_epoch}")

    def on_validation_epoch_end(self) -> None:
        self.moments.append("validated")


def by_hand(epochs: int) -> nn.Linear:
    """Train the same by a loop that is written out."""
    torch.manual_seed(0)
    layer = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for _ in range(epochs):
        for inputs, targets in loader():
            optimizer.zero_grad()
            nn.functional.mse_loss(layer(inputs), targets).backward()
            optimizer.step()
        schedule.step()
    return layer


def test_a_model_ends_with_the_bits_of_the_loop_that_is_written_out() -> None:
    model = Line()
    result = StepTrainer(num_epochs=3, progress=False, device="cpu").fit(model, loader(), loader(8))
    assert result.steps == 9
    wanted = by_hand(3)
    assert torch.equal(model.layer.weight, wanted.weight)
    assert torch.equal(model.layer.bias, wanted.bias)
    assert model.hparams == {"rate": 0.1, "gamma": 0.5}


def test_what_is_logged_is_reported_per_step_in_training_and_as_a_mean_over_samples_in_evaluations() -> None:
    model = Line()
    trainer = StepTrainer(num_epochs=2, progress=False, device="cpu")
    result = trainer.fit(model, loader(), loader(6))
    # Batches 0, 1 and 2 of four samples each.
    assert result.history["place"] == [1.0, 1.0]
    # Six samples are a batch of 4, whose first number is 0, and one of 2, whose first is 8/6.
    assert result.history["val_first"] == pytest.approx([8 / 6 * 2 / 6] * 2, rel=1e-6)
    # A loss that is logged is the loss of the evaluation.
    assert result.history["val_loss"] == pytest.approx(result.history["eval_loss_epoch"], rel=1e-6)
    assert trainer.core is not None
    assert len(trainer.core.storage.series("train_loss").values) > 0
    assert model.moments == ["start 0", "epoch 0", "validated", "epoch 1", "validated"]


def test_with_both_a_number_has_a_name_for_each() -> None:
    class Both(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("index", float(batch_idx), on_step=True, on_epoch=True)
            return super().training_step(batch, batch_idx)

    trainer = StepTrainer(num_epochs=1, progress=False, device="cpu")
    result = trainer.fit(Both(), loader())
    assert result.history["index_epoch"] == [1.0]
    assert trainer.core is not None
    assert trainer.core.storage.series("index_step").values == [0.0, 1.0, 2.0]


def test_a_torchmetric_is_reported_and_reset() -> None:
    from torchmetrics import MeanMetric

    class Measured(Line):
        def __init__(self) -> None:
            super().__init__()
            self.mean = MeanMetric()

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.mean.update(batch[1])
            self.log("mean", self.mean)

    result = StepTrainer(num_epochs=2, progress=False, device="cpu").fit(Measured(), loader(), loader(4))
    mean = float(torch.arange(8.0).reshape(4, 2).div(4).sum(dim=1).mean())
    assert result.history["mean"] == pytest.approx([mean, mean])


def test_a_run_that_was_cut_ends_like_one_that_was_not(tmp_path: Path) -> None:
    ends = {}
    for name, cuts in (("whole", []), ("cut", [4])):
        for cut in [*cuts, None]:
            model = Line()
            updates = Updates() if cut is None else CutAt(cut)
            options = {"run_dir": tmp_path / name, "save_every": 1, "seed": 0, "device": "cpu"}
            trainer = StepTrainer(num_epochs=3, progress=False, callbacks=[updates], **options)
            try:
                result = trainer.fit(model, loader(shuffle=True), loader(8), resume="auto")
            except CutError:
                continue
            ends[name] = {"model": model.state_dict(), "history": result.history}
    assert (updates.began, updates.made) == (3, 6)
    assert_same_bits(ends["cut"], ends["whole"])


def test_a_run_that_its_limit_cut_inside_an_epoch_goes_on_inside_it(tmp_path: Path) -> None:
    def fitted(folder: str, steps: int) -> tuple[Any, Updates]:
        model, updates = Line(), Updates()
        options = {"run_dir": tmp_path / folder, "seed": 0, "device": "cpu", "progress": False}
        trainer = StepTrainer(num_epochs=None, max_steps=steps, callbacks=[updates], **options)
        trainer.fit(model, loader(shuffle=True), resume="auto")
        return model.state_dict(), updates

    fitted("longer", 4)
    longer, updates = fitted("longer", 8)
    assert (updates.began, updates.made) == (4, 4)
    assert_same_bits(longer, fitted("whole", 8)[0])


def test_a_schedule_may_move_by_steps_or_follow_a_metric() -> None:
    class ByStep(Line):
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    class ByMetric(Line):
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.0)
            schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
            optimizer.param_groups[0]["lr"] = 1e-12
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "val_first"}}

    trainer = StepTrainer(num_epochs=1, progress=False, device="cpu")
    trainer.fit(ByStep(), loader())
    assert trainer.core is not None
    assert trainer.core.optimizer.param_groups[0]["lr"] == 0.125
    trainer.fit(ByMetric(), loader(), loader(4))
    assert trainer.core.scheduler.best == 0.0


def test_test_and_validate_return_what_was_logged_and_predict_the_outputs() -> None:
    class Tested(Line):
        def test_step(self, batch: Any, batch_idx: int) -> None:
            self.log("tested", batch[1].mean())

    model = Tested()
    trainer = StepTrainer(num_epochs=1, progress=False, device="cpu")
    assert trainer.test(model, loader(4)) == {"tested": pytest.approx(1.75)}
    assert set(trainer.validate(model, loader(4))) == {"val_loss", "val_first"}
    outputs = trainer.predict(model, loader(4))
    assert outputs.shape == (4, 1)


def test_validate_returns_what_callbacks_recorded_too() -> None:
    class Counts(TrainerCallback):
        def on_eval_epoch_end(self, trainer: Any, **kwargs: Any) -> None:
            trainer.run_history.update_metric("counted", 4)

    found = StepTrainer(num_epochs=1, progress=False, device="cpu", callbacks=[Counts()]).validate(Line(), loader(4))
    assert set(found) == {"val_loss", "val_first", "counted"}


def test_a_data_module_brings_its_loaders() -> None:
    class Points:
        def setup(self, stage: str) -> None:
            self.stage = stage

        def train_dataloader(self) -> Any:
            return loader()

        def val_dataloader(self) -> Any:
            return loader(4)

    points = Points()
    result = StepTrainer(num_epochs=1, progress=False, device="cpu").fit(Line(), datamodule=points)
    assert (result.steps, points.stage) == (3, "fit")
    assert math.isfinite(result.history["val_loss"][0])


class TwoOptimizers(Line):
    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.parameters(), lr=1.0), torch.optim.SGD(self.parameters(), lr=1.0)]


class NoOptimizer(Line):
    def configure_optimizers(self) -> Any:
        return None


class Seldom(Line):
    def configure_optimizers(self) -> Any:
        (optimizer,), (schedule,) = super().configure_optimizers()
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "frequency": 3}}


class OddInterval(Line):
    def configure_optimizers(self) -> Any:
        (optimizer,), (schedule,) = super().configure_optimizers()
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "hour"}}


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (TwoOptimizers, r"returned 2 optimizers; set self.automatic_optimization = False .* or override phases\(\)"),
        (NoOptimizer, "configure_optimizers returned a NoneType; return a torch optimizer"),
        (Seldom, "a schedule with frequency=3 is not known"),
        (OddInterval, "a schedule moves by 'step' or 'epoch', not by 'hour'"),
    ],
)
def test_what_cannot_be_done_is_said_before_the_first_step(kind: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        StepTrainer(num_epochs=1, progress=False, device="cpu").fit(kind(), loader())


def test_missing_parts_are_named() -> None:
    trainer = StepTrainer(num_epochs=1, progress=False, device="cpu")
    with pytest.raises(ConfigError, match="fit\\(\\) has no data"):
        trainer.fit(Line())
    with pytest.raises(ConfigError, match=r"got a Linear; derive it from treadle.lightning.StepModel"):
        trainer.fit(nn.Linear(1, 1), loader())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="Line is not being trained"):
        Line().log("a", 1.0)
    with pytest.raises(AttributeError, match="no hyperparameter 'width'; there are \\['gamma', 'rate'\\]"):
        _ = Line().hparams.width
    model = StepModel()
    for call in ("training_step", "validation_step", "test_step"):
        with pytest.raises(ConfigError, match="StepModel does not say"):
            getattr(model, call)(None, 0)
    with pytest.raises(ConfigError, match="does not say how it learns"):
        model.configure_optimizers()


def test_a_step_that_returns_no_loss_is_an_error() -> None:
    class Silent(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return None

    with pytest.raises(LossError, match=r"Silent.training_step returned nothing; return the loss"):
        StepTrainer(num_epochs=1, progress=False, device="cpu").fit(Silent(), loader())
