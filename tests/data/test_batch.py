"""What can be said of a batch without knowing its type."""

from collections import OrderedDict, UserDict, namedtuple
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from treadle.data.batch import mover, size_of, stay
from treadle.errors import DataError

Pair = namedtuple("Pair", ["inputs", "targets"])


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (torch.zeros(4, 2), 4),
        (torch.tensor(1.0), 1),
        ((torch.zeros(3, 2), torch.zeros(3)), 3),
        ([torch.zeros(5, 2), torch.zeros(5)], 5),
        (Pair(torch.zeros(2, 9), torch.zeros(2)), 2),
        ({"ids": torch.zeros(6, 7), "labels": torch.zeros(6)}, 6),
        ({"scale": torch.tensor(1.0), "ids": torch.zeros(6, 7)}, 6),
        ({"texts": ["a", "b", "c"]}, 3),
        ((["a", "b"], ["c", "d"]), 2),
        (({"ids": torch.zeros(4, 3)}, ["a"] * 4), 4),
        (["a", "b", "c"], 3),
        ((torch.zeros(0, 2), torch.zeros(0)), 0),
    ],
)
def test_the_size_of_a_batch_is_its_number_of_samples(batch: Any, size: int) -> None:
    assert size_of(batch) == size


@pytest.mark.parametrize("batch", [3, None, object()])
def test_a_batch_of_unknown_size_is_refused_with_what_to_do(batch: Any) -> None:
    with pytest.raises(DataError) as caught:
        size_of(batch)
    assert str(caught.value) == (
        f"the size of a batch of type {type(batch).__name__} is not known; "
        "return 'batch_size' from calculate_train_batch_loss and calculate_eval_batch_loss"
    )


def test_on_the_cpu_nothing_is_moved() -> None:
    batch = object()
    assert mover(torch.device("cpu")) is stay
    assert stay(batch) is batch


class Graph:
    """Something with a `to` of its own."""

    def __init__(self, device: Any = None) -> None:
        self.device = device

    def to(self, device: Any) -> "Graph":
        return Graph(device)


META = torch.device("meta")
"""A device that every build of torch has, and that is not the CPU."""


def devices(batch: Any) -> Any:
    if isinstance(batch, Tensor):
        return batch.device.type
    if isinstance(batch, (list, tuple)):
        return [devices(part) for part in batch]
    return {key: devices(value) for key, value in batch.items()} if hasattr(batch, "items") else batch


def test_tensors_are_moved_wherever_they_are_and_all_else_stays() -> None:
    batch = {"a": torch.zeros(2), "b": [torch.zeros(1), ("text", 3, torch.zeros(1))], "c": None}
    moved = mover(META)(batch)
    assert devices(moved) == {"a": "meta", "b": ["meta", ["text", 3, "meta"]], "c": None}
    assert devices(batch)["a"] == "cpu"
    assert type(moved["b"][1]) is tuple


def test_the_type_of_a_batch_is_kept() -> None:
    move = mover(META)
    pair = move(Pair(torch.zeros(1), torch.zeros(1)))
    assert type(pair) is Pair
    assert pair.targets.device == META
    assert type(move(OrderedDict(a=torch.zeros(1)))) is OrderedDict
    assert type(move(UserDict(a=torch.zeros(1)))) is UserDict


def test_an_object_that_can_move_itself_does() -> None:
    assert mover(META)([Graph()])[0].device == META


def test_a_packed_sequence_keeps_its_lengths_on_the_host() -> None:
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    moved = mover(META)({"words": packed})["words"]
    assert isinstance(moved, PackedSequence)
    assert (moved.data.device, moved.batch_sizes.device) == (META, torch.device("cpu"))


class Stubborn(UserDict[str, Any]):
    """A mapping that cannot be built from a dict."""

    def __init__(self, first: Any, second: Any) -> None:
        super().__init__(first=first, second=second)


def test_a_mapping_that_cannot_be_rebuilt_becomes_a_dict() -> None:
    moved = mover(META)(Stubborn(torch.zeros(1), 2))
    assert type(moved) is dict
    assert devices(moved) == {"first": "meta", "second": 2}
