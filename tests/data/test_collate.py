"""Batches made by one indexing call are what collating samples one by one gives."""

from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    SequentialSampler,
    Subset,
    TensorDataset,
    default_collate,
    random_split,
)

from treadle.data import Stream, make_loader
from treadle.data.collate import as_index, batch_reader, collated

CPU = torch.device("cpu")
ROWS = 11


def columns(start: int = 0) -> tuple[Tensor, ...]:
    """Columns of every kind: numbers, rows, images, words of several widths; one is not contiguous."""
    count = ROWS + start
    return (
        torch.arange(count, dtype=torch.float64) / 3,
        torch.arange(count * 4).reshape(count, 4).float(),
        torch.arange(count * 6, dtype=torch.uint8).reshape(count, 1, 2, 3),
        torch.arange(count) % 2 == 0,
        torch.arange(count * 2).reshape(2, count).t(),
        torch.full((count, 2), torch.nan, dtype=torch.bfloat16),
        torch.zeros(count, 3, 2, 2).to(memory_format=torch.channels_last),
    )


def tensors(start: int = 0) -> TensorDataset:
    return TensorDataset(*columns(start))


def mapped(folder: Path) -> Any:
    """An array in a file, which cannot be written to."""
    np.save(folder / "rows.npy", np.arange(ROWS * 3, dtype=np.float32).reshape(ROWS, 3))
    return np.load(folder / "rows.npy", mmap_mode="r")


def frozen() -> Any:
    """An array that runs backwards and cannot be written to."""
    array = np.arange(ROWS * 2, dtype=np.int16).reshape(ROWS, 2)[:, ::-1]
    array.flags.writeable = False
    return array


KINDS: dict[str, Callable[[Path], Any]] = {
    "TensorDataset": lambda folder: tensors(),
    "tensor of rows": lambda folder: torch.arange(ROWS * 4).reshape(ROWS, 4),
    "tensor of numbers": lambda folder: torch.arange(ROWS),
    "array of rows": lambda folder: np.arange(ROWS * 4, dtype=np.int32).reshape(ROWS, 4),
    "array of numbers": lambda folder: np.arange(ROWS, dtype=np.float32),
    "array of truths": lambda folder: np.arange(ROWS) % 3 == 0,
    "array that cannot be written to": lambda folder: frozen(),
    "array in a file": mapped,
    "part": lambda folder: Subset(tensors(6), [*range(16, 4, -1)][:ROWS]),
    "part with a tensor of indices": lambda folder: Subset(tensors(6), torch.arange(5, 5 + ROWS)),  # type: ignore[arg-type]
    "part of a part": lambda folder: Subset(Subset(tensors(9), range(3, 18)), range(2, 2 + ROWS)),
    "random split": lambda folder: random_split(tensors(9), [ROWS, 9], torch.Generator().manual_seed(1))[0],
    "several in a row": lambda folder: ConcatDataset([Subset(tensors(), [1, 3]), tensors(), Subset(tensors(), [0])]),
    "several parts of tensors in a row": lambda folder: ConcatDataset([torch.arange(3), torch.arange(30, 40)]),
}


def assert_same(left: Any, right: Any) -> None:
    """Compare two batches: make, types, shapes, strides and values."""
    assert type(left) is type(right)
    if isinstance(left, Tensor):
        assert (left.dtype, left.shape, left.stride()) == (right.dtype, right.shape, right.stride())
        assert torch.equal(left.nan_to_num(), right.nan_to_num())
        return
    if isinstance(left, dict):
        assert list(left) == list(right)
        left, right = list(left.values()), list(right.values())
    if not isinstance(left, (list, tuple)):
        assert left == right
        return
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        assert_same(one, other)


