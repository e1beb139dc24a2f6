"""What a run can be asked for: how often it logs and evaluates, its seed, its scheduler."""

import random
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR
from torch.utils.data import TensorDataset

from treadle.callback import TrainerCallback
from treadle.trainer import Trainer


def assert_same_weights(model: nn.Module, expected: nn.Module) -> None:
    for (name, one), other in zip(model.named_parameters(), expected.parameters(), strict=True):
        assert torch.equal(one, other), name


# Limits and cadences ------------------------------------------------------------------------------------------


class Steps(TrainerCallback):
    """The steps at which each event of interest came."""

    def __init__(self) -> None:
        self.logs: list[int] = []
        self.evaluations: list[tuple[int, bool]] = []
        self.scalars: list[dict[str, Any]] = []

    def on_log(self, trainer: Any, scalars: Any = None, **kwargs: Any) -> None:
        self.logs.append(trainer.progress.step)
        self.scalars.append(scalars)

    def on_eval_epoch_end(self, trainer: Any, is_intermediate: bool = False, **kwargs: Any) -> None:
        self.evaluations.append((trainer.progress.step, is_intermediate))


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        ("1 epoch", [(3, False), (6, False), (9, False), (12, False)]),
        ("2 epochs", [(6, False), (12, False)]),
        ("4 steps", [(4, True), (8, True), (12, True)]),
        (5, [(5, True), (10, True)]),
        (None, []),
    ],
)
def test_evaluations_come_as_often_as_asked(
    make_trainer: Any, data: TensorDataset, every: Any, expected: list[tuple[int, bool]]
) -> None:
    watch = Steps()
    history = make_trainer(watch).train(data, 4, eval_dataset=data, eval_every=every).history
    assert watch.evaluations == expected
    assert len(history.get("eval_loss_epoch", [])) == len(expected)


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        (2, [2, 3, 4, 6, 6]),
        ("4 steps", [3, 4, 6]),
        ("1 epoch", [3, 6]),
        (50, [3, 6]),
    ],
)
def test_logs_come_as_often_as_asked_and_at_the_end_of_each_epoch(
    make_trainer: Any, data: TensorDataset, every: Any, expected: list[int]
) -> None:
    watch = Steps()
    make_trainer(watch).train(data, 2, log_every=every)
    assert watch.logs == expected


def test_a_log_has_the_mean_loss_since_the_one_before_it(make_trainer: Any, data: TensorDataset) -> None:
    losses: list[float] = []

    class Losses(TrainerCallback):
        def on_train_step_end(self, trainer: Any, batch_output: Any = None, **kwargs: Any) -> None:
            losses.append(batch_output["loss"].item())

    watch = Steps()
    make_trainer(watch, Losses).train(data, 2, log_every=2)
    means = [scalars.get("train_loss") for scalars in watch.scalars]
    first, second, third, fourth, fifth, sixth = losses
    assert means == [(first + second) / 2, third, fourth, (fifth + sixth) / 2, None]


def test_nothing_of_a_log_depends_on_how_often_it_comes(make_trainer: Any, data: TensorDataset) -> None:
    histories = [make_trainer().train(data, 2, eval_dataset=data, log_every=every).history for every in (1, 2, 50)]
    assert histories[0] == histories[1] == histories[2]


# Seeds and generators -----------------------------------------------------------------------------------------


def noisy_model() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.Linear(8, 1))


def test_two_runs_with_the_same_seed_are_equal_to_the_last_bit(make_trainer: Any, data: TensorDataset) -> None:
    first, second = (make_trainer(build=noisy_model, seed=5) for _ in range(2))
    histories = []
    for trainer in (first, second):
        histories.append(trainer.train(data, 2, eval_dataset=data).history)
        torch.rand(3), random.random(), np.random.rand()
    assert histories[0] == histories[1]
    assert_same_weights(first.model, second.model)


def test_another_seed_gives_another_run(make_trainer: Any, data: TensorDataset) -> None:
    first, second = (make_trainer(build=noisy_model, seed=seed) for seed in (5, 6))
    assert first.train(data, 1).history != second.train(data, 1).history


def test_without_a_seed_torchs_own_decides_the_run(make_trainer: Any, data: TensorDataset) -> None:
    histories = []
    for seed in (7, 7, 8):
        trainer = make_trainer(build=noisy_model, seed=None)
        torch.manual_seed(seed)
        histories.append(trainer.train(data, 2).history)
    assert histories[0] == histories[1] != histories[2]


def test_without_a_seed_the_generators_of_python_and_numpy_are_left_alone(
    make_trainer: Any, data: TensorDataset
) -> None:
    random.seed(1)
    np.random.seed(2)
    python, numpy = random.getstate(), np.random.get_state()[1].tolist()
    trainer = make_trainer(build=noisy_model, seed=None)
    trainer.train(data, 2, eval_dataset=data)
    trainer.evaluate(data)
    assert random.getstate() == python
    assert np.random.get_state()[1].tolist() == numpy


def test_building_a_trainer_draws_no_random_number() -> None:
    model = nn.Linear(2, 1)
    state, python = torch.get_rng_state(), random.getstate()
    Trainer(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1), callbacks=(), seed=3, device="cpu")
    assert torch.equal(torch.get_rng_state(), state)
    assert random.getstate() == python


