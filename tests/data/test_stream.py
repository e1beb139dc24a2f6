"""Streams: what is drawn, counted, and found again."""

import random
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
)

from treadle.data import Stream, make_loader
from treadle.data.per_sample_rng import draws_nothing
from treadle.errors import DataError

CPU = torch.device("cpu")
NUMBERS = TensorDataset(torch.arange(10))


def drawn(stream: Stream) -> list[list[int]]:
    return [batch[0].tolist() if isinstance(batch, (list, tuple)) else batch.tolist() for batch in stream.rest()]


def stream_of(source: Any, **kwargs: Any) -> Stream:
    stream = Stream(source, device=CPU, **kwargs)
    stream.begin(0)
    return stream


class Ready:
    """Batches without a length."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from torch.arange(10).split(4)


class Endless:
    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            yield torch.zeros(1)


class Streamed(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from NUMBERS


FOURS = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
SOURCES: dict[str, Callable[[], Any]] = {
    "loader": lambda: DataLoader(NUMBERS, batch_size=4),
    "loader with a worker": lambda: DataLoader(NUMBERS, batch_size=4, num_workers=1),
    "loader with a sampler": lambda: DataLoader(NUMBERS, batch_size=4, sampler=list(range(10))),
    "loader with batches of indices": lambda: DataLoader(NUMBERS, batch_sampler=FOURS),
    "loader with torch's batch sampler": lambda: DataLoader(
        NUMBERS, batch_sampler=BatchSampler(SequentialSampler(NUMBERS), 4, drop_last=False)
    ),
    "loader of an iterable": lambda: DataLoader(Streamed(), batch_size=4),
    "iterable": Ready,
    "list of batches": lambda: list(torch.arange(10).split(4)),
}
SIZED = [name for name in SOURCES if name not in ("loader of an iterable", "iterable")]


@pytest.mark.parametrize("name", list(SOURCES))
def test_every_source_gives_all_its_batches_and_counts_them(name: str) -> None:
    stream = stream_of(SOURCES[name]())
    assert drawn(stream) == FOURS
    assert (stream.drawn, stream.take_samples(), stream.take_samples()) == (3, 10, 0)
    assert not stream.has_next()
    stream.begin(1)
    assert drawn(stream) == FOURS


@pytest.mark.parametrize("name", list(SOURCES))
def test_windows_take_several_batches_and_the_last_takes_what_is_left(name: str) -> None:
    stream = stream_of(SOURCES[name]())
    assert stream.has_next()
    assert [len(stream.window(2)) for _ in range(3)] == [2, 1, 0]


@pytest.mark.parametrize("name", list(SOURCES))
@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_a_stream_is_entered_at_any_place(name: str, place: int) -> None:
    stream = stream_of(SOURCES[name]())
    if place:
        stream.window(place)
    state = stream.state_dict()
    other = stream_of(SOURCES[name]())
    other.load_state_dict(state)
    assert other.drawn == place
    assert drawn(other) == FOURS[place:]


@pytest.mark.parametrize("name", SIZED)
def test_the_length_of_a_sized_source_is_known(name: str) -> None:
    stream = Stream(SOURCES[name](), device=CPU)
    assert (stream.length, len(stream)) == (3, 3)


def test_a_source_without_a_length_says_so() -> None:
    stream = Stream(Ready(), device=CPU, name="evaluation")
    assert stream.length is None
    with pytest.raises(TypeError, match="the evaluation data has no known length"):
        len(stream)


def test_the_batch_size_and_the_data_set_are_those_of_the_loader() -> None:
    stream = Stream(DataLoader(NUMBERS, batch_size=4), device=CPU)
    assert (stream.batch_size, stream.dataset) == (4, NUMBERS)
    assert Stream(Ready(), device=CPU).batch_size is None
    assert Stream(DataLoader(Streamed(), batch_size=5), device=CPU).batch_size == 5


@pytest.mark.parametrize("name", list(SOURCES))
def test_a_limit_cuts_every_epoch(name: str) -> None:
    stream = stream_of(SOURCES[name](), limit=2)
    assert drawn(stream) == FOURS[:2]
    stream.begin(1)
    assert len(stream.window(5)) == 2
    assert not stream.has_next()


def test_a_limit_makes_an_endless_source_end() -> None:
    assert len(drawn(stream_of(Endless(), limit=7))) == 7


# Orders -------------------------------------------------------------------------------------------------------


def shuffled(seed: int = 0) -> Stream:
    return stream_of(make_loader(NUMBERS, shuffle=True, batch_size=4), seed=seed)


def test_the_trainers_own_shuffling_depends_on_seed_and_epoch_alone() -> None:
    torch.manual_seed(0)
    first = drawn(shuffled())
    torch.manual_seed(1)
    assert drawn(shuffled()) == first
    other, epoch = shuffled(seed=1), shuffled()
    epoch.begin(1)
    assert drawn(other) != first != drawn(epoch)


def test_drawing_touches_no_global_generator() -> None:
    before = torch.get_rng_state()
    drawn(shuffled())
    drawn(stream_of(DataLoader(NUMBERS, batch_size=4, num_workers=1)))
    assert torch.equal(torch.get_rng_state(), before)


def torch_shuffled() -> Stream:
    return stream_of(DataLoader(NUMBERS, batch_size=4, shuffle=True))


@pytest.mark.parametrize("make", [shuffled, torch_shuffled])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_shuffled_epoch_goes_on_in_the_same_order(make: Callable[[], Stream], place: int) -> None:
    torch.manual_seed(5)
    stream = make()
    head = [stream.window(1)[0][0].tolist() for _ in range(place + 1)]
    state = stream.state_dict()
    rest = drawn(stream)
    torch.rand(9)
    other = make()
    other.load_state_dict(state)
    before = torch.get_rng_state()
    assert drawn(other) == rest
    # What the run draws afterwards must not depend on the order having been drawn again.
    assert torch.equal(torch.get_rng_state(), before)
    assert sorted(index for batch in head + rest for index in batch) == list(range(10))


def test_the_next_epoch_of_a_foreign_sampler_is_drawn_anew() -> None:
    torch.manual_seed(5)
    stream = torch_shuffled()
    first = drawn(stream)
    stream.begin(1)
    assert drawn(stream) != first


def test_an_order_drawn_with_replacement_may_be_longer_than_the_data() -> None:
    sampler = RandomSampler(NUMBERS, replacement=True, num_samples=25)
    stream = stream_of(DataLoader(NUMBERS, batch_size=10, sampler=sampler))
    assert [len(batch) for batch in drawn(stream)] == [10, 10, 5]
    assert stream.length == 3


class ByName(Dataset[Any]):
    """A data set whose keys are no numbers, as torch allows."""

    names = {"ant": 0, "bee": 1, "cat": 2}

    def __getitem__(self, name: str) -> int:
        return self.names[name]

    def __len__(self) -> int:
        return 3


def test_keys_that_are_no_numbers_are_handed_to_the_data_set_as_they_are() -> None:
    stream = stream_of(DataLoader(ByName(), batch_size=2, sampler=["cat", "ant", "bee"]))
    assert drawn(stream) == [[2, 0], [1]]


class InBatches(Dataset[Any]):
    """A data set that is made to fetch many samples at once."""

    def __init__(self) -> None:
        self.requests: list[list[int]] = []

    def __getitems__(self, indices: list[int]) -> list[int]:
        self.requests.append(indices)
        return indices

    def __getitem__(self, index: int) -> int:
        raise AssertionError("one by one is a hundred times slower")

    def __len__(self) -> int:
        return 10


def test_a_data_set_that_fetches_whole_batches_is_asked_for_whole_batches() -> None:
    dataset = InBatches()
    assert drawn(stream_of(DataLoader(dataset, batch_size=4))) == FOURS
    assert dataset.requests == FOURS


class Jittered(TensorDataset):
    """An augmentation, written as users write it: by inheriting from a data set that has none."""

    def __getitem__(self, index: int) -> Any:
        return torch.rand(()), random.random(), index


def test_a_data_set_that_inherits_from_a_plain_one_may_draw_all_the_same() -> None:
    assert draws_nothing(NUMBERS)
    assert draws_nothing(Subset(NUMBERS, [1, 2]))
    assert draws_nothing([1, 2])
    assert not draws_nothing(Jittered(torch.arange(10)))
    assert not draws_nothing(Subset(Jittered(torch.arange(10)), [1, 2]))
    assert not draws_nothing(ByName())


@pytest.mark.parametrize("workers", [0, 1])
def test_augmentation_depends_on_seed_epoch_and_sample_and_not_on_who_fetches_it(workers: int) -> None:
    def values(stream: Stream) -> list[tuple[Any, ...]]:
        return [tuple(part.tolist()) for batch in stream.rest() for part in batch]

    class Augmented(Dataset[Any]):
        def __getitem__(self, index: int) -> Any:
            return torch.rand(()), random.random(), index

        def __len__(self) -> int:
            return 5

    reference = values(stream_of(DataLoader(Augmented(), batch_size=5), seed=3))
    torch.rand(3)
    assert values(stream_of(DataLoader(Augmented(), batch_size=5, num_workers=workers), seed=3)) == reference
    assert values(stream_of(DataLoader(Augmented(), batch_size=5, num_workers=workers), seed=4)) != reference


# Several ranks ------------------------------------------------------------------------------------------------


@settings(deadline=None, derandomize=True, database=None, max_examples=60)
@given(count=st.integers(0, 12), ranks=st.integers(1, 4), evaluation=st.booleans())
def test_batches_of_unknown_length_are_dealt_to_the_ranks_in_turn(count: int, ranks: int, evaluation: bool) -> None:
    batches = [torch.tensor([number]) for number in range(count)]
    got: list[list[int]] = []
    for rank in range(ranks):
        stream = stream_of(iter(batches), rank=rank, size=ranks, evaluation=evaluation)
        own = []
        while stream.has_next():
            (batch,) = stream.window(1)
            if stream.padded is None:
                own.append(int(batch))
        assert evaluation or stream.drawn == -(-count // ranks)
        got.append(own)
    assert sorted(number for own in got for number in own) == list(range(count))
    assert [own[0] for own in got if own] == list(range(min(ranks, count)))


def test_a_ready_batch_that_only_keeps_a_rank_in_step_comes_behind_those_of_its_window() -> None:
    stream = stream_of(list(torch.arange(3).split(1)), rank=1, size=2)
    assert [batch.tolist() for batch in stream.window(2)] == [[1], [2]]
    assert stream.padded == 1


def test_a_batch_that_only_keeps_a_rank_in_step_is_marked_at_its_place_in_the_window() -> None:
    enough = stream_of(DataLoader(NUMBERS, batch_size=4), rank=2, size=3)
    assert [len(batch[0]) for batch in enough.window(5)] == [3]
    assert enough.padded is None
    late = stream_of(DataLoader(NUMBERS, batch_size=1), rank=10, size=11)
    assert len(late.window(2)) == 1
    assert late.padded == 0


# Windows taken again ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(SOURCES))
def test_the_last_window_can_be_taken_again_even_after_a_resume(name: str) -> None:
    stream = stream_of(SOURCES[name]())
    stream.keep_last = True
    stream.window(1)
    second = stream.window(1)
    assert stream.last_window() is second
    other = stream_of(SOURCES[name]())
    other.keep_last = True
    other.load_state_dict(stream.state_dict())
    assert torch.equal(torch.as_tensor(other.last_window()[0][0]), torch.as_tensor(second[0][0]))
    assert other.drawn == 2
    assert drawn(other) == FOURS[2:]


# Entered far from its start -----------------------------------------------------------------------------------


class Counting(Dataset[Any]):
    """As many samples as one likes; says which were asked for."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        self.asked.append(index)
        return index