def one_by_one(dataset: Any, indices: list[int]) -> Any:
    # Torch warns of arrays that cannot be written to, and refuses those that run backwards: it gets a copy.
    dataset = np.array(dataset) if isinstance(dataset, np.ndarray) else dataset
    return default_collate([dataset[index] for index in indices])


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_rows_are_gathered_as_they_would_be_collated(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    dataset = KINDS[kind](tmp_path)
    rows = batch_reader(dataset)
    assert rows is not None
    for indices in ([3], [0, ROWS - 1, 4], [2, 2], list(range(ROWS)), list(range(ROWS - 1, -1, -1))):
        assert_same(rows(torch.tensor(indices, dtype=dtype)), one_by_one(dataset, indices))


LOADERS: dict[str, Callable[[Any], Any]] = {
    "the trainer's": lambda data: make_loader(data, shuffle=True, batch_size=4),
    "one in order": lambda data: DataLoader(data, batch_size=4, drop_last=True),
    "a list of indices": lambda data: DataLoader(data, batch_size=3, sampler=[4, 0, 9, 9, 2]),
    "indices from the end": lambda data: DataLoader(data, batch_size=3, sampler=[-1, 0, -3, 9, 2]),
    "a list of batches": lambda data: DataLoader(data, batch_sampler=[[4, 0], [9], [-1, 2, 3]]),
    "a batch sampler": lambda data: DataLoader(data, batch_sampler=BatchSampler(SequentialSampler(data), 4, False)),
    "torch's shuffled": lambda data: DataLoader(data, 4, shuffle=True, generator=torch.Generator().manual_seed(3)),
    "one without batches": lambda data: DataLoader(data, batch_size=None, sampler=[3, 1]),
    "one with a worker": lambda data: DataLoader(data, batch_size=4, num_workers=1),
    "one with a worker and a list of batches": lambda data: DataLoader(
        data, batch_sampler=[[4, 0], [-1]], num_workers=1
    ),
}


class OneByOne(Dataset[Any]):
    """The same samples from a data set of nobody's, which is collated sample by sample."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]


def drawn(source: Any, epochs: tuple[int, ...] = (0, 1), **kwargs: Any) -> list[Any]:
    stream = Stream(source, device=CPU, seed=5, **kwargs)
    batches = []
    for epoch in epochs:
        stream.begin(epoch)
        batches += list(stream.rest())
    stream.close()
    return batches


@pytest.mark.parametrize("loader", list(LOADERS))
@pytest.mark.parametrize("kind", ["TensorDataset", "random split", "array of rows", "several in a row"])
def test_a_stream_gives_the_batches_of_the_same_samples_fetched_one_by_one(
    loader: str, kind: str, tmp_path: Path
) -> None:
    make = LOADERS[loader]
    data = KINDS[kind](tmp_path)
    assert_same(drawn(make(data)), drawn(make(OneByOne(data))))


@pytest.mark.parametrize("evaluation", [False, True])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_ranks_gather_the_shares_that_they_would_fetch(rank: int, evaluation: bool) -> None:
    def share(data: Any) -> list[Any]:
        loader = make_loader(data, shuffle=not evaluation, batch_size=2)
        return drawn(loader, rank=rank, size=3, evaluation=evaluation)

    assert_same(share(tensors()), share(OneByOne(tensors())))


@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_epoch_of_gathered_batches_is_entered_anywhere(place: int) -> None:
    whole = drawn(make_loader(tensors(), shuffle=True, batch_size=4), (1,))
    stream = Stream(make_loader(tensors(), shuffle=True, batch_size=4), device=CPU, seed=5)
    stream.begin(1, place)
    assert_same(list(stream.rest()), whole[place:])


def test_a_tensor_data_set_is_asked_for_no_single_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise AssertionError("one by one is ten times slower")

    monkeypatch.setattr(TensorDataset, "__getitem__", refuse)
    parts = random_split(tensors(), [6, 5], torch.Generator().manual_seed(1))
    for data in (tensors(), parts[0], ConcatDataset(parts)):
        assert drawn(make_loader(data, shuffle=True, batch_size=4))


def test_a_batch_may_be_changed_without_changing_the_data() -> None:
    inputs = torch.arange(6.0)
    for batch in drawn(make_loader(TensorDataset(inputs), shuffle=False, batch_size=3)):
        batch[0].zero_()
    assert inputs.tolist() == [0, 1, 2, 3, 4, 5]


def test_new_tensors_in_a_data_set_are_seen_when_the_next_epoch_begins() -> None:
    data = TensorDataset(torch.zeros(4))
    stream = Stream(make_loader(data, shuffle=False, batch_size=4), device=CPU)
    stream.begin(0)
    assert next(iter(stream))[0].tolist() == [0, 0, 0, 0]
    data.tensors = (torch.ones(4),)
    stream.begin(1)
    assert next(iter(stream))[0].tolist() == [1, 1, 1, 1]


def test_a_collate_function_of_the_users_still_gets_samples() -> None:
    seen: list[Any] = []

    def collate(samples: list[Any]) -> Any:
        seen.append([sample[0].item() for sample in samples])
        return default_collate(samples)

    drawn(DataLoader(TensorDataset(torch.arange(3)), batch_size=2, collate_fn=collate), (0,))
    assert seen == [[0, 1], [2]]


class Child(TensorDataset):
    """Somebody's own, which may do anything with a sample."""


@pytest.mark.parametrize(
    "data",
    [
        Child(torch.zeros(3)),
        Subset(Child(torch.zeros(3)), [0]),
        Subset(TensorDataset(torch.zeros(3)), [-1]),
        ConcatDataset([TensorDataset(torch.zeros(3)), Child(torch.zeros(3))]),
        ConcatDataset([TensorDataset(torch.zeros(3)), TensorDataset(torch.zeros(3), torch.zeros(3))]),
        TensorDataset(torch.nn.Parameter(torch.zeros(3))),
        torch.zeros(3, 2).to_sparse(),
        torch.zeros(()),
        np.array(["ant", "bee"]),
        np.array([object()]),
        np.zeros((0, 3)),
        np.array(3),
        [torch.zeros(2)] * 3,
        "words",
        None,
    ],
    ids=lambda data: type(data).__name__,
)
def test_anything_else_has_no_rows_to_gather(data: Any) -> None:
    assert batch_reader(data) is None


def test_an_index_out_of_range_is_an_error_as_ever() -> None:
    for data in (TensorDataset(torch.zeros(3)), np.zeros((3, 2))):
        with pytest.raises(IndexError):
            drawn(DataLoader(data, batch_size=2, sampler=[0, 3]), (0,))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("indices", "expected"),
    [
        ([2, 0], [2, 0]),
        ((1,), [1]),
        (range(3), [0, 1, 2]),
        (np.array([4, 5]), [4, 5]),
        ([np.int64(4)], [4]),
        ([torch.tensor(4)], [4]),
        (torch.tensor([7], dtype=torch.int32), [7]),
    ],
)
def test_whole_numbers_in_any_form_are_an_index(indices: Any, expected: list[int]) -> None:
    index = as_index(indices)
    assert index is not None
    assert index.tolist() == expected


