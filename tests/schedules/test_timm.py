"""Schedulers of timm are told how many updates and epochs were made."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import StepLR

from treadle.callback import TrainerCallback
from treadle.errors import ConfigError
from treadle.schedules.timm import TrainerWithTimmScheduler

DATA = [(torch.full((2,), float(place)), torch.zeros(1)) for place in range(12)]


class Told:
    """Has the methods of timm's schedulers and notes what it is told; the rate is 1 / (1 + updates)."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.calls: list[tuple[Any, ...]] = []

    def step(self, epoch: int, metric: float | None = None) -> None:
        self.calls.append(("epoch", epoch) if metric is None else ("epoch", epoch, metric))

    def step_update(self, num_updates: int, metric: float | None = None) -> None:
        self.calls.append(("update", num_updates))
        for group in self.optimizer.param_groups:
            group["lr"] = 1e-3 / (1 + num_updates)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def trainer_of(callbacks: tuple[Any, ...] = ()) -> TrainerWithTimmScheduler:
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    return TrainerWithTimmScheduler(model, nn.MSELoss(), optimizer, callbacks=callbacks, seed=1, device="cpu")


def train(trainer: TrainerWithTimmScheduler, **settings: Any) -> Any:
    arguments = {"num_epochs": 2, "per_device_batch_size": 2, "create_scheduler_fn": Told} | settings
    trainer.train(DATA, **arguments)
    return trainer.scheduler


@pytest.mark.parametrize("eval_dataset", [None, DATA[:4]])
def test_updates_and_epochs_are_counted_from_one_with_an_evaluation_or_without(eval_dataset: Any) -> None:
    trainer = trainer_of()
    assert trainer.num_updates == 0
    calls = train(trainer, eval_dataset=eval_dataset, gradient_accumulation_steps=2).calls
    first = [("update", 1), ("update", 2), ("update", 3), ("epoch", 1)]
    assert calls == [*first, ("update", 4), ("update", 5), ("update", 6), ("epoch", 2)]
    assert trainer.num_updates == 6


def test_evaluations_in_the_middle_of_an_epoch_move_no_schedule() -> None:
    calls = train(trainer_of(), eval_dataset=DATA[:4], eval_every="2 steps", num_epochs=1).calls
    assert calls == [*(("update", number) for number in range(1, 7)), ("epoch", 1)]


def test_a_run_resumed_in_the_middle_of_an_epoch_counts_on(tmp_path: Path) -> None:
    class SaveAfterFour(TrainerCallback):
        def on_update_start(self, trainer: Any, **kwargs: Any) -> None:
            if trainer.progress.step == 4:
                trainer.save_training_state(tmp_path)

    whole = train(trainer_of(callbacks=(SaveAfterFour(),)))
    resumed = trainer_of()
    rest = train(resumed, resume_from=tmp_path)
    assert rest.calls[0] == ("update", 5)
    assert rest.calls == whole.calls[4:]
    assert resumed.optimizer.param_groups[0]["lr"] == 1e-3 / 13


def test_a_metric_that_drives_the_schedule_is_handed_over_after_each_epoch() -> None:
    trainer = trainer_of()
    calls = train(trainer, scheduler_metric="train_loss_epoch").calls
    losses = trainer.run_history.get_metric_values("train_loss_epoch")
    assert calls == [("epoch", 1, losses[0]), ("epoch", 2, losses[1])]


def test_updates_are_counted_in_a_loop_of_the_users_own() -> None:
    class OwnLoop(TrainerWithTimmScheduler):
        def _run_train_epoch(self, train_dl: Any) -> None:
            for batch in train_dl:
                self.backward_step(self.calculate_train_batch_loss(batch)["loss"])
                self.optimizer.step()
                self.scheduler_step()
                self.optimizer.zero_grad()

    model = nn.Linear(2, 1)
    trainer = OwnLoop(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=1e-3), callbacks=(), device="cpu")
    calls = train(trainer, num_epochs=1).calls
    assert calls == [*(("update", number) for number in range(1, 7)), ("epoch", 1)]


def test_a_run_without_a_schedule_works() -> None:
    assert train(trainer_of(), create_scheduler_fn=None) is None


def test_a_scheduler_of_torch_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"^TrainerWithTimmScheduler got a StepLR, which has no step_update and step "
    ):
        train(trainer_of(), create_scheduler_fn=partial(StepLR, step_size=1))


def test_a_schedule_of_timm_itself_sets_the_rates() -> None:
    scheduler = pytest.importorskip("timm.scheduler", reason="timm is not installed")
    trainer = trainer_of()
    factory = partial(scheduler.CosineLRScheduler, t_initial=12, t_in_epochs=False, lr_min=0.0)
    train(trainer, create_scheduler_fn=factory, num_epochs=1)
    # Half of the cosine is done after 6 of 12 updates.
    assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(0.5e-3)