def test_a_map_style_epoch_that_is_entered_far_in_fetches_only_what_is_drawn() -> None:
    data = Counting(3_000_000)
    stream = stream_of(make_loader(data, shuffle=True, batch_size=2), seed=5)
    stream.begin(0, drawn=1_000_000)
    batch = stream.window(1)[0]
    assert len(data.asked) == 2
    assert batch.tolist() == data.asked
    assert (stream.drawn, stream.epoch) == (1_000_001, 0)


def test_a_source_without_a_state_is_read_again_up_to_its_place_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    stream = stream_of(Ready())
    stream.window(2)
    other = stream_of(Ready())
    other.load_state_dict(stream.state_dict())
    with caplog.at_level("INFO", logger="treadle"):
        assert drawn(other) == FOURS[2:]
    assert caplog.messages == ["the train data cannot be entered in the middle: 2 batches are read again"]


# Sources with a state of their own ----------------------------------------------------------------------------


class Stateful:
    """A source that knows its own place."""

    def __init__(self) -> None:
        self.place = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        while self.place < 5:
            self.place += 1
            yield torch.tensor([self.place])
        self.place = 0

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = state["place"]


@pytest.mark.parametrize("peek", [False, True])
def test_a_source_with_a_state_is_brought_to_its_place_by_it(peek: bool) -> None:
    stream = stream_of(Stateful())
    stream.window(2)
    if peek:
        assert stream.has_next()
    other = stream_of(Stateful())
    other.load_state_dict(stream.state_dict())
    assert drawn(other) == [[3], [4], [5]]


