"""Whatever optimizer, schedule, model or loop a run has, one that was cut and started again ends in the same bits."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import SWALR

from tests.interrupting import Counter, adamw, check, make_trainer, momentum, network, simply
from treadle import Phase, TrainerCallback, alternate
from treadle.trainer import Trainer

# Optimizers and schedules ---------------------------------------------------------------------------------

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": partial(torch.optim.SGD, lr=0.05),
    "momentum": momentum,
    "AdamW": adamw,
    "fused AdamW": partial(torch.optim.AdamW, lr=0.05, fused=True),
    "AMSGrad": partial(torch.optim.Adam, lr=0.05, amsgrad=True),
    "NAdam": partial(torch.optim.NAdam, lr=0.05),
    "RMSprop": partial(torch.optim.RMSprop, lr=0.01, momentum=0.5, centered=True),
    "Adagrad": partial(torch.optim.Adagrad, lr=0.05),
    "Adadelta": torch.optim.Adadelta,
    "Rprop": torch.optim.Rprop,
    "ASGD": partial(torch.optim.ASGD, lr=0.05),
    "RAdam": partial(torch.optim.RAdam, lr=0.05),
    "a rate that is a tensor": lambda parameters: torch.optim.Adam(parameters, lr=torch.tensor(0.05)),
}


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_any_optimizer_goes_on(tmp_path: Path, name: str) -> None:
    check(tmp_path, partial(make_trainer, optimizer=OPTIMIZERS[name]), simply, [5, 8])


def half(step: int) -> float:
    return 0.5**step


class Halving:
    """A schedule function that is an object with fields."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, step: int) -> float:
        self.calls += 1
        return 0.9 ** (step + self.calls % 3)


def sequential(optimizer: Any) -> Any:
    parts = [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4), lr_scheduler.CosineAnnealingLR(optimizer, 8)]
    return lr_scheduler.SequentialLR(optimizer, parts, milestones=[4])


def chained(optimizer: Any) -> Any:
    parts = [lr_scheduler.ConstantLR(optimizer, 0.1, 4), lr_scheduler.ExponentialLR(optimizer, 0.9)]
    return lr_scheduler.ChainedScheduler(parts)


SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "LambdaLR": partial(lr_scheduler.LambdaLR, lr_lambda=half),
    "LambdaLR of an object": lambda optimizer: lr_scheduler.LambdaLR(optimizer, Halving()),
    "MultiplicativeLR": partial(lr_scheduler.MultiplicativeLR, lr_lambda=lambda step: 0.95),
    "StepLR": partial(lr_scheduler.StepLR, step_size=3),
    "MultiStepLR": partial(lr_scheduler.MultiStepLR, milestones=[2, 6, 9]),
    "ConstantLR": partial(lr_scheduler.ConstantLR, total_iters=7),
    "LinearLR": partial(lr_scheduler.LinearLR, total_iters=7),
    "ExponentialLR": partial(lr_scheduler.ExponentialLR, gamma=0.9),
    "PolynomialLR": partial(lr_scheduler.PolynomialLR, total_iters=9, power=2.0),
    "CosineAnnealingLR": partial(lr_scheduler.CosineAnnealingLR, T_max=12),
    "CosineAnnealingWarmRestarts": partial(lr_scheduler.CosineAnnealingWarmRestarts, T_0=5),
    "OneCycleLR": partial(lr_scheduler.OneCycleLR, max_lr=0.1, total_steps=12),
    "CyclicLR": partial(lr_scheduler.CyclicLR, base_lr=0.01, max_lr=0.1, step_size_up=3, cycle_momentum=False),
    "CyclicLR of a function": partial(
        lr_scheduler.CyclicLR, base_lr=0.01, max_lr=0.1, step_size_up=3, cycle_momentum=False, scale_fn=half
    ),
    "ReduceLROnPlateau": partial(lr_scheduler.ReduceLROnPlateau, patience=0, threshold=1.0),
    "SequentialLR": sequential,
    "ChainedScheduler": chained,
    "SWALR": partial(SWALR, swa_lr=0.01, anneal_epochs=5),
}


@pytest.mark.parametrize("name", list(SCHEDULES))
def test_any_schedule_of_torch_goes_on(tmp_path: Path, name: str) -> None:
    cut, whole = check(tmp_path, make_trainer, partial(simply, create_scheduler_fn=SCHEDULES[name]))
    assert cut.scheduler.get_last_lr() == whole.scheduler.get_last_lr()


