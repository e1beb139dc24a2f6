"""On a GPU: batches that are sent ahead, and data that lives there, have the right values with nobody waiting."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.data import DataLoader, Dataset, TensorDataset

from tests.guards.no_sync import no_sync
from tests.interrupting import check, make_trainer, samples, simply
from treadle.data import DevicePrefetcher, InMemoryDataset, Stream, make_loader
from treadle.data import prefetch as prefetching
from treadle.data.prefetch import PinnedCopies, Waiting

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")]

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
LONG = 2_000_000
"""Clock cycles of a step, about a millisecond: far longer than it takes to fetch a batch and to copy it."""


class Samples(Dataset[Any]):
    """Samples that are drawn, fetched one by one."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> Any:
        return {"ids": torch.full((512,), index), "noise": (torch.rand(512), [index])}


TENSORS = TensorDataset(torch.arange(256.0 * 4096).reshape(256, 4096), torch.arange(256))
SMALL_TENSORS = TensorDataset(torch.arange(256.0 * 16).reshape(256, 16), torch.arange(256))
"""Batches of eight have 576 bytes, and are sent without the ring; those of `TENSORS` are twice too large for that."""
SOURCES: dict[str, Callable[[], Any]] = {
    "small": lambda: make_loader(SMALL_TENSORS, shuffle=True, batch_size=8),
    "small, pinned by workers": lambda: make_loader(
        SMALL_TENSORS, shuffle=True, batch_size=8, num_workers=2, pin_memory=True
    ),
    "tensors": lambda: make_loader(TENSORS, shuffle=True, batch_size=8, pin_memory=True),
    "samples": lambda: make_loader(Samples(), shuffle=True, batch_size=8),
    "workers": lambda: make_loader(Samples(), shuffle=True, batch_size=8, num_workers=2),
    "workers that pin": lambda: make_loader(Samples(), shuffle=True, batch_size=8, num_workers=2, pin_memory=True),
    "on the host": lambda: make_loader(InMemoryDataset(*TENSORS.tensors, device="cpu"), shuffle=True, batch_size=8),
    "on the device": lambda: make_loader(InMemoryDataset(*TENSORS.tensors), shuffle=True, batch_size=8),
}


