"""Batches sent ahead: their order, how many, whose turn an error is; and the memory they go through."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from treadle.data import InMemoryDataset, Stream, make_loader
from treadle.data import prefetch as prefetching
from treadle.data.prefetch import (
    SMALL,
    DevicePrefetcher,
    HostBuffers,
    PinnedCopies,
    Sent,
    is_plain_tensor,
    prefetch_depth,
)
from treadle.errors import ConfigError

CUDA, CPU = torch.device("cuda"), torch.device("cpu")


class Noted:
    """Brings batches nowhere, and takes note of what is asked of it."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def send(self, batch: Any) -> Any:
        self.events.append(f"send {batch}")
        return batch

    def receive(self, sent: Any) -> Any:
        self.events.append(f"receive {sent}")
        return sent


def prefetcher(depth: int) -> tuple[DevicePrefetcher, Noted]:
    copies = Noted()
    return DevicePrefetcher(CUDA, depth, copies), copies


def test_the_next_batch_is_on_its_way_while_one_is_in_use() -> None:
    ahead, copies = prefetcher(1)
    batches = ahead.over(iter("abc"))
    assert next(batches) == "a"
    assert copies.events == ["send a", "send b", "receive a"]
    assert next(batches) == "b"
    assert copies.events[3:] == ["send c", "receive b"]
    assert list(batches) == ["c"]
    assert copies.events[5:] == ["receive c"]


@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_every_batch_comes_once_and_in_order(depth: int, count: int) -> None:
    ahead, copies = prefetcher(depth)
    assert list(ahead.over(iter(range(count)))) == list(range(count))
    waiting = most = 0
    for event in copies.events:
        waiting += 1 if event.startswith("send") else -1
        most = max(most, waiting)
    assert (waiting, most) == (0, min(depth + 1, count))


def test_an_error_comes_when_it_is_the_turn_of_its_batch() -> None:
    def failing() -> Iterator[str]:
        yield "a"
        yield "b"
        raise KeyError("c")

    ahead, _ = prefetcher(2)
    batches = ahead.over(failing())
    assert [next(batches), next(batches)] == ["a", "b"]
    with pytest.raises(KeyError, match="c"):
        next(batches)


def test_an_interrupt_is_not_kept_for_later() -> None:
    def interrupted() -> Iterator[str]:
        yield "a"
        raise KeyboardInterrupt

    ahead, _ = prefetcher(1)
    with pytest.raises(KeyboardInterrupt):
        next(ahead.over(interrupted()))


def test_what_was_read_ahead_of_one_epoch_does_not_come_in_the_next() -> None:
    ahead, _ = prefetcher(1)
    first = ahead.over(iter("abc"))
    next(first)
    assert list(ahead.over(iter("xyz"))) == ["x", "y", "z"]


@pytest.mark.parametrize(
    ("prefetch", "device", "depth"),
    [
        ("auto", CUDA, 1),
        (True, CUDA, 1),
        (False, CUDA, 0),
        (0, CUDA, 0),
        (4, CUDA, 4),
        ("auto", CPU, 0),
        (True, CPU, 0),
        (4, CPU, 0),
    ],
)
def test_batches_are_sent_ahead_to_a_gpu_only(prefetch: Any, device: torch.device, depth: int) -> None:
    assert prefetch_depth(prefetch, device) == depth


