"""When the weights are updated, by what, and how the schedule follows."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR, StepLR
from torch.utils.data import TensorDataset

from treadle.callback import TrainerCallback
from treadle.errors import ConfigError
from treadle.precision import LossScaling
from treadle.schedules.placeholders import TrainerPlaceholderValues as Placeholder
from treadle.trainer import Trainer


class StepEnds(TrainerCallback):
    """Notes after how many micro-batches each update came, and the learning rate after it."""

    def __init__(self) -> None:
        self.micro_batches = 0
        self.boundaries: list[int] = []
        self.rates: list[float] = []

    def on_train_step_end(self, trainer: Any, **kwargs: Any) -> None:
        self.micro_batches += 1

    def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
        self.boundaries.append(self.micro_batches)
        self.rates.append(trainer.optimizer.param_groups[0]["lr"])


@pytest.mark.parametrize(
    ("accumulation", "boundaries"),
    [(1, [1, 2, 3, 4, 5, 6]), (2, [2, 3, 5, 6]), (3, [3, 6]), (4, [3, 6])],
)
def test_d16_an_update_comes_after_so_many_batches_or_at_the_end_of_the_epoch(
    make_trainer: Any, data: TensorDataset, accumulation: int, boundaries: list[int]
) -> None:
    watch = StepEnds()
    result = make_trainer(watch).train(data, 2, gradient_accumulation_steps=accumulation)
    assert watch.boundaries == boundaries
    assert result.steps == len(boundaries)


def test_d16_the_last_short_window_is_averaged_over_its_own_length(make_trainer: Any, data: TensorDataset) -> None:
    trainer = make_trainer(momentum=0.0)
    trainer.train(data, 1, gradient_accumulation_steps=2, train_dataloader_kwargs={"shuffle": False})
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for inputs, targets in zip(data.tensors[0].split([16, 8]), data.tensors[1].split([16, 8]), strict=True):
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert torch.allclose(trainer.model.weight, model.weight, rtol=1e-6, atol=0)


def test_d17_the_schedule_moves_on_once_for_each_update_and_not_for_micro_batches(
    make_trainer: Any, data: TensorDataset
) -> None:
    watch = StepEnds()
    schedule = partial(StepLR, step_size=1, gamma=0.5)
    make_trainer(watch, lr=1.0).train(data, 2, create_scheduler_fn=schedule, gradient_accumulation_steps=2)
    assert watch.rates == [0.5, 0.25, 0.125, 0.0625]


GENTLY = LossScaling(initial=8.0)
"""A scale that begins so low that none of these small gradients overflows by itself."""


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten().clone() for parameter in model.parameters()])


class Overflowing(Trainer):
    """Its second loss is finite, but has a gradient that overflows in half precision."""

    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        output = super().calculate_train_batch_loss(batch)
        if self.progress.step == 1:
            output["loss"] = output["loss"] * 1e8
        return output


def test_d17_a_step_that_the_scaler_skips_still_moves_the_schedule(make_trainer: Any, data: TensorDataset) -> None:
    """Schedules count attempted updates in every mode, so that no step waits to learn whether it was applied."""
    weights: list[torch.Tensor] = []

    class Weights(TrainerCallback):
        def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
            weights.append(trainer.model.weight.detach().clone())

    watch = StepEnds()
    trainer = make_trainer(watch, Weights, kind=Overflowing, lr=1e-3, precision="fp16", loss_scaling=GENTLY)
    result = trainer.train(data, 1, create_scheduler_fn=partial(StepLR, step_size=1, gamma=0.5))
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[1], weights[2])
    assert watch.rates == [5e-4, 2.5e-4, 1.25e-4]
    assert result.steps == 3
    assert trainer.precision.scaler.get_scale() == 4.0


def test_d17_a_skipped_first_step_is_no_reason_for_a_warning_of_the_scheduler(
    make_trainer: Any, data: TensorDataset
) -> None:
    class FirstOverflows(Trainer):
        def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
            output = super().calculate_train_batch_loss(batch)
            if self.progress.step == 0:
                output["loss"] = output["loss"] * 1e8
            return output

    watch = StepEnds()
    trainer = make_trainer(watch, kind=FirstOverflows, lr=1e-3, precision="fp16")
    trainer.train(data, 1, create_scheduler_fn=partial(StepLR, step_size=1, gamma=0.5))
    assert watch.rates == [5e-4, 2.5e-4, 1.25e-4]


def test_d18_placeholders_stand_for_the_numbers_of_this_run(make_trainer: Any, data: TensorDataset) -> None:
    got: dict[str, Any] = {}

    def schedule(optimizer: Any, **numbers: int) -> Any:
        got.update(numbers)
        return StepLR(optimizer, 1)

    factory = partial(schedule, **{placeholder.name: placeholder for placeholder in Placeholder})
    make_trainer().train(
        data,
        4,
        eval_dataset=data,
        per_device_batch_size=5,
        gradient_accumulation_steps=2,
        eval_dataloader_kwargs={"batch_size": 12},
        create_scheduler_fn=factory,
    )
    assert got == {
        "NUM_EPOCHS": 4,
        "NUM_UPDATE_STEPS_PER_EPOCH": 3,
        "PER_PROCESS_NUM_UPDATE_STEPS_PER_EPOCH": 3,
        "TRAIN_DATALOADER_LEN": 5,
        "EVAL_DATALOADER_LEN": 2,
    }


def test_d18_one_cycle_with_placeholders_goes_through_its_whole_cycle(make_trainer: Any, data: TensorDataset) -> None:
    watch = StepEnds()
    schedule = partial(
        OneCycleLR,
        max_lr=0.1,
        epochs=Placeholder.NUM_EPOCHS,
        steps_per_epoch=Placeholder.NUM_UPDATE_STEPS_PER_EPOCH,
        cycle_momentum=False,
    )
    # One more step than the cycle has would be an error of OneCycleLR: the run makes one less than `total_steps`.
    trainer = make_trainer(watch)
    trainer.train(data, 4, create_scheduler_fn=schedule)
    assert trainer.scheduler.total_steps == 12
    assert max(watch.rates) == pytest.approx(0.1, rel=0.05)
    assert watch.rates[-2] == pytest.approx(0.1 / 25 / 1e4)


def test_d18_arithmetic_on_placeholders_is_done_when_the_run_starts(make_trainer: Any, data: TensorDataset) -> None:
    trainer = make_trainer()
    size = 2 * Placeholder.NUM_EPOCHS * Placeholder.NUM_UPDATE_STEPS_PER_EPOCH - 1
    trainer.train(data, 2, create_scheduler_fn=partial(StepLR, step_size=size))
    assert trainer.scheduler.step_size == 11


def test_d19_a_scheduler_instance_is_refused_before_anything_runs(recording_trainer: Any, data: TensorDataset) -> None:
    instance = LambdaLR(recording_trainer.optimizer, lambda step: 1.0)
    with pytest.raises(ConfigError, match=r"create_scheduler_fn got an instance of LambdaLR; pass a factory"):
        recording_trainer.train(data, 1, create_scheduler_fn=instance)
    assert recording_trainer.calls == ["on_init_end"]


class CountsClips(Trainer):
    clips = 0

    def _clip_gradients(self) -> None:
        self.clips += 1
        super()._clip_gradients()


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("clipping", ["clip_norm", "gradient_clip_value"])
def test_a38_the_gradient_of_a_whole_window_is_clipped_once_in_every_precision(
    make_trainer: Any, data: TensorDataset, precision: str, clipping: str
) -> None:
    scaling = GENTLY if precision == "fp16" else None
    trainer = make_trainer(kind=CountsClips, precision=precision, momentum=0.0, lr=1.0, loss_scaling=scaling)
    before = flat(trainer.model)
    result = trainer.train(data, 1, gradient_accumulation_steps=3, **{clipping: 0.01})
    assert (trainer.clips, result.steps) == (1, 1)
    change = flat(trainer.model) - before
    if clipping == "clip_norm":
        assert float(change.norm()) == pytest.approx(0.01, rel=1e-3)
        assert float(trainer.gradient_norm) > 1
    else:
        # Every element is larger than the limit, so each is cut at it: after it was brought to its true size.
        assert change.abs().tolist() == pytest.approx([0.01, 0.01, 0.01], rel=1e-3)


def test_a49_a_setting_of_another_launcher_does_not_divide_gradients(
    make_trainer: Any, data: TensorDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = make_trainer()
    plain.train(data, 1)
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4")
    other = make_trainer()
    assert other.train(data, 1).steps == 3
    assert torch.equal(other.model.weight, plain.model.weight)


def test_gradients_left_by_a_run_that_was_stopped_do_not_reach_the_next(make_trainer: Any, data: TensorDataset) -> None:
    class StopsOnce(TrainerCallback):
        stopped = False

        def on_train_step_end(self, trainer: Any, step: int = 0, **kwargs: Any) -> None:
            if step == 1 and not self.stopped:
                self.stopped = True
                raise KeyboardInterrupt

    trainer = make_trainer(StopsOnce)
    with pytest.raises(KeyboardInterrupt):
        trainer.train(data, 1, gradient_accumulation_steps=2)
    trainer.train(data, 1, gradient_accumulation_steps=2)
    expected = make_trainer()
    expected.train(data, 1, gradient_accumulation_steps=2)
    assert torch.equal(trainer.model.weight, expected.model.weight)
