"""Whatever a run is made of, one that was cut and started again ends in the same bits."""

import os
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import SWALR
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, WeightedRandomSampler

from tests.interrupting import (
    adamw,
    assert_same_bits,
    assert_same_run,
    make_trainer,
    metric_lines,
    momentum,
    network,
    samples,
    train_through,
)
from treadle import Phase, TrainerCallback, alternate
from treadle.callbacks import EarlyStoppingCallback, GradientNormMonitor, LearningRateMonitor, ModelEmaCallback
from treadle.trainer import Trainer

CUTS = [2, 7, 8]
"""Steps to die after, of the twelve of four epochs: in the first, and twice in another."""


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave data in the memory of the machine, which dies in none of these tests."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)



def check(tmp_path: Path, make: Callable[..., Any], train: Callable[[Any], Any], cuts: list[int] = CUTS) -> Any:
    """Train once through and once through `cuts`; compare everything, and return both trainers."""
    whole = make(tmp_path / "whole")
    train(whole)
    cut = train_through(cuts, partial(make, tmp_path / "cut"), train)
    assert_same_run(cut, whole)
    assert metric_lines(tmp_path / "cut") == metric_lines(tmp_path / "whole")
    return cut, whole


def simply(trainer: Any, data: Any = None, **kwargs: Any) -> None:
    options: dict[str, Any] = {"save_every": 2, "log_every": 2, "resume": "auto", **kwargs}
    trainer.train(samples() if data is None else data, 4, **options)


# Where it is cut ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("save_every", [1, 5, "1 epoch"])
def test_a_run_may_be_cut_after_any_step(tmp_path: Path, save_every: Any) -> None:
    train = partial(simply, save_every=save_every, eval_dataset=samples(8))
    whole = make_trainer(tmp_path / "whole")
    train(whole)
    for step in range(1, 12):
        cut = train_through([step], partial(make_trainer, tmp_path / str(step)), train)
        assert_same_run(cut, whole)
        assert metric_lines(tmp_path / str(step)) == metric_lines(tmp_path / "whole")


def test_a_run_may_be_cut_again_and_again_in_one_epoch(tmp_path: Path) -> None:
    train = partial(simply, data=samples(48), per_device_batch_size=4, save_every=1)
    check(tmp_path, make_trainer, train, [2, 3, 5, 8, 9, 14])


def test_everything_at_once(tmp_path: Path) -> None:
    def make(run_dir: Path, *callbacks: Any) -> Any:
        average = ModelEmaCallback(decay=0.9, save_path=run_dir / "average.pt")
        patience = EarlyStoppingCallback(early_stopping_patience=9, watch_metric="ema_model_eval_loss_epoch")
        monitors = (GradientNormMonitor, LearningRateMonitor)
        return make_trainer(run_dir, average, patience, *monitors, *callbacks, precision="bf16")

    def train(trainer: Any) -> None:
        one_cycle = partial(lr_scheduler.OneCycleLR, max_lr=0.1, total_steps=12)
        arguments = {"gradient_accumulation_steps": 2, "clip_norm": 0.5, "per_device_batch_size": 4}
        simply(trainer, eval_dataset=samples(8), eval_every=2, create_scheduler_fn=one_cycle, **arguments)

    cut, whole = check(tmp_path, make, train)
    averages = [trainer.callback_handler.callback_list[0].state_dict() for trainer in (cut, whole)]
    assert_same_bits(*averages)
    assert_same_bits(*(trainer.callback_handler.callback_list[1].state_dict() for trainer in (cut, whole)))


def test_a_run_with_scaled_half_precision(tmp_path: Path) -> None:
    cut, whole = check(tmp_path, partial(make_trainer, precision="fp16"), simply)
    assert cut.precision.scaler.state_dict() == whole.precision.scaler.state_dict()


# Randomness -----------------------------------------------------------------------------------------------


def test_a_run_without_a_seed_goes_on_in_the_order_it_began(tmp_path: Path) -> None:
    # Each start is a process of its own, whose generators are somewhere else.
    starts = iter(range(10, 30))

    def make(run_dir: Path, *callbacks: Any) -> Any:
        start = 10 if run_dir.name == "whole" else next(starts)
        random.seed(start)
        np.random.seed(start)
        torch.manual_seed(start)
        return make_trainer(run_dir, *callbacks, seed=None)

    check(tmp_path, make, simply)


def test_a_run_without_a_seed_has_the_same_samples_whatever_its_generators_were(tmp_path: Path) -> None:
    starts = iter(range(10, 30))

    def make(run_dir: Path, *callbacks: Any) -> Any:
        torch.manual_seed(10 if run_dir.name == "whole" else next(starts))
        return make_trainer(run_dir, *callbacks, seed=None)

    check(tmp_path, make, partial(simply, data=Augmented()))


class Noisy(nn.Module):
    """A model that draws from every generator there is."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()

    def forward(self, inputs: Tensor) -> Tensor:
        noise = torch.randn(()) + random.random() + np.random.rand() + random.gauss(0, 1) + np.random.normal()
        outputs: Tensor = self.inner(inputs + 0.1 * float(noise))
        return outputs


def test_a_model_may_draw_from_any_generator(tmp_path: Path) -> None:
    check(tmp_path, partial(make_trainer, build=Noisy), simply)


# Data -----------------------------------------------------------------------------------------------------


class Augmented(Dataset[Any]):
    """A data set whose samples are noisy, by each of the generators."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        inputs, target = samples()[index]
        return inputs + 0.1 * torch.randn(2) + 0.1 * random.random(), target + 0.1 * float(np.random.rand())


