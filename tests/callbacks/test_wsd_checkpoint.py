from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import TensorDataset

from treadle.callback import TrainerCallback
from treadle.callbacks import WSDCheckpointCallback
from treadle.checkpoint import read_file
from treadle.errors import CheckpointError, ConfigError
from treadle.schedules import WSDLrScheduler


def schedule(total_steps: int, **kwargs: Any) -> Any:
    """A quarter of each period decays."""
    return partial(WSDLrScheduler, total_steps=total_steps, decay_phase_ratio=0.25, **kwargs)


class Rates(TrainerCallback):
    def __init__(self) -> None:
        self.rates: list[float] = []

    def on_update_start(self, trainer: Any, **kwargs: Any) -> None:
        self.rates.append(trainer.optimizer.param_groups[0]["lr"])


def test_each_period_leaves_a_state_before_its_decay_and_weights_after_it(
    make_trainer: Any, data: TensorDataset, tmp_path: Path
) -> None:
    trainer = make_trainer(WSDCheckpointCallback(tmp_path))
    # Periods of 8 and 8 steps, whose last 2 decay.
    trainer.train(data, num_epochs=4, create_scheduler_fn=schedule(16, num_checkpoints=2))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoint_14_pre_decay",
        "checkpoint_16_post_decay.pt",
        "checkpoint_6_pre_decay",
        "checkpoint_8_post_decay.pt",
    ]
    last = read_file(tmp_path / "checkpoint_16_post_decay.pt")
    assert torch.equal(last["model_state_dict"]["weight"], trainer.model.weight)
    assert sorted(last) == ["model_state_dict", "optimizer_state_dict", "scheduler_state_dict"]


def test_optimizer_and_schedule_can_be_left_out(make_trainer: Any, data: TensorDataset, tmp_path: Path) -> None:
    trainer = make_trainer(WSDCheckpointCallback(tmp_path, save_optimizer=False, save_scheduler=False))
    trainer.train(data, num_epochs=2, create_scheduler_fn=schedule(8))
    assert sorted(read_file(tmp_path / "checkpoint_8_post_decay.pt")) == ["model_state_dict"]


def test_a_longer_run_goes_on_from_the_state_before_the_decay(
    make_trainer: Any, data: TensorDataset, tmp_path: Path
) -> None:
    make_trainer(WSDCheckpointCallback(tmp_path)).train(data, num_epochs=2, create_scheduler_fn=schedule(8))
    rates = Rates()
    callback = WSDCheckpointCallback(tmp_path, initial_checkpoint=tmp_path / "checkpoint_6_pre_decay")
    trainer = make_trainer(callback, rates)
    continued = schedule(10, is_continuation_from_checkpoint=True)
    result = trainer.train(data, num_epochs=4, create_scheduler_fn=continued)
    assert result.steps == 16
    assert rates.rates[:9] == [0.05] * 9  # steps 7 to 15 at the base rate; of 10 steps 2 decay, the first from it
    assert rates.rates[9] < 0.05
    assert len(rates.rates) == 10
    assert (tmp_path / "checkpoint_16_post_decay.pt").is_file()


def test_a_file_with_weights_can_be_started_from(make_trainer: Any, data: TensorDataset, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint_8_post_decay.pt"
    make_trainer(WSDCheckpointCallback(tmp_path)).train(data, num_epochs=2, create_scheduler_fn=schedule(8))
    weights: list[torch.Tensor] = []

    class First(TrainerCallback):
        def on_train_epoch_start(self, trainer: Any, **kwargs: Any) -> None:
            weights.append(trainer.model.weight.detach().clone())

    trainer = make_trainer(WSDCheckpointCallback(tmp_path / "more", initial_checkpoint=path), First)
    continued = schedule(4, is_continuation_from_checkpoint=True)
    assert trainer.train(data, num_epochs=1, create_scheduler_fn=continued).steps == 4
    assert torch.equal(weights[0], read_file(path)["model_state_dict"]["weight"])


def test_another_schedule_is_refused_before_the_first_step(
    make_trainer: Any, data: TensorDataset, tmp_path: Path
) -> None:
    trainer = make_trainer(WSDCheckpointCallback(tmp_path))
    with pytest.raises(ConfigError, match="WSDCheckpointCallback needs a WSDLrScheduler, but the run has none; pass"):
        trainer.train(data, num_epochs=1)
    with pytest.raises(ConfigError, match="but the run has a StepLR; pass create_scheduler_fn="):
        trainer.train(data, num_epochs=1, create_scheduler_fn=partial(StepLR, step_size=1))
    assert trainer.progress.step == 0


def test_a_start_that_is_not_there_is_named(make_trainer: Any, data: TensorDataset, tmp_path: Path) -> None:
    trainer = make_trainer(WSDCheckpointCallback(tmp_path, initial_checkpoint="nowhere"))
    with pytest.raises(CheckpointError, match="initial_checkpoint='nowhere' is no folder and no file"):
        trainer.train(data, num_epochs=1, create_scheduler_fn=schedule(4))