@pytest.fixture(params=["by themselves", "through the ring"])
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the small batches of a test sent in the one way and in the other."""
    if request.param == "through the ring":
        monkeypatch.setattr(prefetching, "SMALL", 0)


def leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    return [leaf for part in value for leaf in leaves(part)] if isinstance(value, (list, tuple)) else [value]


def numbers(batch: Any) -> list[Any]:
    return [leaf.cpu().tolist() if isinstance(leaf, Tensor) else leaf for leaf in leaves(batch)]


def drawn(device: torch.device, source: str, *epochs: int, **kwargs: Any) -> list[Any]:
    stream = Stream(SOURCES[source](), device=device, seed=3, **kwargs)
    batches = []
    for epoch in epochs or (0,):
        stream.begin(epoch)
        batches += list(stream.rest())
    stream.close()
    return batches


@pytest.mark.parametrize("source", list(SOURCES))
@pytest.mark.parametrize("prefetch", [False, 1, 3])
def test_batches_have_the_values_and_the_order_that_they_have_on_the_cpu(source: str, prefetch: Any) -> None:
    here, there = drawn(CPU, source, 0, 1), drawn(CUDA, source, 0, 1, prefetch=prefetch)
    assert [numbers(batch) for batch in there] == [numbers(batch) for batch in here]
    assert all(leaf.device == CUDA for batch in there for leaf in leaves(batch) if isinstance(leaf, Tensor))


@pytest.mark.parametrize("source", list(SOURCES))
@pytest.mark.parametrize("prefetch", [1, 3])
def test_a_slow_step_reads_the_batch_it_was_given_though_buffers_and_memory_are_used_again(
    source: str, prefetch: int
) -> None:
    expected = [numbers(batch) for batch in drawn(CPU, source, 0, 1)]
    stream = Stream(SOURCES[source](), device=CUDA, seed=3, prefetch=prefetch)
    results = []
    for epoch in (0, 1):
        stream.begin(epoch)
        for batch in stream.rest():
            # The host goes on while this runs: everything of this batch is freed long before it is read.
            torch.cuda._sleep(LONG)
            results.append([leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves(batch)])
            del batch
    stream.close()
    assert [numbers(result) for result in results] == expected


@pytest.mark.parametrize("source", ["small", "small, pinned by workers", "tensors"])
def test_batches_that_are_kept_keep_their_values(source: str) -> None:
    kept = drawn(CUDA, source, 0, 1, prefetch=1)
    torch.cuda.synchronize()
    assert [numbers(batch) for batch in kept] == [numbers(batch) for batch in drawn(CPU, source, 0, 1)]


def buffers(copies: PinnedCopies) -> list[int]:
    """Return where the buffers of the ring are."""
    found = [buffer for ring, _ in copies._ring for buffer in ring._buffers]
    assert all(buffer.is_pinned() for buffer in found)
    return [buffer.data_ptr() for buffer in found]


def test_the_ring_is_pinned_once() -> None:
    copies = PinnedCopies(CUDA, 3)
    ahead = DevicePrefetcher(CUDA, 1, copies)
    batches = [[torch.full((64, 300), float(number)), torch.full((64,), number)] for number in range(7)]
    for _ in ahead.over(iter(batches)):
        pass
    first = buffers(copies)
    assert len(first) == 6
    shorter = [torch.zeros(60, 300), torch.zeros(60)]
    assert prefetching.SMALL < 60 * 300 * 4
    for _ in ahead.over(iter([*batches, shorter])):
        pass
    assert buffers(copies) == first


def test_the_ring_is_for_batches_that_are_not_small() -> None:
    copies = PinnedCopies(CUDA, 3)
    ahead = DevicePrefetcher(CUDA, 1, copies)
    largest = torch.arange(prefetching.SMALL // 8)
    small = [(largest + number, torch.empty(0)) for number in range(7)]
    found = [batch[0].sum() for batch in ahead.over(iter(small))]
    assert [int(total) for total in found] == [int(batch[0].sum()) for batch in small]
    assert buffers(copies) == []
    (received,) = ahead.over(iter([(largest, torch.ones(1))]))
    assert numbers(received) == [largest.tolist(), [1.0]]
    assert len(buffers(copies)) == 2


@pytest.mark.parametrize("source", list(SOURCES))
def test_nothing_waits_for_the_device_while_batches_are_drawn(source: str) -> None:
    stream = Stream(SOURCES[source](), device=CUDA, seed=3)
    stream.begin(0)
    total = torch.zeros((), device=CUDA)
    stream.window(1)
    torch.cuda._sleep(LONG)
    with no_sync("cuda"):
        while window := stream.window(2):
            for batch in window:
                total += leaves(batch)[0].sum()
        stream.begin(1)
        assert stream.window(1)
    stream.close()


def test_the_time_that_data_takes_counts_only_if_the_device_has_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(clock)))
    waiting = Waiting(CUDA)
    torch.cuda._sleep(100 * LONG)
    with no_sync("cuda"), waiting:
        pass
    assert waiting.take() == 0
    torch.cuda.synchronize()
    with waiting:
        torch.cuda.synchronize()
    assert waiting.take() == 1


# What is in a batch --------------------------------------------------------------------------------------------


class Graph:
    """Something that moves itself."""

    def __init__(self, value: Tensor) -> None:
        self.value = value

    def to(self, device: Any) -> "Graph":
        return Graph(self.value.to(device))


class Child(Tensor):
    """Somebody's own tensor."""


def sent(batch: Any) -> Any:
    (received,) = DevicePrefetcher(CUDA).over(iter([batch]))
    return received


