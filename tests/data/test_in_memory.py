"""Data in memory: the batches of a `TensorDataset`, gathered where the data lives."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset, WeightedRandomSampler

from tests.guards.no_sync import no_sync
from tests.interrupting import check, make_trainer, plain_network, samples, simply
from treadle.data import InMemoryDataset, Stream, fold_seed, make_loader
from treadle.data.batch import Batch
from treadle.errors import DataError

CPU = torch.device("cpu")
INPUTS, TARGETS = torch.arange(22.0).reshape(11, 2), torch.arange(11)


def stream_of(data: Any, *, batch_size: int = 4, shuffle: bool = True, **kwargs: Any) -> Stream:
    loader = make_loader(data, shuffle=shuffle, batch_size=batch_size, drop_last=kwargs.pop("drop_last", False))
    return Stream(loader, device=CPU, seed=kwargs.pop("seed", 5), **kwargs)


def drawn(stream: Stream, *epochs: int) -> list[Any]:
    batches = []
    for epoch in epochs or (0, 1):
        stream.begin(epoch)
        batches += list(stream.rest())
    return batches


def assert_same(left: list[Any], right: list[Any]) -> None:
    assert len(left) == len(right)
    for one, other in zip(left, right, strict=True):
        assert type(one) is type(other)
        for first, second in zip(one, other, strict=True):
            assert first.dtype == second.dtype
            assert torch.equal(first, second)


# The same batches as from any other data -----------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize(("rank", "size"), [(0, 1), (0, 3), (2, 3)])
@pytest.mark.parametrize("evaluation", [True, False])
def test_batches_are_those_of_a_tensor_data_set(
    shuffle: bool, drop_last: bool, rank: int, size: int, evaluation: bool
) -> None:
    def batches(data: Any) -> tuple[list[Any], int | None]:
        stream = stream_of(
            data, shuffle=shuffle, drop_last=drop_last, rank=rank, size=size, evaluation=evaluation, batch_size=2
        )
        return drawn(stream), stream.padded

    gathered, expected = batches(InMemoryDataset(INPUTS, TARGETS)), batches(TensorDataset(INPUTS, TARGETS))
    assert_same(gathered[0], expected[0])
    assert gathered[1] == expected[1]


PARTS: dict[str, Callable[[Any], Any]] = {
    "part": lambda data: Subset(data, [9, 1, 4, 4, 0, 10]),
    "part of a part": lambda data: Subset(Subset(data, range(2, 10)), torch.tensor([7, 0, 3])),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("part", list(PARTS))
@pytest.mark.parametrize("shuffle", [True, False])
def test_a_part_of_data_in_memory_is_gathered_too(part: str, shuffle: bool) -> None:
    cut = PARTS[part]
    expected = drawn(stream_of(cut(TensorDataset(INPUTS, TARGETS)), shuffle=shuffle))
    stream = stream_of(cut(InMemoryDataset(INPUTS, TARGETS)), shuffle=shuffle)
    assert_same(drawn(stream), expected)
    assert stream.in_memory is not None


LOADERS: dict[str, Callable[[Any], Any]] = {
    "torch's shuffled": lambda data: DataLoader(data, 4, shuffle=True, generator=torch.Generator().manual_seed(3)),
    "a sampler": lambda data: DataLoader(data, 4, sampler=[3, 3, 10, 0, 5]),
    "a weighted sampler": lambda data: DataLoader(
        data, 4, sampler=WeightedRandomSampler([1.0] * 11, 20, generator=torch.Generator().manual_seed(3))
    ),
    "a list of batches": lambda data: DataLoader(data, batch_sampler=[[4, 0], [9], [1, 2, 3]]),
    "batches from a sampler": lambda data: DataLoader(data, batch_size=None, sampler=[[4, 0], [9], [1, 2, 3]]),
}


@pytest.mark.parametrize("loader", list(LOADERS))
@pytest.mark.parametrize(("rank", "size"), [(0, 1), (1, 2)])
def test_a_ready_loader_with_any_sampler_is_gathered_in_its_order(loader: str, rank: int, size: int) -> None:
    def batches(data: Any) -> list[Any]:
        return drawn(Stream(LOADERS[loader](data), device=CPU, seed=5, rank=rank, size=size))

    assert_same(batches(InMemoryDataset(INPUTS, TARGETS)), batches(TensorDataset(INPUTS, TARGETS)))


def test_columns_in_a_dict_make_batches_that_are_dicts() -> None:
    data = InMemoryDataset({"ids": np.arange(6).reshape(3, 2), "labels": torch.tensor([0, 1, 0])})
    (batch,) = drawn(stream_of(data, shuffle=False), 0)
    assert type(batch) is dict
    assert {name: value.tolist() for name, value in batch.items()} == {
        "ids": [[0, 1], [2, 3], [4, 5]],
        "labels": [0, 1, 0],
    }
    assert {name: value.tolist() for name, value in data[1].items()} == {"ids": [2, 3], "labels": 1}


def test_an_array_that_cannot_be_written_to_is_copied() -> None:
    array = np.arange(4)
    array.flags.writeable = False
    assert InMemoryDataset(array).tensors[0].tolist() == [0, 1, 2, 3]


def test_a_batch_may_be_changed_without_changing_the_data() -> None:
    data = InMemoryDataset(INPUTS.clone(), TARGETS)
    for batch in drawn(stream_of(data)):
        batch[0].zero_()
    assert torch.equal(data.tensors[0], INPUTS)


# Places --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_an_epoch_is_entered_anywhere(place: int) -> None:
    whole = drawn(stream_of(InMemoryDataset(INPUTS, TARGETS)), 1)
    stream = stream_of(InMemoryDataset(INPUTS, TARGETS))
    stream.begin(1, place)
    assert_same(list(stream.rest()), whole[place:])


def test_a_state_brings_another_stream_to_the_same_place_and_seed() -> None:
    stream = stream_of(InMemoryDataset(INPUTS, TARGETS, transform=noisy))
    stream.begin(2)
    stream.window(1)
    other = stream_of(InMemoryDataset(INPUTS, TARGETS, transform=noisy), seed=99)
    other.load_state_dict(stream.state_dict())
    assert_same(list(other.rest()), list(stream.rest()))


def test_the_order_of_an_epoch_is_written_over_that_of_the_last_where_it_lies() -> None:
    stream = stream_of(InMemoryDataset(INPUTS, TARGETS))
    gathered = stream.in_memory
    assert gathered is not None
    orders = []
    for epoch in (0, 1):
        stream.begin(epoch)
        stream.window(1)
        orders.append((gathered.permutation.data_ptr(), gathered.permutation.tolist()))
    assert orders[0][0] == orders[1][0]
    assert orders[0][1] != orders[1][1]
    assert sorted(orders[0][1]) == sorted(orders[1][1]) == list(range(11))
    assert gathered.permutation.dtype == torch.int64


@pytest.mark.parametrize("transform", [False, True])
@pytest.mark.parametrize(("rank", "size"), [(0, 1), (1, 2)])
def test_a_step_that_gathers_by_a_cursor_has_the_ordinary_batches_and_reads_nothing(
    transform: bool, rank: int, size: int
) -> None:
    def make() -> Stream:
        data = InMemoryDataset(INPUTS, TARGETS, transform=noisy if transform else None)
        return stream_of(data, rank=rank, size=size, batch_size=3)

    expected, stream = drawn(make(), 1), make()
    gathered = stream.in_memory
    assert gathered is not None
    stream.begin(1)
    batches = []
    while places := stream.places(1):
        for start, count in places:
            gathered.seed_for(stream.drawn - 1)
            cursor = torch.tensor(start)
            with no_sync():
                batches.append(gathered.batch_at(cursor, count))
    assert_same(batches, expected)
    assert not stream.has_next()


def test_places_are_counted_as_drawn_and_batches_go_on_behind_them() -> None:
    whole = drawn(stream_of(InMemoryDataset(INPUTS, TARGETS), batch_size=2), 0)
    stream = stream_of(InMemoryDataset(INPUTS, TARGETS), batch_size=2)
    stream.begin(0)
    assert_same(stream.window(1), whole[:1])
    assert stream.places(3) == [(2, 2), (4, 2), (6, 2)]
    assert stream.drawn == 4
    assert_same(stream.window(1), whole[4:5])
    assert stream.places(3) == [(10, 1)]
    assert stream.places(3) == []
    assert stream.drawn == len(stream)


def test_places_end_at_the_limit() -> None:
    stream = stream_of(InMemoryDataset(INPUTS, TARGETS), batch_size=2, limit=2)
    stream.begin(0)
    assert stream.places(9) == [(0, 2), (2, 2)]


def test_there_are_no_places_where_a_window_goes_on_into_the_next_epoch() -> None:
    stream = stream_of(InMemoryDataset(INPUTS, TARGETS), batch_size=4, endless=True)
    stream.begin(0)
    assert stream.places(2) == [(0, 4), (4, 4)]
    assert stream.places(2) is None
    assert stream.drawn == 2
    assert [len(batch[1]) for batch in stream.window(2)] == [3, 4]


def test_there_are_no_places_in_other_data() -> None:
    stream = stream_of(TensorDataset(INPUTS, TARGETS))
    stream.begin(0)
    assert stream.in_memory is None
    assert stream.places(1) is None


def test_a_batch_that_only_keeps_a_rank_in_step_is_marked_among_places_too() -> None:
    stream = stream_of(InMemoryDataset(INPUTS, TARGETS), batch_size=1, rank=9, size=10)
    stream.begin(0)
    assert stream.places(1) == [(9, 1)]
    assert stream.padded is None
    assert stream.places(1) == [(10, 1)]
    assert stream.padded == 0


# Transforms ----------------------------------------------------------------------------------------------------


def noisy(batch: Batch, generator: torch.Generator) -> Batch:
    inputs, targets = batch
    return [inputs + torch.rand(inputs.shape, generator=generator, device=inputs.device), targets]


def test_a_transform_depends_on_seed_epoch_and_batch_and_on_nothing_else() -> None:
    first = drawn(stream_of(InMemoryDataset(INPUTS, TARGETS, transform=noisy)), 0)
    torch.rand(3)
    assert_same(drawn(stream_of(InMemoryDataset(INPUTS, TARGETS, transform=noisy)), 0), first)
    plain = drawn(stream_of(InMemoryDataset(INPUTS, TARGETS)), 0)
    noise = [one[0] - other[0] for one, other in zip(first, plain, strict=True)]
    generator = torch.Generator().manual_seed(fold_seed(5, 3, 0, 1, 0))
    torch.testing.assert_close(noise[1], torch.rand(4, 2, generator=generator), rtol=0, atol=1e-5)
    others = [
        drawn(stream_of(InMemoryDataset(INPUTS, TARGETS, transform=noisy), seed=6, shuffle=False), 0),
        drawn(stream_of(InMemoryDataset(INPUTS, TARGETS, transform=noisy), shuffle=False), 1),
        drawn(stream_of(InMemoryDataset(INPUTS, TARGETS, transform=noisy), shuffle=False, rank=1, size=2), 0),
    ]
    draws = {round(float((batch[0] - INPUTS[batch[1]])[0, 0]), 4) for batches in [first, *others] for batch in batches}
    assert len(draws) == sum(map(len, [first, *others]))


def test_a_transform_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    drawn(stream_of(InMemoryDataset(INPUTS, TARGETS, transform=noisy)))
    assert torch.equal(torch.get_rng_state(), before)


# Trainers ------------------------------------------------------------------------------------------------------


def in_memory(count: int = 24, **kwargs: Any) -> InMemoryDataset:
    return InMemoryDataset(*samples(count).tensors, **kwargs)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_trainer_ends_where_it_ends_with_a_tensor_data_set(accumulation: int) -> None:
    ends = []
    for data in (samples(19), in_memory(19)):
        trainer = make_trainer(None)
        trainer.train(data, 3, eval_dataset=data, gradient_accumulation_steps=accumulation)
        ends.append((*trainer.model.parameters(), trainer.run_history.get_metric_values("eval_loss_epoch")))
    assert all(torch.equal(torch.as_tensor(one), torch.as_tensor(other)) for one, other in zip(*ends, strict=True))


@pytest.mark.parametrize("transform", [None, noisy])
def test_a_run_on_data_in_memory_resumes_exactly(tmp_path: Path, transform: Any) -> None:
    check(tmp_path, make_trainer, partial(simply, data=in_memory(transform=transform), eval_dataset=in_memory(8)))


def test_a_model_predicts_on_data_in_memory() -> None:
    trainer = make_trainer(None, build=plain_network)
    expected = trainer.predict(samples(5))
    assert torch.equal(trainer.predict(in_memory(5)), expected)


class Pairs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs)
        return outputs


def test_a_dict_of_tensors_or_arrays_is_data_for_a_trainer() -> None:
    inputs, targets = samples().tensors
    ends = []
    for data in (samples(), {"inputs": inputs, "labels": targets}, {"inputs": inputs.numpy(), "labels": targets}):
        torch.manual_seed(0)
        trainer = make_trainer(None, build=Pairs)
        trainer.model.layer.load_state_dict(plain_network().state_dict())
        trainer.train(data, 2, eval_dataset=data)
        ends.append([value.detach() for value in trainer.model.parameters()])
    assert all(torch.equal(one, other) for end in ends[1:] for one, other in zip(end, ends[0], strict=True))


# Devices and mistakes ------------------------------------------------------------------------------------------


def test_data_without_a_device_goes_where_the_trainer_is() -> None:
    data = InMemoryDataset(INPUTS)
    data.bring_to(torch.device("meta"))
    assert data.device == torch.device("meta")


def test_data_on_the_host_stays_there() -> None:
    data = InMemoryDataset(INPUTS, device="cpu")
    data.bring_to(torch.device("meta"))
    assert data.device == CPU


def test_data_on_another_device_than_the_trainer_is_refused() -> None:
    data = InMemoryDataset(INPUTS, device="meta")
    data.bring_to(torch.device("meta"))
    with pytest.raises(DataError) as caught:
        data.bring_to(CPU)
    assert str(caught.value) == (
        "InMemoryDataset lives on meta and the trainer is on cpu; leave device= out, and the data goes where the "
        "trainer is"
    )


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: InMemoryDataset(), "InMemoryDataset has no columns; give it tensors, arrays or a dict of them"),
        (lambda: InMemoryDataset({}), "InMemoryDataset has no columns; give it tensors, arrays or a dict of them"),
        (
            lambda: InMemoryDataset(INPUTS, [1, 2]),
            "InMemoryDataset: column 1 is a list; give a tensor or an array with a row for each sample",
        ),
        (
            lambda: InMemoryDataset({"ids": torch.tensor(3)}),
            "InMemoryDataset: column 'ids' is a single number; give a tensor or an array with a row for each sample",
        ),
        (
            lambda: InMemoryDataset({"ids": INPUTS, "labels": TARGETS[:3]}),
            "InMemoryDataset: the columns have unequal numbers of rows: 'ids' has 11, 'labels' has 3; cut them to one "
            "length",
        ),
        (
            lambda: InMemoryDataset(INPUTS, transform=3),  # type: ignore[arg-type]
            "InMemoryDataset: transform=3 cannot be called; pass f(batch, generator)",
        ),
        (
            lambda: Stream(DataLoader(InMemoryDataset(INPUTS), num_workers=2), device=CPU),
            "an InMemoryDataset is gathered where it lives, and num_workers=2 cannot help there; leave them out",
        ),
        (
            lambda: Stream(DataLoader(InMemoryDataset(INPUTS), collate_fn=list), device=CPU),
            "an InMemoryDataset joins its rows itself, and a collate_fn would not be called; use transform=",
        ),
        (
            lambda: drawn(Stream(DataLoader(InMemoryDataset(INPUTS), batch_size=None), device=CPU)),
            "InMemoryDataset: its sampler gives something else than whole numbers from 0, or samples one by one; give "
            "the loader a batch_size and a sampler of indices",
        ),
        (
            lambda: drawn(Stream(DataLoader(InMemoryDataset(INPUTS), sampler=[-1]), device=CPU)),
            "InMemoryDataset: its sampler gives something else than whole numbers from 0, or samples one by one; give "
            "the loader a batch_size and a sampler of indices",
        ),
        (
            lambda: drawn(stream_of(Subset(InMemoryDataset(INPUTS), [-1]))),
            "InMemoryDataset: a Subset of it has indices that are no whole numbers from 0",
        ),
        (
            lambda: stream_of(ConcatDataset([InMemoryDataset(INPUTS), TensorDataset(INPUTS)])),
            "an InMemoryDataset cannot be a part of a ConcatDataset; join the tensors with torch.cat first",
        ),
    ],
)
def test_a_mistake_is_named_with_what_to_do(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(DataError) as caught:
        make()
    assert str(caught.value) == text


def test_an_evaluation_on_a_rank_without_a_batch_gathers_nothing() -> None:
    loader: DataLoader[Any] = DataLoader(InMemoryDataset(INPUTS), batch_sampler=[[0, 1]])
    stream = Stream(loader, device=CPU, rank=1, size=2, evaluation=True)
    assert drawn(stream, 0) == []


class Other(Dataset[Any]):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return torch.zeros(2), torch.zeros(1)


@pytest.mark.parametrize("data", [in_memory(), samples(), {"inputs": INPUTS}, np.zeros((3, 2)), Subset(samples(), [0])])
def test_data_that_is_gathered_gets_no_workers_by_default(data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.trainer.default_workers", lambda device: 8)
    trainer = make_trainer(None)
    trainer.train_dataset = data
    assert trainer.get_default_train_dl_kwargs(4)["num_workers"] == 0
    trainer.train_dataset = Other()
    assert trainer.get_default_train_dl_kwargs(4)["num_workers"] == 8
    trainer.train_dataset, trainer.collate_fn = data, list
    assert trainer.get_default_train_dl_kwargs(4)["num_workers"] == 8