@pytest.mark.parametrize("prefetch", [-1, 1.5, "always", None])
def test_what_is_no_number_of_batches_is_refused(prefetch: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        prefetch_depth(prefetch, CPU)
    assert str(caught.value) == (
        f"prefetch={prefetch!r} is no number of batches; use 'auto', True, False or a number from 0"
    )


# Memory --------------------------------------------------------------------------------------------------------

TENSORS = [
    torch.arange(6.0).reshape(2, 3),
    torch.tensor(3, dtype=torch.int16),
    torch.tensor([True, False, True]),
    torch.zeros(0, 4),
    torch.arange(48.0).reshape(2, 3, 2, 4).to(memory_format=torch.channels_last),
    torch.tensor([1 + 2j]),
    torch.tensor([1.5, torch.nan], dtype=torch.bfloat16),
]


def test_a_tensor_in_a_buffer_is_the_same_in_every_way() -> None:
    buffers = HostBuffers(pin=False)
    copies = [buffers.put(tensor) for tensor in TENSORS]
    for tensor, copy in zip(TENSORS, copies, strict=True):
        assert (copy.dtype, copy.shape, copy.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
        assert torch.equal(copy.nan_to_num(), tensor.nan_to_num())
        assert not tensor.numel() or copy.data_ptr() != tensor.data_ptr()


def test_memory_is_used_again_and_grows_only_for_a_larger_batch() -> None:
    buffers = HostBuffers(pin=False)

    def put(*sizes: int) -> list[int]:
        buffers.rewind()
        return [buffers.put(torch.full((size,), float(size))).data_ptr() for size in sizes]

    first = put(8, 4)
    assert put(8, 4) == put(3, 1) == put(8, 4) == first
    second = put(9, 4)
    assert second[0] != first[0]
    assert second[1] == first[1]
    assert put(12, 4) == second  # half as much again


def test_a_buffer_that_is_written_again_has_the_new_values() -> None:
    buffers = HostBuffers(pin=False)
    buffers.put(torch.ones(3))
    buffers.rewind()
    assert buffers.put(torch.tensor([5, 6])).tolist() == [5, 6]


class Child(Tensor):
    """Somebody's own tensor."""


@pytest.mark.parametrize("tensor", TENSORS)
def test_plain_numbers_on_the_host_go_through_buffers(tensor: Tensor) -> None:
    assert is_plain_tensor(tensor)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(2).as_subclass(Child),
        torch.zeros(2, requires_grad=True),
        torch.zeros(2, 2).to_sparse(),
        torch.zeros(2, 3).t(),
        torch.zeros(1).expand(4),
        torch.zeros(2, device="meta"),
        torch.nn.Parameter(torch.zeros(2)),
    ],
    ids=["child", "gradient", "sparse", "transposed", "expanded", "elsewhere", "parameter"],
)
def test_anything_else_is_moved_as_ever(tensor: Tensor) -> None:
    assert not is_plain_tensor(tensor)


# Which way -----------------------------------------------------------------------------------------------------

META = torch.device("meta")
"""Stands for a GPU: a copy to it has a device, a type and a shape, and no values."""


class Idle:
    """A stream, or an event, of a device that has nothing to do."""

    def __init__(self, device: Any = None) -> None:
        pass

    def query(self) -> bool:
        return True

    def record(self, stream: Any) -> None:
        """Happen at once."""


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> PinnedCopies:
    monkeypatch.setattr(torch.cuda, "Stream", Idle)
    monkeypatch.setattr(torch.cuda, "Event", Idle)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(prefetching, "HostBuffers", lambda pin: HostBuffers(pin=False))
    return PinnedCopies(META, 2)


def buffers(copies: PinnedCopies) -> int:
    """Return how many tensors the ring had to make room for."""
    return sum(len(ring._buffers) for ring, _ in copies._ring)


@pytest.mark.parametrize(("more", "number"), [(0, 0), (1, 2)])
def test_a_small_batch_goes_by_itself_and_a_larger_one_through_the_ring(
    copies: PinnedCopies, more: int, number: int
) -> None:
    batch = [torch.zeros(SMALL - 8, dtype=torch.uint8), torch.zeros(8 + more, dtype=torch.uint8)]
    sent = copies.send(batch)
    assert [leaf.device for leaf in (sent.batch if number else sent)] == [META, META]
    assert (type(sent) is Sent, buffers(copies)) == (bool(number), number)


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_small_batch_is_received_as_it_was_made(copies: PinnedCopies, kind: type) -> None:
    received = copies.receive(copies.send(kind(TENSORS)))
    assert type(received) is kind
    for tensor, copy in zip(TENSORS, received, strict=True):
        assert (copy.device, copy.dtype, copy.shape, copy.stride()) == (
            META,
            tensor.dtype,
            tensor.shape,
            tensor.stride(),
        )


def test_small_batches_stay_where_they_are_for_somebody_who_copies_them_himself(copies: PinnedCopies) -> None:
    prefetcher = DevicePrefetcher(META, copies=copies)
    small, large = [torch.zeros(3)], [torch.zeros(SMALL)]
    (sent,) = prefetcher.over(iter([small]))
    assert sent[0].device == META
    prefetcher.leave_small()
    (kept,) = prefetcher.over(iter([small]))
    assert kept is small
    assert type(copies.send(large)) is Sent


def test_what_is_on_the_device_already_does_not_make_a_batch_large(copies: PinnedCopies) -> None:
    there = torch.zeros(2 * SMALL, device=META)
    sent = copies.send((there, torch.zeros(1)))
    assert sent[0] is there
    assert sent[1].device == META
    whole = [there, there]
    assert copies.send(whole) is whole
    assert buffers(copies) == 0


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