def test_odd_things_are_moved_as_ever() -> None:
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    received = sent(
        {
            "graph": Graph(torch.ones(2)),
            "packed": packed,
            "child": torch.ones(2).as_subclass(Child),
            "sparse": torch.eye(2).to_sparse(),
            "transposed": torch.arange(6).reshape(2, 3).t(),
            "word": "ant",
            "nothing": None,
            "plain": torch.ones(2),
        }
    )
    assert received["graph"].value.device == CUDA
    assert isinstance(received["packed"], PackedSequence)
    assert (received["packed"].data.device, received["packed"].batch_sizes.device) == (CUDA, CPU)
    assert type(received["child"]) is Child
    assert received["child"].device == received["plain"].device == received["sparse"].device == CUDA
    assert torch.equal(received["sparse"].to_dense().cpu(), torch.eye(2))
    assert received["transposed"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert (received["word"], received["nothing"]) == ("ant", None)


@pytest.mark.usefixtures("both_ways")
def test_the_layout_of_images_is_kept() -> None:
    images = torch.arange(48.0).reshape(2, 3, 2, 4).to(memory_format=torch.channels_last)
    received = sent([images])[0]
    assert received.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(received.cpu(), images)


@pytest.mark.usefixtures("both_ways")
def test_what_is_on_the_device_already_is_left_where_it_is() -> None:
    there = torch.ones(3, device=CUDA)
    received = sent((there, torch.zeros(3)))
    assert received[0] is there
    assert received[1].device == CUDA


def test_a_tensor_data_set_on_the_device_is_gathered_there() -> None:
    data = TensorDataset(*(tensor.to(CUDA) for tensor in TENSORS.tensors))
    stream = Stream(make_loader(data, shuffle=True, batch_size=8), device=CUDA, seed=3)
    stream.begin(0)
    assert [numbers(batch) for batch in stream.rest()] == [numbers(batch) for batch in drawn(CPU, "tensors")]


# Data in memory ------------------------------------------------------------------------------------------------


def noisy(batch: Any, generator: torch.Generator) -> Any:
    inputs, targets = batch
    return [inputs + torch.rand(inputs.shape, generator=generator, device=inputs.device), targets]


def in_memory(transform: Any) -> Stream:
    inputs = torch.arange(44.0).reshape(22, 2)
    data = InMemoryDataset(inputs, torch.arange(22), transform=transform)
    return Stream(make_loader(data, shuffle=True, batch_size=4, drop_last=True), device=CUDA, seed=3)


@pytest.mark.parametrize("transform", [None, noisy])
def test_a_captured_step_gathers_the_ordinary_batches_itself(transform: Any) -> None:
    ordinary = in_memory(transform)
    expected = []
    for epoch in (0, 1):
        ordinary.begin(epoch)
        expected += [numbers(batch) for batch in ordinary]
    stream = in_memory(transform)
    gathered = stream.in_memory
    assert gathered is not None
    stream.begin(0)
    stream.has_next()
    stream.places(1)
    cursor = torch.zeros((), dtype=torch.int64, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        gathered.batch_at(cursor, 4)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(gathered.generator)
    with torch.cuda.graph(graph):
        batch = gathered.batch_at(cursor, 4)
    replayed = []
    for epoch in (0, 1):
        stream.begin(epoch)
        while places := stream.places(1):
            gathered.seed_for(stream.drawn - 1)
            cursor.fill_(places[0][0])
            graph.replay()
            replayed.append(numbers(batch))
    assert replayed == expected


@pytest.mark.parametrize("transform", [None, noisy])
def test_a_run_on_data_on_the_device_resumes_exactly(tmp_path: Path, transform: Any) -> None:
    make = partial(make_trainer, device="cuda", deterministic=True)

    def train(trainer: Any) -> None:
        simply(trainer, InMemoryDataset(*samples().tensors, transform=transform), eval_dataset=samples(8))

    check(tmp_path, make, train)


class Augmented(Dataset[Any]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        inputs, targets = samples()[index]
        return inputs + 0.1 * torch.randn(2), targets


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("data", [samples(), Augmented()], ids=["tensors", "samples"])
def test_a_run_whose_batches_are_sent_ahead_resumes_exactly(tmp_path: Path, data: Any, workers: int) -> None:
    make = partial(make_trainer, device="cuda", deterministic=True)
    check(tmp_path, make, partial(simply, data=data, train_dataloader_kwargs={"num_workers": workers}))


def test_the_first_batches_of_a_loader_are_not_lost_when_a_run_begins_twice() -> None:
    loader = DataLoader(TENSORS, batch_size=8)
    stream = Stream(loader, device=CUDA)
    stream.begin(0)
    stream.window(1)
    stream.begin(0)
    assert numbers(stream.window(1)[0])[1] == list(range(8))


@pytest.mark.parametrize("source", list(SOURCES))
def test_passes_beside_the_run_leave_what_was_sent_ahead_alone(source: str) -> None:
    expected = [[numbers(batch) for batch in drawn(CPU, source, epoch)] for epoch in (0, 1)]
    stream = Stream(SOURCES[source](), device=CUDA, seed=3, prefetch=2)
    for epoch in (0, 1):
        stream.begin(epoch)
        found = []
        for batch in stream.rest():
            found.append(numbers(batch))
            if len(found) == 2:
                beside = list(stream)
                assert [numbers(one) for one in beside] == expected[epoch]
                assert all(leaf.device == CUDA for one in beside for leaf in leaves(one) if isinstance(leaf, Tensor))
        assert found == expected[epoch]
    stream.close()
