"""Parts of loaders, and rows without padding."""

import math
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from treadle import Trainer
from treadle.data.loaders import DataLoaderSlice, remove_padding
from treadle.errors import ConfigError


class Endless:
    """Batches without an end."""

    def __iter__(self) -> Iterator[int]:
        number = 0
        while True:
            yield number
            number += 1


def test_a_slice_gives_the_first_batches_each_time() -> None:
    loader = DataLoader(TensorDataset(torch.arange(10.0)), batch_size=2)
    part = DataLoaderSlice(loader, 3)
    assert [batch[0].tolist() for batch in part] == [[0, 1], [2, 3], [4, 5]]
    assert [batch[0].tolist() for batch in part] == [[0, 1], [2, 3], [4, 5]]
    assert len(part) == 3
    assert (part.dl, part.slice_size) == (loader, 3)


def test_a_slice_longer_than_its_loader_has_the_length_of_the_loader() -> None:
    part = DataLoaderSlice(DataLoader(TensorDataset(torch.arange(10.0)), batch_size=4), 100)
    assert len(part) == len(list(part)) == 3


def test_a_slice_of_a_loader_without_a_length_is_as_long_as_asked() -> None:
    part = DataLoaderSlice(Endless(), 4)  # type: ignore[arg-type]
    assert list(part) == [0, 1, 2, 3]
    assert len(part) == 4


@pytest.mark.parametrize("size", [0, -1, 1.5, True])
def test_a_slice_of_nothing_is_refused(size: object) -> None:
    with pytest.raises(ConfigError, match=r"^DataLoaderSlice: slice_size=.* must be a whole number above 0$"):
        DataLoaderSlice([1, 2], size)  # type: ignore[arg-type]


def test_a_trainer_trains_on_a_slice() -> None:
    model = nn.Linear(1, 1)
    trainer = Trainer(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1), callbacks=(), device="cpu")
    loader = DataLoader(TensorDataset(torch.ones(10, 1), torch.zeros(10, 1)), batch_size=2)
    assert trainer.train(DataLoaderSlice(loader, 3), num_epochs=2).steps == 6
    assert trainer.run_config is not None
    assert trainer.run_config.num_update_steps_per_epoch == 3


@pytest.mark.parametrize("shape", [(), (2,), (2, 3), (2, 3, 2)])
def test_rows_of_padding_are_removed_whatever_the_shape_of_a_row(shape: tuple[int, ...]) -> None:
    rows = torch.arange(1, 1 + 3 * math.prod(shape)).reshape(3, *shape)
    padded = torch.cat([rows, torch.full((2, *shape), -1)])
    assert torch.equal(remove_padding(padded, -1), rows)


def test_a_row_with_some_padding_in_it_stays() -> None:
    padded = torch.tensor([[5, 0], [0, 7], [0, 0]])
    assert remove_padding(padded, 0).tolist() == [[5, 0], [0, 7]]


def test_padding_may_be_nan() -> None:
    padded = torch.tensor([[1.0, math.nan], [math.nan, math.nan]])
    assert len(remove_padding(padded, math.nan)) == 1


def test_without_padding_everything_stays() -> None:
    assert remove_padding(torch.tensor([1, 2, 3]), 0).tolist() == [1, 2, 3]
