"""Going through data that a run is drawing from: every pass is a fresh one, and the run does not notice."""

import random
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, Sampler, TensorDataset

from treadle.data import InMemoryDataset, RunPass, Stream, make_loader
from treadle.errors import DataError

CPU = torch.device("cpu")
COUNT = 11
NUMBERS = TensorDataset(torch.arange(COUNT))


class Augmented(Dataset[Any]):
    """Samples with noise from each of the global generators."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, random.random() + float(np.random.rand()) + float(torch.rand(()))


class Noisy(IterableDataset[Any]):
    """The same as a stream."""

    def __iter__(self) -> Iterator[Any]:
        yield from (Augmented()[index] for index in range(COUNT))


class OwnRandomness:
    """Batches in an order from a generator that nobody knows of."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng(4)
        self.passes = 0

    def __iter__(self) -> Iterator[Any]:
        self.passes += 1
        yield from torch.from_numpy(self.generator.permutation(COUNT)).split(3)


class HiddenSampler(Sampler[int]):
    def __init__(self) -> None:
        self.generator = random.Random(5)

    def __len__(self) -> int:
        return COUNT

    def __iter__(self) -> Iterator[int]:
        return iter(self.generator.sample(range(COUNT), COUNT))


class Placed(IterableDataset[Any]):
    """Knows its place, goes on from there, and has another order in each pass."""

    def __init__(self) -> None:
        self.place = self.passes = 0

    def __iter__(self) -> Iterator[int]:
        while self.place < COUNT:
            self.place += 1
            yield (self.place + self.passes) % COUNT
        self.place, self.passes = 0, self.passes + 1

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place, "passes": self.passes}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place, self.passes = state["place"], state["passes"]


def streamed() -> Any:
    datasets = pytest.importorskip("datasets")
    return datasets.Dataset.from_dict({"x": list(range(COUNT))}).to_iterable_dataset(num_shards=2)


def shifted(batch: Any, generator: torch.Generator) -> Any:
    return [batch[0], torch.rand(len(batch[0]), generator=generator)]


SOURCES: dict[str, Callable[[], Any]] = {
    "the trainer's loader": lambda: make_loader(NUMBERS, shuffle=True, batch_size=3),
    "augmentation": lambda: make_loader(Augmented(), shuffle=True, batch_size=3),
    "in the order of the data": lambda: DataLoader(NUMBERS, batch_size=3),
    "data in memory": lambda: make_loader(InMemoryDataset(torch.arange(COUNT)), shuffle=True, batch_size=3),
    "data in memory with a transform": lambda: make_loader(
        InMemoryDataset(torch.arange(COUNT), transform=shifted), shuffle=True, batch_size=3
    ),
    "a loader that shuffles": lambda: DataLoader(NUMBERS, batch_size=3, shuffle=True),
    "a generator of its own": lambda: DataLoader(
        NUMBERS, batch_size=3, shuffle=True, generator=torch.Generator().manual_seed(2)
    ),
    "a sampler with hidden randomness": lambda: DataLoader(NUMBERS, batch_size=3, sampler=HiddenSampler()),
    "batches of a sampler's": lambda: DataLoader(NUMBERS, batch_sampler=BatchSampler(HiddenSampler(), 3, False)),
    "an iterable": lambda: list(torch.arange(COUNT).split(3)),
    "an iterable with randomness of its own": OwnRandomness,
    "a loader of an iterable": lambda: DataLoader(Noisy(), batch_size=3),
    "an iterable that knows its place": lambda: DataLoader(Placed(), batch_size=3),
    "a stream of Hugging Face's": lambda: DataLoader(streamed(), batch_size=3),
    "one that is shuffled": lambda: DataLoader(streamed().shuffle(seed=1, buffer_size=4), batch_size=3),
}
WITH_WORKERS: dict[str, Callable[[], Any]] = {
    "workers": lambda: make_loader(Augmented(), shuffle=True, batch_size=3, num_workers=1),
    "workers that stay": lambda: make_loader(
        Augmented(), shuffle=True, batch_size=3, num_workers=1, persistent_workers=True
    ),
    "workers of an iterable that stay": lambda: DataLoader(
        Noisy(), batch_size=3, num_workers=1, persistent_workers=True
    ),
}


