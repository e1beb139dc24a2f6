"""Which steps are recorded, for how long recordings are kept, and that they change no number of a run."""

import random
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.utils.data import DataLoader

from tests.execution.taped import Recorded, data, model, same_state, train
from tests.interrupting import Updates, updates_of
from treadle import Trainer
from treadle.callbacks import TrainerCallback
from treadle.errors import CaptureError
from treadle.execution import GraphExecution
from treadle.execution.cuda_graph.graph_cache import BUDGET
from treadle.phase import Phase, alternate


def scheduled(optimizer: optim.Optimizer) -> Any:
    """Rates that are no numbers of single precision."""
    return optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + 0.37 * step))


def train_adamw(kind: type[Trainer], run_dir: Any = None, **run: Any) -> Trainer:
    network = model()
    optimizer = optim.AdamW(network.parameters(), lr=0.0123, fused=True)
    trainer = kind(network, nn.CrossEntropyLoss(), optimizer, callbacks=(Updates(),), seed=3, run_dir=run_dir)
    run = {"num_epochs": 3, "per_device_batch_size": 8, "create_scheduler_fn": scheduled, **run}
    trainer.train(data(), **run)
    return trainer


def assert_same_weights(one: Trainer, other: Trainer) -> None:
    for mine, theirs in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_run_with_a_schedule_that_is_stopped_and_resumed_ends_in_the_same_bits(tmp_path: Any) -> None:
    # The resumed run makes ordinary steps where the whole one replays, and replays read rates in single precision.
    whole = train_adamw(Recorded)
    train_adamw(Recorded, tmp_path / "run", max_steps=8, save_every="1 step")
    resumed = train_adamw(Recorded, tmp_path / "run", resume="auto")
    assert updates_of(resumed) == (8, 7)
    assert_same_weights(whole, resumed)


def test_a_schedule_sees_the_rates_that_it_wrote_and_not_rounded_ones() -> None:
    recorded, eager = train_adamw(Recorded), train_adamw(Trainer)
    assert recorded.optimizer.param_groups[0]["lr"] == eager.optimizer.param_groups[0]["lr"] == 0.0123 / (1 + 0.37 * 15)


def test_rates_that_move_by_epochs_are_recorded_for_as_long_as_it_takes() -> None:
    def schedule(optimizer: optim.Optimizer) -> Any:
        return optim.lr_scheduler.StepLR(optimizer, 1, 0.9)

    run = {"create_scheduler_fn": schedule, "scheduler_interval": "epoch", "num_epochs": 20}
    eager, _ = train(Trainer, dataset=data(41), per_device_batch_size=3, **run)
    recorded, _ = train(Recorded, dataset=data(41), per_device_batch_size=3, **run)
    same_state(eager, recorded)
    # 14 batches an epoch, the last of two samples. The others are recorded after three windows, later after one. The
    # last comes once with each rate, so that no recording of it would be of use again.
    assert recorded.recorder.captures == 20
    assert recorded.recorder.replays == 2 + (13 - 3) + 19 * (13 - 1)


def test_a_rate_that_a_callback_sets_at_every_step_is_followed_step_by_step(capsys: pytest.CaptureFixture[str]) -> None:
    class Setting(TrainerCallback):
        def on_update_start(self, trainer: Trainer, **kwargs: Any) -> None:
            trainer.optimizer.param_groups[0]["lr"] = 0.125 / (1 + trainer.progress.step)

    eager, _ = train(Trainer, callbacks=(Setting(),), num_epochs=5)
    recorded, _ = train(Recorded, callbacks=(Setting(),), num_epochs=5)
    same_state(eager, recorded)
    assert recorded.recorder.captures == 1
    assert (
        "the optimizer of the phase 'train' has other arguments at every step, so it runs step by step. Move the "
        "learning rate by a scheduler" in capsys.readouterr().out
    )


def test_shapes_beyond_the_budget_run_step_by_step_and_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = [size for size in range(2, 2 + BUDGET + 1) for _ in range(2)]
    batches = [data()[:size] for size in [2, 2, *sizes]]
    recorded, _ = train(Recorded, dataset=DataLoader(batches, batch_size=None), num_epochs=1)
    assert recorded.recorder.captures == BUDGET
    assert "16 steps of the phases ['train'] are recorded, and windows still come that fit none of them" in (
        capsys.readouterr().out
    )


