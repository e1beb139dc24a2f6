import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from treadle.callback import TrainerCallback
from treadle.errors import ConfigError, MissingDependencyError
from treadle.optim.lr_finder import LearningRateSweep, find_learning_rate
from treadle.trainer import Trainer


@pytest.fixture
def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(64, 4, generator=generator)
    return TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))


def make_trainer(*callbacks: Any, lr: float = 0.01, **kwargs: Any) -> Trainer:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 1))
    groups = [{"params": model[:2].parameters()}, {"params": model[2:].parameters(), "lr": lr / 10}]
    optimizer = torch.optim.AdamW(groups, lr=lr)
    return Trainer(model, nn.MSELoss(), optimizer, callbacks, device="cpu", **kwargs)


def test_rates_grow_by_the_same_factor_from_the_lowest_to_the_highest(data: TensorDataset) -> None:
    sweep = find_learning_rate(make_trainer(), data, min_lr=1e-4, max_lr=1e-1, steps=4, divergence=1e9)
    assert sweep.rates == pytest.approx([1e-4, 1e-3, 1e-2, 1e-1])
    assert len(sweep.losses) == len(sweep.smoothed) == 4


def test_losses_are_those_of_the_trainer_at_these_rates(data: TensorDataset) -> None:
    used: list[tuple[float, float]] = []
    losses: list[float] = []

    class Spying(Trainer):
        def optimizer_step(self) -> None:
            first, second = self.optimizer.param_groups
            used.append((first["lr"], second["lr"]))
            super().optimizer_step()

        def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
            output = super().calculate_train_batch_loss(batch)
            losses.append(output["loss"].item())
            return output

    plain = make_trainer()
    trainer = Spying(plain.model, plain.loss_func, plain.optimizer, (), device="cpu")
    sweep = find_learning_rate(trainer, data, min_lr=1e-4, max_lr=1e-2, steps=20, per_device_batch_size=16)
    assert sweep.losses == losses
    assert [first for first, _ in used] == sweep.rates
    assert [second for _, second in used] == pytest.approx([rate / 10 for rate in sweep.rates])


def test_everything_is_as_it_was_before(data: TensorDataset) -> None:
    trainer = make_trainer(seed=3)
    trainer.train(data, num_epochs=1)
    history = trainer.train(data, num_epochs=1).history
    trainer.model.eval()
    untouched = make_trainer(seed=3)
    untouched.train(data, num_epochs=1)
    untouched.train(data, num_epochs=1)
    random = torch.get_rng_state()
    before = dict(vars(trainer))
    find_learning_rate(trainer, data, steps=20)
    assert vars(trainer).keys() == before.keys()
    assert all(vars(trainer)[name] is value for name, value in before.items())
    assert torch.equal(torch.get_rng_state(), random)
    assert not trainer.model.training
    assert [group["lr"] for group in trainer.optimizer.param_groups] == [0.01, 0.001]
    assert trainer.run_history.get_metric_values("train_loss_epoch") == history["train_loss_epoch"]
    assert trainer.progress.step == 8
    for one in (trainer, untouched):
        one.train(data, num_epochs=1)
    for name, value in untouched.model.state_dict().items():
        assert torch.equal(trainer.model.state_dict()[name], value), name


def test_a_fresh_trainer_is_fresh_afterwards(data: TensorDataset) -> None:
    trainer, untouched = make_trainer(seed=3), make_trainer(seed=3)
    find_learning_rate(trainer, data, steps=10)
    assert trainer.optimizer.state == {}
    assert trainer.run_config is None
    for one in (trainer, untouched):
        one.train(data, num_epochs=2)
    for name, value in untouched.model.state_dict().items():
        assert torch.equal(trainer.model.state_dict()[name], value), name


def test_everything_is_put_back_after_an_error_too(data: TensorDataset) -> None:
    trainer = make_trainer()
    trainer.loss_func = lambda outputs, targets: 1 / 0
    before = trainer.model[0].weight.detach().clone()
    handler = trainer.callback_handler
    with pytest.raises(ZeroDivisionError):
        find_learning_rate(trainer, data, steps=10)
    assert torch.equal(trainer.model[0].weight, before)
    assert trainer.callback_handler is handler


def test_the_sweep_stops_when_the_loss_diverges(data: TensorDataset) -> None:
    model = nn.Linear(4, 1)
    trainer = Trainer(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1), (), device="cpu")
    sweep = find_learning_rate(trainer, data, min_lr=1e-3, max_lr=1e3, steps=100)
    assert len(sweep.rates) < 100
    assert sweep.smoothed[-1] > 4 * min(sweep.smoothed)
    assert all(math.isfinite(loss) for loss in sweep.losses)
    assert sweep.suggestion is not None
    assert 1e-3 < sweep.suggestion < sweep.rates[-1]


def test_the_sweep_stops_at_a_loss_that_is_not_finite() -> None:
    data = TensorDataset(torch.ones(8, 4), torch.full((8, 1), math.nan))
    sweep = find_learning_rate(make_trainer(), data, steps=10)
    assert (sweep.rates, sweep.losses, sweep.suggestion) == ([], [], None)


def test_the_callbacks_of_the_trainer_do_not_take_part(data: TensorDataset) -> None:
    class Failing(TrainerCallback):
        def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
            raise AssertionError("a sweep is none of its business")

    find_learning_rate(make_trainer(Failing), data, steps=3)


def test_the_suggestion_is_where_the_loss_falls_fastest_before_its_lowest() -> None:
    def suggestion(losses: list[float]) -> float | None:
        return LearningRateSweep([float(rate) for rate in range(len(losses))], losses, losses).suggestion

    assert suggestion([9.0, 8.0, 4.0, 3.0, 7.0, 99.0, 5.0]) == 1.0
    assert suggestion([1.0, 2.0, 3.0]) is None
    assert suggestion([1.0, 1.0, 1.0]) is None
    assert suggestion([1.0]) is None
    # Of 30 losses three are averaged: the dip at rate 3 is one batch, the fall after rate 14 is real.
    noisy = [10.0] * 15 + [4.0] * 14 + [3.0]
    noisy[3] = 1.5
    smoothed = [10.0] * 15 + [4.0] * 14 + [3.0]
    assert LearningRateSweep([float(rate) for rate in range(30)], noisy, smoothed).suggestion == 14.0


def test_a_plot_is_written(tmp_path: Path) -> None:
    path = tmp_path / "sweep.png"
    LearningRateSweep([1e-3, 1e-2, 1e-1], [3.0, 2.0, 5.0], [3.0, 2.0, 5.0]).plot(path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependencyError) as caught:
        LearningRateSweep([], [], []).plot(tmp_path / "sweep.png")
    assert str(caught.value) == "LearningRateSweep.plot needs matplotlib; pip install 'treadle[plot]'"


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"min_lr": 0.0}, "find_learning_rate: min_lr=0.0 must be above 0 and below max_lr=1.0"),
        ({"min_lr": 2.0}, "find_learning_rate: min_lr=2.0 must be above 0 and below max_lr=1.0"),
        ({"steps": 1}, "find_learning_rate: steps=1 must be at least 2"),
        ({"smoothing": 1.0}, "find_learning_rate: smoothing=1.0 must be at least 0 and below 1"),
        ({"divergence": 1.0}, "find_learning_rate: divergence=1.0 must be above 1"),
        (
            {"num_epochs": 3, "log_every": 5},
            r"find_learning_rate decides \['log_every', 'num_epochs'\] itself; leave them out",
        ),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(data: TensorDataset, kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        find_learning_rate(make_trainer(), data, **kwargs)