def plain(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {name: plain(value) for name, value in batch.items()}
    return [plain(part) for part in batch] if isinstance(batch, (list, tuple)) else batch.tolist()


def numbers(batch: Any) -> list[int]:
    found: Any = plain(batch)
    found = found["x"] if isinstance(found, dict) else found
    return found[0] if isinstance(found[0], list) else found


def generators() -> list[Any]:
    return [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]


def two_epochs(stream: Stream, look: Callable[[Stream], None]) -> list[Any]:
    """Draw two epochs in windows of two, with a look at the data before, within and after each."""
    random.seed(7), np.random.seed(7), torch.manual_seed(7)
    drawn: list[Any] = []
    look(stream)
    for epoch in range(2):
        stream.begin(epoch)
        look(stream)
        while stream.has_next():
            look(stream)
            drawn += map(plain, stream.window(2))
            drawn.append(float(torch.rand(())))
            look(stream)
    drawn.append(generators())
    return drawn


def do_nothing(stream: Stream) -> None:
    """Look at nothing."""


def go_through(stream: Stream) -> None:
    """Go through all of the data, and look at the first batch of another pass."""
    place, before = (stream.epoch, stream.drawn, stream.samples, len(stream._peeked)), generators()
    one = [plain(batch) for batch in stream]
    assert sorted(number for batch in stream for number in numbers(batch)) == list(range(COUNT))
    assert [plain(batch) for batch in stream] == one
    assert plain(next(iter(stream))) == one[0]
    assert (stream.epoch, stream.drawn, stream.samples, len(stream._peeked)) == place
    assert generators() == before


@pytest.mark.parametrize("name", list(SOURCES))
def test_every_pass_is_a_fresh_one_and_the_run_goes_on_as_without_it(name: str) -> None:
    expected = two_epochs(Stream(SOURCES[name](), device=CPU, seed=3), do_nothing)
    assert two_epochs(Stream(SOURCES[name](), device=CPU, seed=3), go_through) == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", list(WITH_WORKERS))
def test_a_pass_with_workers_leaves_those_of_the_run_alone(name: str) -> None:
    streams = [Stream(WITH_WORKERS[name](), device=CPU, seed=3) for _ in range(2)]
    assert two_epochs(streams[0], do_nothing) == two_epochs(streams[1], look_once)
    for stream in streams:
        stream.close()


def look_once(stream: Stream) -> None:
    if stream.drawn in (0, 2) and stream.epoch == 0:
        assert sorted(number for batch in stream for number in numbers(batch)) == list(range(COUNT))


@pytest.mark.parametrize("name", [name for name in SOURCES if "hidden" not in name and "sampler" not in name])
def test_a_look_at_the_data_leaves_the_place_that_is_saved(name: str) -> None:
    expected = two_epochs(Stream(SOURCES[name](), device=CPU, seed=3), do_nothing)
    stream, other = (Stream(SOURCES[name](), device=CPU, seed=3) for _ in range(2))
    random.seed(7), np.random.seed(7), torch.manual_seed(7)
    stream.begin(0)
    drawn = [plain(batch) for batch in stream.window(2)]
    go_through(stream)
    other.load_state_dict(stream.state_dict())
    go_through(other)
    drawn += [plain(batch) for batch in other.window(2)]
    assert drawn == [entry for entry in expected if not isinstance(entry, float)][:4]


@pytest.mark.parametrize("size", [2, 3])
def test_the_passes_of_several_ranks_have_every_sample_once(size: int) -> None:
    for source in (lambda: DataLoader(NUMBERS, batch_size=2, shuffle=True), lambda: list(torch.arange(COUNT).split(1))):
        found = []
        for rank in range(size):
            torch.manual_seed(rank)
            stream = Stream(source(), device=CPU, seed=3, rank=rank, size=size, evaluation=True)
            found += [number for batch in stream for number in numbers(batch)]
        assert sorted(found) == list(range(COUNT))


def test_a_pass_over_an_endless_stream_ends() -> None:
    stream = Stream(DataLoader(NUMBERS, batch_size=3), device=CPU, endless=True)
    stream.window(6)
    assert [numbers(batch) for batch in stream] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10]]
    assert (stream.epoch, stream.drawn) == (1, 2)