def test_a_fault_in_a_shape_that_comes_later_is_found_before_its_replays_count() -> None:
    class Random(Recorded):
        def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
            output = super().calculate_train_batch_loss(batch)
            if len(batch[0]) < 16:
                output["loss"] = output["loss"] * random.random()
            return output

    with pytest.raises(CaptureError, match="draws from Python's generator on the host"):
        train(Random, per_device_batch_size=16)


def test_recordings_are_given_back_when_a_run_is_over() -> None:
    recorded, _ = train(Recorded)
    graphs = recorded.this_run.execution
    assert graphs.count == 1
    assert graphs._recordings.count == len(graphs._latest) == 0
    assert recorded.recorder.released


def test_an_optimizer_that_cannot_count_on_this_device_is_followed_step_by_step() -> None:
    def end_of(kind: type[Trainer], **options: Any) -> Trainer:
        network = model()
        optimizer = optim.AdamW(network.parameters(), lr=0.01, foreach=False)
        trainer = kind(network, nn.CrossEntropyLoss(), optimizer, callbacks=(), seed=3, **options)
        trainer.train(data(), num_epochs=2, per_device_batch_size=8)
        return trainer

    automatic = end_of(Recorded, required=False)
    assert isinstance(automatic.this_run.execution, GraphExecution)
    assert automatic.this_run.execution.reason is not None
    assert_same_weights(automatic, end_of(Trainer))


class LookingAtTheNorm(Recorded):
    """Fails to be recorded between the gradient and its update."""

    def optimizer_step(self) -> None:
        if float(self.gradient_norm) < 1e9:  # type: ignore[arg-type]
            super().optimizer_step()


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_step_that_fails_after_its_gradient_leaves_none_behind(precision: str) -> None:
    class Eager(LookingAtTheNorm):
        def create_recorder(self) -> Any:
            return None

    options = {"precision": precision, "required": False}
    automatic, _ = train(LookingAtTheNorm, trainer=options, clip_norm=0.1)
    assert "wait for the device" in automatic.this_run.execution.reason
    eager, _ = train(Eager, trainer=options, clip_norm=0.1)
    same_state(automatic, eager)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.generator = nn.Linear(2, 4)
        self.critic = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 1))


class Adversarial(Recorded):
    """Two losses and two optimizers that take turns on the same batches."""

    def phases(self, epoch: int) -> Any:
        stream, model = self.streams["train"], self.model
        yield from alternate(
            Phase("critic", stream, self.critic_loss, self.optimizer["critic"], steps=1,
                  parameters=list(model.critic.parameters())),
            Phase("generator", stream, self.generator_loss, self.optimizer["generator"], steps=1, reuse=True,
                  parameters=list(model.generator.parameters())),
        )  # fmt: skip

    def critic_loss(self, batch: Any) -> dict[str, Any]:
        made = self.model.generator(torch.randn(len(batch[0]), 2, device=self.device)).detach()
        return {"loss": (self.model.critic(made) - self.model.critic(batch[0])).mean(), "batch_size": len(batch[0])}

    def generator_loss(self, batch: Any) -> dict[str, Any]:
        made = self.model.generator(torch.randn(len(batch[0]), 2, device=self.device))
        return {"loss": -self.model.critic(made).mean(), "batch_size": len(batch[0])}


class EagerlyAdversarial(Adversarial):
    def create_recorder(self) -> Any:
        return None


def train_pair(kind: type[Adversarial] = Adversarial, run_dir: Any = None, **run: Any) -> Adversarial:
    pair = Pair()
    optimizers = {
        name: optim.SGD(getattr(pair, name).parameters(), lr=0.05, momentum=0.5, foreach=True)
        for name in ("critic", "generator")
    }
    trainer = kind(pair, None, optimizers, callbacks=(Updates(),), seed=3, run_dir=run_dir)
    trainer.train(data(), **{"num_epochs": 4, "per_device_batch_size": 16, **run})
    return trainer


def test_phases_that_take_turns_have_recordings_of_their_own() -> None:
    recorded = train_pair()
    # Two phases, each with full batches and the short last one.
    assert recorded.recorder.captures == 4
    assert_same_weights(recorded, train_pair(EagerlyAdversarial))


@pytest.mark.parametrize("steps", [9, 16])
def test_recorded_phases_that_are_cut_anywhere_go_on_in_the_same_bits(steps: int, tmp_path: Any) -> None:
    train_pair(run_dir=tmp_path / "run", max_steps=steps, save_every="1 step")
    resumed, whole = train_pair(run_dir=tmp_path / "run", resume="auto"), train_pair()
    assert updates_of(resumed) == (steps, whole.progress.step - steps)
    assert_same_weights(whole, resumed)