@pytest.mark.parametrize(
    "batch",
    [
        torch.ones(2),
        {"one": torch.ones(2)},
        Pair(torch.ones(2), torch.ones(2)),
        [torch.ones(2), [torch.ones(2)]],
        [torch.ones(2), 3],
        [torch.ones(2), torch.ones(2, 3).t()],
        [torch.ones(2), torch.ones(2).as_subclass(Child)],
    ],
    ids=["a tensor", "a dict", "a named tuple", "nested", "a number", "transposed", "a child"],
)
def test_a_batch_that_has_to_be_looked_into_goes_through_the_ring_however_small(
    copies: PinnedCopies, batch: Any
) -> None:
    assert type(copies.send(batch)) is Sent
    assert buffers(copies) > 0


# Streams -------------------------------------------------------------------------------------------------------


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """A GPU as far as a stream can tell: batches that are sent there stay where they are."""
    monkeypatch.setattr(prefetching, "PinnedCopies", lambda device, slots: Noted())
    return CUDA


NUMBERS = TensorDataset(torch.arange(10))
FOURS = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


class Ready:
    """Ready batches without a length, from code that draws."""

    def __iter__(self) -> Iterator[Tensor]:
        for batch in torch.arange(10).split(4):
            yield batch + int(torch.rand(()))


class Stateful(Ready):
    """Ready batches from a source that knows its place."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Know it already."""


SOURCES: dict[str, Callable[[], Any]] = {
    "the trainer's loader": lambda: make_loader(NUMBERS, shuffle=False, batch_size=4),
    "a loader that pins": lambda: DataLoader(NUMBERS, batch_size=4, pin_memory=True),
    "a loader with a worker": lambda: DataLoader(NUMBERS, batch_size=4, num_workers=1),
    "data kept on the host": lambda: DataLoader(InMemoryDataset(torch.arange(10), device="cpu"), batch_size=4),
    "batches of unknown number": Ready,
    "a list of batches": lambda: list(torch.arange(10).split(4)),
}


def values(batches: Any) -> list[list[int]]:
    return [batch[0].tolist() if isinstance(batch, list) else batch.tolist() for batch in batches]


@pytest.mark.parametrize("source", list(SOURCES))
@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_a_stream_counts_what_was_asked_for_and_resumes_there_though_more_was_read(
    gpu: torch.device, source: str, place: int
) -> None:
    stream = Stream(SOURCES[source](), device=gpu, prefetch=2)
    stream.begin(0)
    assert values(stream.window(1) + stream.window(place)) == FOURS[: place + 1]
    assert stream.drawn == min(place + 1, 3)
    other = Stream(SOURCES[source](), device=gpu, prefetch=2)
    other.load_state_dict(stream.state_dict())
    assert values(other.rest()) == FOURS[place + 1 :]
    other.begin(1)
    assert values(other.rest()) == FOURS
    for one in (stream, other):
        one.close()


def test_a_stream_says_whether_it_sends_batches_ahead(gpu: torch.device) -> None:
    assert Stream(list(Ready()), device=gpu).sends_ahead is True
    assert Stream(list(Ready()), device=gpu, prefetch=False).sends_ahead is False
    assert Stream(list(Ready()), device=torch.device("cpu")).sends_ahead is False


def test_a_loader_that_pins_is_fetched_here_for_the_ring_pins_already(gpu: torch.device) -> None:
    loader = DataLoader(NUMBERS, batch_size=4, pin_memory=True)
    assert Stream(loader, device=gpu).loader is loader
    assert Stream(loader, device=gpu, prefetch=False).loader is not loader


@pytest.mark.parametrize("source", [iter([torch.zeros(1)]), Stateful()], ids=["iterator", "stateful"])
def test_a_source_that_keeps_its_own_place_is_not_read_ahead(gpu: torch.device, source: Any) -> None:
    assert Stream(source, device=gpu)._prefetcher is None
    assert Stream(list(Ready()), device=gpu)._prefetcher is not None


def test_reading_ahead_leaves_the_generators_as_they_were(gpu: torch.device) -> None:
    stream = Stream(Ready(), device=gpu)
    stream.begin(0)
    before = torch.get_rng_state()
    assert values(stream.rest()) == FOURS
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_batch_that_only_keeps_a_rank_in_step_is_known_ahead_too(gpu: torch.device, rank: int) -> None:
    stream = Stream(list(torch.arange(3).split(1)), device=gpu, rank=rank, size=2)
    stream.begin(0)
    assert values(stream.window(1)) == [[rank]]
    assert stream.padded is None
    assert values(stream.window(1)) == [[2]]
    assert stream.padded == (None if rank == 0 else 0)