# Models ---------------------------------------------------------------------------------------------------


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2, bias=False)
        self.second = nn.Linear(2, 2, bias=False)
        self.second.weight = self.first.weight
        self.last = nn.Linear(2, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.last(self.second(self.first(inputs)))
        return outputs


class Strided(nn.Module):
    """A model whose weight and buffer do not lie in memory as they are read."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(6.0).reshape(3, 2).t() / 10)
        self.register_buffer("wide", torch.ones(3, 4).t())
        self.last = nn.Linear(3, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.last(inputs @ self.weight + self.get_buffer("wide")[0])
        return outputs


def seeded(build: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build()


@pytest.mark.parametrize("kind", [Tied, Strided])
def test_weights_that_are_shared_or_strided_go_on(tmp_path: Path, kind: type[nn.Module]) -> None:
    cut, _ = check(tmp_path, partial(make_trainer, build=partial(seeded, kind)), simply)
    if kind is Tied:
        assert cut.model.second.weight is cut.model.first.weight


@pytest.mark.slow
def test_a_compiled_model_goes_on(tmp_path: Path) -> None:
    def compiled() -> nn.Module:
        model: nn.Module = torch.compile(network(), backend="eager")  # type: ignore[assignment]
        return model

    check(tmp_path, partial(make_trainer, build=compiled), simply, [5])


class Unfreeze(TrainerCallback):
    """Trains the first layer from the second epoch on."""

    def on_training_run_start(self, trainer: Any, **kwargs: Any) -> None:
        trainer.model[0].requires_grad_(False)

    def on_train_epoch_start(self, trainer: Any, **kwargs: Any) -> None:
        if trainer.progress.epoch == 1:
            trainer.model[0].requires_grad_(True)


def test_a_layer_that_was_unfrozen_stays_so(tmp_path: Path) -> None:
    def make(run_dir: Path, *callbacks: Any) -> Any:
        return make_trainer(run_dir, Unfreeze, *callbacks)

    check(tmp_path, make, simply, [8])


# Loops ----------------------------------------------------------------------------------------------------


class Adversaries(Trainer):
    """Two optimizers that take turns on the same batches."""

    def phases(self, epoch: int) -> Iterator[Phase]:
        assert self._train_dataloader is not None
        stream, loss = self._train_dataloader, self.calculate_train_batch_loss
        yield from alternate(
            Phase("one", stream, loss, self.optimizer["one"], steps=2),
            Phase("two", stream, loss, self.optimizer["two"], steps=1, reuse=True),
        )


@pytest.mark.parametrize("cut", [8, 9, 10, 17, 18])
def test_phases_go_on_at_their_place(tmp_path: Path, cut: int) -> None:
    def make(run_dir: Path, *callbacks: Any) -> Any:
        model: Any = network()
        optimizers = {"one": momentum(model[0].parameters()), "two": adamw(model[3].parameters())}
        options: dict[str, Any] = {"seed": 1, "device": "cpu", "run_dir": run_dir}
        return Adversaries(model, nn.MSELoss(), optimizers, callbacks=callbacks, **options)

    # Nine updates an epoch. After the eighth all data is drawn, and one phase is still to come.
    check(tmp_path, make, partial(simply, per_device_batch_size=4, save_every=1), [1, 2, 3, cut], saved=1)


def test_what_the_user_tracks_goes_on(tmp_path: Path) -> None:
    class Counts(TrainerCallback):
        def on_update_end(self, trainer: Any, **kwargs: Any) -> None:
            trainer.counter.count += 1

    def make(run_dir: Path, *callbacks: Any) -> Any:
        trainer = make_trainer(run_dir, Counts, *callbacks)
        trainer.counter = Counter()
        return trainer.track(counter=trainer.counter)

    cut, _ = check(tmp_path, make, simply)
    assert cut.counter.count == 12


def test_a_loop_of_the_users_own_repeats_an_epoch_that_was_cut(tmp_path: Path) -> None:
    class Own(Trainer):
        def _run_train_epoch(self, train_dl: Any) -> None:
            self.train_epoch_start()
            for batch in train_dl:
                output = self.calculate_train_batch_loss(batch)
                output["loss"].backward()
                self._update_loss_tracker(output["loss"], output["batch_size"])
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.fire("on_update_end")

    check(tmp_path, partial(make_trainer, kind=Own), partial(simply, save_every="1 epoch"), [5, 7], saved=3)
