from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import TensorDataset

from treadle.callback import TrainerCallback
from treadle.callbacks import LearningRateMonitor
from treadle.phase import Phase
from treadle.trainer import Trainer


class Scalars(TrainerCallback):
    """Collects what every log says, as a writer would."""

    def __init__(self) -> None:
        self.logs: list[dict[str, Any]] = []

    def on_log(self, trainer: Any, scalars: Any = None, **kwargs: Any) -> None:
        self.logs.append({name: value for name, value in scalars.items() if name.startswith("lr")})


def test_the_rate_is_that_of_the_update_at_the_log_and_later_callbacks_see_it(
    make_trainer: Any, data: TensorDataset
) -> None:
    scalars = Scalars()
    trainer = make_trainer(LearningRateMonitor, scalars, lr=1.0)
    # Update number k, from 0, runs at a rate of 1 / (k + 1).
    halving = partial(LambdaLR, lr_lambda=lambda update: 1 / (update + 1))
    trainer.train(data, num_epochs=2, log_every=2, create_scheduler_fn=halving)
    series = trainer.storage.series("lr")
    assert (series.steps, series.values) == ([2, 4, 6, 8], [1 / 2, 1 / 4, 1 / 6, 1 / 8])
    assert [log for log in scalars.logs if log] == [{"lr": 1 / 2}, {"lr": 1 / 4}, {"lr": 1 / 6}, {"lr": 1 / 8}]


def test_a_log_by_epochs_reports_the_last_update(make_trainer: Any, data: TensorDataset) -> None:
    trainer = make_trainer(LearningRateMonitor)
    trainer.train(data, num_epochs=2, log_every="1 epoch")
    assert trainer.storage.series("lr").steps == [4, 8]


def test_groups_are_reported_by_name_or_number(data: TensorDataset) -> None:
    model = nn.Linear(2, 1)
    groups = [{"params": [model.weight], "name": "weights"}, {"params": [model.bias], "lr": 0.25}]
    optimizer = torch.optim.SGD(groups, lr=0.125)
    trainer = Trainer(model, nn.MSELoss(), optimizer, [LearningRateMonitor], device="cpu")
    trainer.train(data, num_epochs=1)
    assert trainer.storage.series("lr/weights").values == [0.125]
    assert trainer.storage.series("lr/1").values == [0.25]


def test_several_optimizers_are_reported_by_name(data: TensorDataset) -> None:
    class TwoOptimizers(Trainer):
        def phases(self, epoch: int) -> Any:
            stream, loss = self.streams["train"], self.calculate_train_batch_loss
            yield Phase("one", stream, loss, self.optimizer["weight"])

    model = nn.Linear(2, 1)
    optimizers = {
        "weight": torch.optim.SGD([model.weight], lr=0.5),
        "bias": torch.optim.SGD([model.bias], lr=torch.tensor(0.25)),
    }
    trainer = TwoOptimizers(model, nn.MSELoss(), optimizers, [LearningRateMonitor], device="cpu")
    trainer.train(data, num_epochs=1)
    assert trainer.storage.series("lr/weight").values == [0.5]
    assert trainer.storage.series("lr/bias").values == [0.25]