class AugmentedTensors(TensorDataset):
    """Augmentation written on top of the data set that has none."""

    def __getitem__(self, index: int) -> Any:
        inputs, target = super().__getitem__(index)
        return inputs + 0.1 * torch.randn(2), target


class Sequence(IterableDataset[Any]):
    """Samples that come one after the other, shuffled by the global generator."""

    def __iter__(self) -> Iterator[Any]:
        data = samples()
        for index in torch.randperm(24).tolist():
            yield data[index]


class SequenceWithState(IterableDataset[Any]):
    """Samples that come one after the other, and that know their place; an epoch begins where none is loaded."""

    def __init__(self) -> None:
        self.place = 0
        self.loaded = False

    def __iter__(self) -> Iterator[Any]:
        data = samples()
        if not self.loaded:
            self.place = 0
        self.loaded = False
        while self.place < 24:
            self.place += 1
            yield data[self.place - 1]

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place, self.loaded = state["place"], True


class BySize:
    """A batch sampler of one's own that shuffles batches with Python's generator."""

    def __iter__(self) -> Iterator[list[int]]:
        batches = [list(range(start, start + 8)) for start in (0, 8, 16)]
        random.shuffle(batches)
        yield from batches

    def __len__(self) -> int:
        return 3


def mixed(items: list[Any]) -> Any:
    """Join samples and mix them at random, as is done in a collate function."""
    inputs, targets = (torch.stack(parts) for parts in zip(*items, strict=True))
    share = torch.rand(())
    return share * inputs + (1 - share) * inputs.flip(0), share * targets + (1 - share) * targets.flip(0)


def weighted() -> DataLoader[Any]:
    sampler = WeightedRandomSampler(torch.arange(1.0, 25.0).tolist(), 24, generator=torch.Generator().manual_seed(3))
    return DataLoader(samples(), batch_size=8, sampler=sampler)


class Batches:
    """Batches that are ready, from something that is no data set."""

    def __iter__(self) -> Iterator[Any]:
        inputs, targets = samples().tensors
        yield from zip(inputs.split(8), targets.split(8), strict=True)


def own_generator() -> DataLoader[Any]:
    return DataLoader(samples(), batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(4))


SOURCES: dict[str, Callable[[], Any]] = {
    "augmented": Augmented,
    "augmented tensors": lambda: AugmentedTensors(*samples().tensors),
    "a loader that shuffles": lambda: DataLoader(samples(), batch_size=8, shuffle=True),
    "a loader with a generator": own_generator,
    "a loader with a sampler": weighted,
    "a loader with batches of its own": lambda: DataLoader(samples(), batch_sampler=BySize()),
    "a loader that mixes": lambda: DataLoader(samples(), batch_size=8, shuffle=True, collate_fn=mixed),
    "an iterable": Sequence,
    "an iterable with a state": SequenceWithState,
    "batches": Batches,
}


@pytest.mark.parametrize("source", list(SOURCES))
def test_data_of_any_kind_goes_on_at_its_place(tmp_path: Path, source: str) -> None:
    def train(trainer: Any) -> None:
        simply(trainer, SOURCES[source]())

    check(tmp_path, make_trainer, train)


WITH_WORKERS: dict[str, Callable[..., Any]] = {
    "augmented": partial(DataLoader, Augmented(), shuffle=True),
    "augmented tensors": partial(DataLoader, AugmentedTensors(*samples().tensors), shuffle=True),
    "mixed": partial(DataLoader, samples(), shuffle=True, collate_fn=mixed),
    "an iterable": partial(DataLoader, Sequence()),
    "an iterable with a state": partial(DataLoader, SequenceWithState()),
}


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("source", list(WITH_WORKERS))
def test_data_that_workers_fetch_goes_on_at_its_place(tmp_path: Path, source: str, workers: int) -> None:
    if "iterable" in source and workers == 2:
        pytest.skip("without a share for each worker, both would give all of an iterable")

    def train(trainer: Any) -> None:
        simply(trainer, WITH_WORKERS[source](batch_size=8, num_workers=workers), save_every=1)

    check(tmp_path, make_trainer, train, [2, 7])


@pytest.mark.slow
@pytest.mark.parametrize("persistent", [True, False])
def test_persistent_workers_make_no_difference(tmp_path: Path, persistent: bool) -> None:
    def train(trainer: Any) -> None:
        workers = {"num_workers": 2, "persistent_workers": persistent}
        simply(trainer, Augmented(), save_every=1, train_dataloader_kwargs=workers)

    check(tmp_path, make_trainer, train, [2, 7])


def test_a_run_may_go_on_with_another_number_of_workers(tmp_path: Path) -> None:
    workers = iter([0, 1, 0, 1])

    def train(trainer: Any) -> None:
        simply(trainer, Augmented(), save_every=1, train_dataloader_kwargs={"num_workers": next(workers)})

    check(tmp_path, make_trainer, train, [2, 7])


def test_evaluation_data_that_is_shuffled_gives_the_same_losses(tmp_path: Path) -> None:
    def train(trainer: Any) -> None:
        simply(trainer, eval_dataset=DataLoader(samples(), batch_size=5, shuffle=True))

    check(tmp_path, make_trainer, train, [4])


def test_evaluation_data_that_is_augmented_gives_the_same_losses(tmp_path: Path) -> None:
    check(tmp_path, make_trainer, partial(simply, eval_dataset=Augmented()))


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
    check(tmp_path, make, partial(simply, per_device_batch_size=4, save_every=1), [1, 2, 3, cut])


class Counter:
    """State of the user's own."""

    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


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

    check(tmp_path, partial(make_trainer, kind=Own), partial(simply, save_every="1 epoch"), [5, 7])
