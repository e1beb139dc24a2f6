import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from treadle.callback import TrainerCallback
from treadle.callbacks import ModelEmaCallback, TerminateOnNaNCallback
from treadle.errors import NonFiniteError
from treadle.events import NonFinite
from treadle.loop.nonfinite import nonfinite_error


class Ending(TrainerCallback):
    """Takes note of the exception a run dies of, and of being closed."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_exception(self, trainer: Any, exception: BaseException, **kwargs: Any) -> None:
        self.seen.append(type(exception).__name__)

    def close(self) -> None:
        self.seen.append("closed")


def with_bad_sample(value: float) -> TensorDataset:
    """Eight batches of one sample; the sixth has a target that is not finite."""
    targets = torch.ones(8, 1)
    targets[5] = value
    return TensorDataset(torch.ones(8, 2), targets)


def in_order() -> dict[str, Any]:
    return {"per_device_batch_size": 1, "train_dataloader_kwargs": {"shuffle": False}}


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a46_a_loss_that_is_not_finite_raises_and_does_not_exit(make_trainer: Any, value: float) -> None:
    ending = Ending()
    trainer = make_trainer(TerminateOnNaNCallback, ending)
    with pytest.raises(NonFiniteError, match=f"loss is {value} at step 6 "):
        trainer.train(with_bad_sample(value), num_epochs=1, log_every=4, **in_order())
    assert ending.seen == ["NonFiniteError", "closed"]


def test_the_message_names_value_step_and_remedy() -> None:
    message = "loss is nan at step 1200 (0.482 at step 1199); lower the learning rate or set clip_norm"
    assert str(nonfinite_error(NonFinite(1200, math.nan, 0.4821), 1)) == message


def test_the_message_without_a_loss_before() -> None:
    message = (
        "loss is inf at step 1; no update was made yet, so it is not the learning rate: check the loss function and "
        "the first weights"
    )
    assert str(nonfinite_error(NonFinite(1, math.inf, None), 1)) == message


def test_with_accumulation_the_loss_before_is_that_of_a_micro_batch(make_trainer: Any) -> None:
    trainer = make_trainer(TerminateOnNaNCallback)
    with pytest.raises(NonFiniteError, match=r"loss is nan at step 3 \(\d.* one micro-batch before\)"):
        trainer.train(with_bad_sample(math.nan), num_epochs=1, gradient_accumulation_steps=2, **in_order())


def test_finite_losses_pass(make_trainer: Any, data: TensorDataset) -> None:
    result = make_trainer(TerminateOnNaNCallback).train(data, num_epochs=2, eval_dataset=data, log_every=1)
    assert result.epochs == 2


def test_an_evaluation_loss_that_is_not_finite_raises(make_trainer: Any, data: TensorDataset) -> None:
    trainer = make_trainer(TerminateOnNaNCallback)
    with pytest.raises(NonFiniteError) as caught:
        trainer.train(data, num_epochs=2, eval_dataset=with_bad_sample(math.nan))
    assert (
        str(caught.value)
        == "eval_loss_epoch is nan after step 4; check its data; lower the learning rate or set clip_norm"
    )


def test_an_evaluation_by_itself_raises_by_its_own_name(make_trainer: Any) -> None:
    trainer = make_trainer(TerminateOnNaNCallback)
    with pytest.raises(NonFiniteError, match="evaluation_loss is inf after step 0"):
        trainer.evaluate(with_bad_sample(math.inf))


def test_the_prefix_of_metric_names_is_respected(make_trainer: Any, data: TensorDataset, tmp_path: Any) -> None:
    class Fragile(nn.Linear):
        """Gives nan once its weights are read-only, as those of an average are."""

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            outputs: torch.Tensor = super().forward(inputs)
            return outputs if self.weight.requires_grad else outputs * math.nan

    ema = ModelEmaCallback(save_path=tmp_path / "ema.pt", callbacks=[TerminateOnNaNCallback])
    trainer = make_trainer(ema, model=Fragile(2, 1))
    with pytest.raises(NonFiniteError, match="ema_model_eval_loss_epoch is nan"):
        trainer.train(data, num_epochs=1, eval_dataset=data)