class NoisyEvaluation(Trainer):
    """Its evaluation draws from every generator and leaves the model in a mode of its own."""

    def calculate_eval_batch_loss(self, batch: Any) -> dict[str, Any]:
        torch.rand(3), random.random(), np.random.rand()
        self.model[1].train()
        return super().calculate_eval_batch_loss(batch)


def test_an_evaluation_leaves_every_mode_and_every_generator_as_it_found_them(
    make_trainer: Any, data: TensorDataset
) -> None:
    with_evaluation = make_trainer(build=noisy_model, kind=NoisyEvaluation)
    without = make_trainer(build=noisy_model)
    with_evaluation.train(data, 2, eval_dataset=data, eval_every=1)
    without.train(data, 2)
    assert_same_weights(with_evaluation.model, without.model)
    assert torch.equal(with_evaluation.model[2].running_mean, without.model[2].running_mean)


def test_a_part_of_the_model_that_is_in_evaluation_mode_stays_in_it(make_trainer: Any, data: TensorDataset) -> None:
    modes: list[list[bool]] = []

    class FrozenNorm(Trainer):
        def train_epoch_start(self) -> None:
            super().train_epoch_start()
            self.model[2].eval()

        def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
            modes.append([module.training for module in self.model])
            return super().calculate_train_batch_loss(batch)

    trainer = make_trainer(build=noisy_model, kind=FrozenNorm)
    trainer.train(data, 1, eval_dataset=data, eval_every=1)
    assert modes == [[True, True, False, True]] * 3
    assert [module.training for module in trainer.model] == [True, True, False, True]


# Schedulers ---------------------------------------------------------------------------------------------------


class Rates(TrainerCallback):
    def __init__(self) -> None:
        self.by_step: list[float] = []
        self.by_epoch: list[float] = []

    def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
        self.by_step.append(trainer.optimizer.param_groups[0]["lr"])

    def on_training_run_epoch_end(self, trainer: Any, **kwargs: Any) -> None:
        self.by_epoch.append(trainer.optimizer.param_groups[0]["lr"])


HALVES = partial(StepLR, step_size=1, gamma=0.5)


def test_a_scheduler_moves_on_with_every_step(make_trainer: Any, data: TensorDataset) -> None:
    watch = Rates()
    make_trainer(watch).train(data, 1, create_scheduler_fn=HALVES)
    assert watch.by_step == [0.025, 0.0125, 0.00625]


def test_a_scheduler_moves_on_with_every_epoch_if_asked(make_trainer: Any, data: TensorDataset) -> None:
    watch = Rates()
    make_trainer(watch).train(data, 2, create_scheduler_fn=HALVES, scheduler_interval="epoch")
    assert watch.by_step == [0.05, 0.05, 0.05, 0.025, 0.025, 0.025]
    assert watch.by_epoch == [0.025, 0.0125]


class Scripted(Trainer):
    """Reports these evaluation losses."""

    def calculate_eval_batch_loss(self, batch: Any) -> dict[str, Any]:
        loss = [4.0, 3.0, 3.0, 3.0][self.progress.epoch]
        return {**super().calculate_eval_batch_loss(batch), "loss": torch.tensor(loss)}


def test_a_plateau_scheduler_follows_the_evaluation_loss_by_epochs(make_trainer: Any, data: TensorDataset) -> None:
    watch = Rates()
    plateau = partial(ReduceLROnPlateau, factor=0.5, patience=0)
    make_trainer(watch, kind=Scripted).train(data, 4, eval_dataset=data, create_scheduler_fn=plateau)
    assert watch.by_epoch == [0.05, 0.05, 0.025, 0.0125]


def test_a_plateau_scheduler_follows_the_training_loss_where_nothing_is_evaluated(
    make_trainer: Any, data: TensorDataset
) -> None:
    metrics: list[float] = []

    class Plateau(ReduceLROnPlateau):
        def step(self, metrics_value: Any, epoch: Any = None) -> None:  # type: ignore[override]
            metrics.append(metrics_value)
            super().step(metrics_value)

    assert make_trainer().train(data, 2, create_scheduler_fn=Plateau).history["train_loss_epoch"] == metrics


def test_a_plateau_scheduler_can_follow_another_metric(make_trainer: Any, data: TensorDataset) -> None:
    class Scored(Trainer):
        def eval_epoch_end(self) -> None:
            self.run_history.update_metric("score", [0.5, 0.75, 0.75][self.progress.epoch])

    watch = Rates()
    plateau = partial(ReduceLROnPlateau, mode="max", factor=0.5, patience=0)
    trainer = make_trainer(watch, kind=Scored)
    trainer.train(data, 3, eval_dataset=data, create_scheduler_fn=plateau, scheduler_metric="score")
    assert watch.by_epoch == [0.05, 0.05, 0.025]


def test_a_plateau_scheduler_waits_where_an_epoch_was_not_evaluated(make_trainer: Any, data: TensorDataset) -> None:
    watch = Rates()
    plateau = partial(ReduceLROnPlateau, factor=0.5, patience=0)
    trainer = make_trainer(watch, kind=Scripted)
    trainer.train(data, 4, eval_dataset=data, eval_every="2 epochs", create_scheduler_fn=plateau)
    # Only the epochs 2 and 4 were evaluated, at 3.0 both times: one look without an improvement.
    assert watch.by_epoch == [0.05, 0.05, 0.05, 0.025]