@pytest.mark.parametrize("indices", [[], 3, [1.0], [True], [-1, 2], ["a"], [[1, 2]], [None], [slice(2)], object()])
def test_anything_else_is_no_index(indices: Any) -> None:
    assert as_index(indices) is None


# Samples that were fetched one by one -----------------------------------------------------------------------

Pair = namedtuple("Pair", ["left", "right"])


class Grown(Tensor):
    """A tensor of a type of its own."""


def made(make: Callable[[int], Any], count: int = 5) -> list[Any]:
    return [make(index) for index in range(count)]


SAMPLES: dict[str, Callable[[int], Any]] = {
    "tensor": lambda index: torch.full((3,), index, dtype=torch.bfloat16),
    "pair": lambda index: (torch.full((2, 2), float(index)), torch.tensor(index)),
    "list": lambda index: [torch.arange(index, index + 3).double(), index],
    "tensor and int": lambda index: (torch.ones(2) * index, index),
    "bool, float, text, nothing of it": lambda index: (index % 2 == 0, index / 3, str(index), b"x"),
    "an int, then floats": lambda index: (index if index == 0 else index / 2, index == 1),
    "an int, then a bool": lambda index: (1 if index == 0 else True,),
    "large ints": lambda index: (2**40 + index, -index),
    "arrays": lambda index: (np.full(3, index, dtype=np.float32), np.int16(index), np.float64(index)),
    "dict": lambda index: {"ids": torch.arange(4) + index, "label": index, "text": "ab"},
    "dict with more keys later": lambda index: {"b": index, "a": index, **({"c": 1} if index else {})},
    "nested": lambda index: {"x": (torch.ones(1) * index, [index, index + 1]), "y": {"z": torch.zeros(2, 0)}},
    "named tuple": lambda index: Pair(torch.ones(2) * index, index),
    "pair of pairs": lambda index: ((index, torch.ones(1)), Pair(index, 0.5)),
    "parameter": lambda index: (torch.nn.Parameter(torch.ones(2) * index),),
    "type of its own": lambda index: ((torch.ones(2) * index).as_subclass(Grown), index),
    "type of its own later": lambda index: (torch.ones(2).as_subclass(Grown) if index == 3 else torch.ones(2),),
    "strided": lambda index: (torch.arange(6).reshape(2, 3).t() + index, torch.zeros(1, 2).expand(3, 2)),
    "empty": lambda index: (),
    "int alone": lambda index: index,
    "text alone": lambda index: str(index),
}


@pytest.mark.parametrize("kind", SAMPLES)
@pytest.mark.parametrize("count", [1, 5])
def test_samples_are_collated_as_torch_does(kind: str, count: int) -> None:
    samples = made(SAMPLES[kind], count)
    assert_same(collated(samples), default_collate(samples))


UNFIT: dict[str, Callable[[int], Any]] = {
    "shapes differ": lambda index: (torch.ones(index + 1), index),
    "lengths differ": lambda index: (torch.ones(2),) * (index + 1),
    "a key is missing": lambda index: {"a": 1} if index else {"a": 1, "b": 2},
    "one is no tensor": lambda index: (torch.ones(2) if index == 0 else 1.0,),
    "one is a text": lambda index: (index if index == 0 else "two",),
    "one is a dict": lambda index: (torch.ones(1),) if index == 0 else {"a": 1},
    "one is a number": lambda index: (torch.ones(1),) if index == 0 else 3,
    "an object": lambda index: (object(),),
    "nothing": lambda index: (None, index),
    "sparse": lambda index: (torch.eye(2).to_sparse(),),
    "nested": lambda index: (torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]),),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("kind", UNFIT)
def test_what_torch_refuses_to_collate_is_refused_in_its_words(kind: str) -> None:
    samples = made(UNFIT[kind])
    with pytest.raises(Exception) as wanted:
        default_collate(samples)
    with pytest.raises(wanted.type) as caught:
        collated(samples)
    assert str(caught.value) == str(wanted.value)