def test_an_iterator_cannot_be_gone_through_beside_the_run() -> None:
    for source in (iter(torch.arange(4).split(2)), DataLoader(OneShot(), batch_size=2)):
        stream = Stream(source, device=CPU)
        with pytest.raises(DataError, match=r"the train data is an iterator, a .*, which can be read once, and"):
            iter(stream)
        assert len(stream.window(1)) == 1


class OneShot(IterableDataset[Any]):
    def __init__(self) -> None:
        self.left = iter(range(4))

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        return next(self.left)


def test_an_evaluation_of_ones_own_may_read_an_iterator_once() -> None:
    stream = Stream(iter(torch.arange(4).split(2)), device=CPU, evaluation=True, name="evaluation")
    assert [numbers(batch) for batch in stream] == [[0, 1], [2, 3]]
    with pytest.raises(DataError, match="the evaluation data is an iterator that has been read; pass what begins anew"):
        list(stream)


class Uncopied(Placed):
    def __init__(self) -> None:
        super().__init__()
        self.open = (number for number in range(3))


def test_a_source_with_a_place_that_cannot_be_copied_is_not_gone_through_beside_the_run() -> None:
    stream = Stream(DataLoader(Uncopied(), batch_size=2), device=CPU)
    with pytest.raises(
        DataError, match="the train data, a Uncopied, keeps its place and cannot be copied, so it cannot"
    ):
        iter(stream)


# What a loop of the user's is handed --------------------------------------------------------------------------


def run_pass(source: Any) -> tuple[Stream, RunPass]:
    stream = Stream(source, device=CPU, seed=3)
    stream.begin(0)
    return stream, RunPass(stream)


def test_a_loop_of_ones_own_draws_the_runs_batches_and_its_further_passes_have_orders_of_their_own() -> None:
    stream, data = run_pass(SOURCES["the trainer's loader"]())
    expected = [numbers(batch) for batch in stream]
    first = [numbers(batch) for batch in data]
    assert (first, stream.drawn, stream.take_samples()) == (expected, 4, COUNT)
    second = [numbers(batch) for batch in data]
    assert sorted(chain(*second)) == sorted(chain(*first)) == list(range(COUNT))
    assert (second != first, stream.drawn, stream.epoch, stream.take_samples()) == (True, 4, 0, COUNT)
    stream.begin(0)
    assert [numbers(batch) for batch in data] != first  # a third pass, until the next epoch hands out another
    stream.begin(0)
    assert [numbers(batch) for batch in stream.rest()] == first


@pytest.mark.parametrize("name", list(SOURCES))
def test_a_pass_that_is_given_up_is_followed_by_a_whole_one(name: str) -> None:
    _, data = run_pass(SOURCES[name]())
    next(iter(data))
    assert sorted(number for batch in data for number in numbers(batch)) == list(range(COUNT))


@pytest.mark.parametrize("name", list(SOURCES))
def test_a_pass_within_a_pass_leaves_it_alone(name: str) -> None:
    stream, data = run_pass(SOURCES[name]())
    seen = []
    for batch in data:
        seen += numbers(batch)
        assert sorted(number for inner in data for number in numbers(inner)) == list(range(COUNT))
    assert sorted(seen) == list(range(COUNT))
    assert stream.drawn == 4
    assert stream.take_samples() == COUNT * 5


def test_what_a_loop_is_handed_is_the_stream_in_all_else() -> None:
    stream, data = run_pass(SOURCES["the trainer's loader"]())
    assert (len(data), data.batch_size, data.dataset) == (4, 3, NUMBERS)
    data.limit = 2
    assert (stream.limit, len(list(data))) == (2, 2)
