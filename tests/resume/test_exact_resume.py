"""Whatever a run is made of, one that was cut and started again ends in the same bits."""

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
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, WeightedRandomSampler

from tests.interrupting import (
    assert_same_bits,
    assert_same_run,
    check,
    make_trainer,
    metric_lines,
    network,
    samples,
    simply,
    train_through,
)
from treadle.callbacks import EarlyStoppingCallback, GradientNormMonitor, LearningRateMonitor, ModelEmaCallback

# Where it is cut ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("save_every", "saved"), [(1, 1), (5, 5), ("1 epoch", 3)])
def test_a_run_may_be_cut_after_any_step(tmp_path: Path, save_every: Any, saved: int) -> None:
    train = partial(simply, save_every=save_every, eval_dataset=samples(8))
    whole = make_trainer(tmp_path / "whole")
    train(whole)
    for step in range(1, 12):
        cut = train_through([step], partial(make_trainer, tmp_path / str(step)), train, saved=saved)
        assert_same_run(cut, whole)
        assert metric_lines(tmp_path / str(step)) == metric_lines(tmp_path / "whole")


def test_a_run_may_be_cut_again_and_again_in_one_epoch(tmp_path: Path) -> None:
    train = partial(simply, data=samples(48), per_device_batch_size=4, save_every=1)
    check(tmp_path, make_trainer, train, [2, 3, 5, 8, 9, 14], saved=1)


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
    """A batch sampler of your own that shuffles batches with Python's generator."""

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

    check(tmp_path, make_trainer, train, [2, 7], saved=1)


@pytest.mark.slow
@pytest.mark.parametrize("persistent", [True, False])
def test_persistent_workers_make_no_difference(tmp_path: Path, persistent: bool) -> None:
    def train(trainer: Any) -> None:
        workers = {"num_workers": 2, "persistent_workers": persistent}
        simply(trainer, Augmented(), save_every=1, train_dataloader_kwargs=workers)

    check(tmp_path, make_trainer, train, [2, 7], saved=1)


@pytest.mark.slow
def test_a_run_may_go_on_with_another_number_of_workers(tmp_path: Path) -> None:
    workers = iter([0, 1, 0, 1])

    def train(trainer: Any) -> None:
        simply(trainer, Augmented(), save_every=1, train_dataloader_kwargs={"num_workers": next(workers)})

    check(tmp_path, make_trainer, train, [2, 7], saved=1)


def test_evaluation_data_that_is_shuffled_gives_the_same_losses(tmp_path: Path) -> None:
    def train(trainer: Any) -> None:
        simply(trainer, eval_dataset=DataLoader(samples(), batch_size=5, shuffle=True))

    check(tmp_path, make_trainer, train, [4])


def test_evaluation_data_that_is_augmented_gives_the_same_losses(tmp_path: Path) -> None:
    check(tmp_path, make_trainer, partial(simply, eval_dataset=Augmented()))