class Reordered(Stateful, IterableDataset[Any]):
    """Five samples in an order that depends on how often they were gone through."""

    def __init__(self) -> None:
        super().__init__()
        self.passes = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        for sample in super().__iter__():
            yield sample + 10 * self.passes
        self.passes += 1

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "passes": self.passes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.passes = state["passes"]


RESTARTING: dict[str, Callable[[], Any]] = {
    "ready batches": Reordered,
    "a loader with a short last batch": lambda: DataLoader(Reordered(), batch_size=2),
    "a loader with whole batches": lambda: DataLoader(Reordered(), batch_size=5),
    "a loader without its short last batch": lambda: DataLoader(Reordered(), batch_size=2, drop_last=True),
    "a loader that makes no batches": lambda: DataLoader(Reordered(), batch_size=None),
}


def two_epochs(stream: Stream, size: int) -> Iterator[tuple[int, list[int]]]:
    """Draw windows up to the end of the second epoch; the first may have begun."""
    while stream.epoch < 2:
        while stream.has_next():
            yield stream.epoch, torch.cat(stream.window(size)).flatten().tolist()
        stream.begin(stream.epoch + 1)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("name", list(RESTARTING))
def test_a_source_that_begins_anew_at_its_end_is_not_read_twice_by_a_resumed_run(name: str, size: int) -> None:
    whole = list(two_epochs(stream_of(RESTARTING[name]()), size))
    for cut in range(len(whole)):
        stream, other = stream_of(RESTARTING[name]()), stream_of(RESTARTING[name]())
        before = list(islice(two_epochs(stream, size), cut))
        other.load_state_dict(stream.state_dict())
        assert before + list(two_epochs(other, size)) == whole


@pytest.mark.parametrize("name", list(RESTARTING))
def test_an_endless_stream_over_a_source_with_a_state_counts_its_epochs_after_a_resume(name: str) -> None:
    def draw(stream: Stream, count: int) -> list[Any]:
        return [(torch.cat(stream.window(2)).flatten().tolist(), stream.epoch, stream.drawn) for _ in range(count)]

    whole = draw(stream_of(RESTARTING[name](), endless=True), 8)
    for cut in range(8):
        stream, other = (stream_of(RESTARTING[name](), endless=True) for _ in range(2))
        before = draw(stream, cut)
        other.load_state_dict(stream.state_dict())
        assert before + draw(other, 8 - cut) == whole


# Making loaders -----------------------------------------------------------------------------------------------


def test_an_empty_data_set_is_refused_by_name() -> None:
    with pytest.raises(DataError, match="the data set TensorDataset is empty; give it at least one sample"):
        make_loader(TensorDataset(torch.zeros(0)), shuffle=True)


def test_a_sampler_of_the_users_is_kept() -> None:
    sampler = SequentialSampler(NUMBERS)
    assert make_loader(NUMBERS, shuffle=True, sampler=sampler).sampler is sampler
