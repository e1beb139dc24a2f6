from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from treadle.callback import TrainerCallback
from treadle.callbacks import GradientNormMonitor
from treadle.errors import ConfigError


class Reference(TrainerCallback):
    """Computes the norm of each micro-batch's gradient by itself."""

    def __init__(self) -> None:
        self.norms: list[float] = []

    def on_train_step_end(self, trainer: Any, batch: Any = None, **kwargs: Any) -> None:
        loss = nn.functional.mse_loss(trainer.model(batch[0]), batch[1])
        gradients = torch.autograd.grad(loss, list(trainer.model.parameters()))
        self.norms.append(torch.cat([gradient.flatten() for gradient in gradients]).norm().item())


@pytest.mark.parametrize("clip_norm", [None, 0.5])
def test_the_norm_is_that_of_the_gradient_before_clipping(
    make_trainer: Any, data: TensorDataset, clip_norm: float | None
) -> None:
    reference = Reference()
    trainer = make_trainer(reference, GradientNormMonitor)
    trainer.train(data, num_epochs=2, clip_norm=clip_norm)
    assert trainer.storage.series("gradient_norm").values == pytest.approx(reference.norms)


def test_it_is_put_every_so_many_steps(make_trainer: Any, data: TensorDataset) -> None:
    trainer = make_trainer(GradientNormMonitor(every=3))
    trainer.train(data, num_epochs=2)
    assert trainer.storage.series("gradient_norm").steps == [3, 6]


def test_it_is_put_once_an_epoch(make_trainer: Any, data: TensorDataset) -> None:
    trainer = make_trainer(GradientNormMonitor(every="1 epoch"))
    trainer.train(data, num_epochs=2)
    assert trainer.storage.series("gradient_norm").steps == [4, 8]


def test_it_is_left_on_the_device_until_a_log_is_due(make_trainer: Any, data: TensorDataset) -> None:
    pending: list[Any] = []

    class Looking(TrainerCallback):
        def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
            pending.append([type(entry[2]) for entry in trainer.storage._pending if entry[0] == "gradient_norm"])

    make_trainer(GradientNormMonitor, Looking).train(data, num_epochs=1, log_every=2)
    assert pending == [[torch.Tensor], [torch.Tensor] * 2, [torch.Tensor], [torch.Tensor] * 2]


@pytest.mark.parametrize("asked", [False, True])
def test_what_the_trainer_was_asked_for_before_holds_afterwards(
    make_trainer: Any, data: TensorDataset, asked: bool
) -> None:
    trainer = make_trainer(GradientNormMonitor)
    trainer.track_gradient_norm = asked
    trainer.train(data, num_epochs=1)
    assert trainer.track_gradient_norm is asked


def test_a_cadence_that_cannot_be_meant_is_refused() -> None:
    with pytest.raises(ConfigError, match="GradientNormMonitor: every=0 is not a valid interval"):
        GradientNormMonitor(every=0)
