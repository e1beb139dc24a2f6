"""Whoever draws the samples, and however often it is killed: the order is the one that the reference lists."""

import os
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.data.sources.files import make_source
from tests.data.sources.reference import by_blocks, expected_shares, listed, shuffled, streamed
from treadle.data import Stream, make_loader
from treadle.data.sources import IndexedSource, Mixture, TokenBins, write_token_bin
from treadle.data.sources.orders import BlockOrder, PermutedOrder
from treadle.data.sources.permutation import permuted
from treadle.runs.elastic import Split, split_anew

SEED = 7
GLOBAL = 6
"""Samples of a batch over all ranks."""
STREAMED = ("stream", "mixture stream")
KINDS = ("tokens", "lines", "parquet", "tar", "images", "table", "mixture", *STREAMED)
LONG = bool(os.environ.get("TREADLE_LONG"))
WORKERS = {
    "tokens": (0, 3),
    "lines": (1,),
    "parquet": (4,),
    "tar": (2,),
    "images": (0,),
    "table": (1,),
    "mixture": (0, 2),
    "stream": (0, 2),
    "mixture stream": (0, 3),
}
"""A covering choice; all of 0 to 4 for each with TREADLE_LONG=1, as `make long` sets it."""
CASES = [
    pytest.param(kind, workers, marks=[pytest.mark.slow] if workers > 1 else [])
    for kind in KINDS
    for workers in (range(5) if LONG else WORKERS[kind])
]


def streams_of(source: Any, ranks: int, workers: int) -> list[Stream]:
    shuffle = isinstance(source, IndexedSource)
    loader: dict[str, Any] = {"shuffle": shuffle, "batch_size": GLOBAL // ranks, "num_workers": workers}
    made = [
        Stream(make_loader(source, **loader), device=torch.device("cpu"), seed=SEED, rank=rank, size=ranks)
        for rank in range(ranks)
    ]
    for stream in made:
        stream.begin(0)
    return made


def draw(streams: Sequence[Stream], batches: int) -> list[int]:
    """Draw batches on every rank, and return the numbers of the samples in their global order."""
    numbers: list[int] = []
    for _ in range(batches):
        for stream in streams:
            window = stream.window(1)
            if window and stream.padded is None:
                numbers += [int(target) for target in window[0][1][:, -1]]
    return numbers


def moved_to(ranks: int, then: int, states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the place of a run of `then` ranks for one of `ranks`."""
    state = {"tracked": {"stream_train": states[0], "progress": {"samples": 0}}}
    whole = split_anew(state, Split(then, then, GLOBAL // then), Split(ranks, ranks, GLOBAL // ranks))
    return whole["tracked"]["stream_train"]  # type: ignore[no-any-return]


def in_order(source: Any, epoch: int) -> list[int]:
    if not isinstance(source, IndexedSource):
        return streamed(source, SEED, epoch)
    return [int(source[index][1][-1]) for index in listed(source, SEED, epoch)]


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.parametrize(("kind", "workers"), CASES)
def test_kills_ranks_and_workers_leave_the_order_of_the_reference(kind: str, workers: int, tmp_path: Path) -> None:
    source = make_source(kind, tmp_path)
    expected = in_order(source, 0) + in_order(source, 1)
    streams, ranks = streams_of(source, 1, workers), 1
    seen = draw(streams, 2)
    for then, now, batches in ((1, 3, 3), (3, 2, 2)):
        # Killed: what lives on is a state; what was drawn in advance is gone.
        state = deepcopy(moved_to(now, then, [stream.state_dict() for stream in streams]))
        for stream in streams:
            stream.close()
        streams, ranks = streams_of(make_source(kind, tmp_path), now, workers), now
        for stream in streams:
            stream.load_state_dict(deepcopy(state))
            assert stream.drawn == len(seen) // GLOBAL
        seen += draw(streams, batches)
    while streams[0].has_next():
        seen += draw(streams, 1)
    for stream in streams:
        stream.begin(1)
    while streams[0].has_next():
        seen += draw(streams, 1)
    for stream in streams:
        stream.close()
    assert ranks == 2
    assert seen == expected


def test_the_reference_and_the_calculated_order_are_one_for_long_epochs() -> None:
    whole = PermutedOrder(5_000, 3)
    whole.begin(4)
    assert whole.slice(0, 5_000) == shuffled(5_000, "samples", 3, 4)
    sizes = [int(size) for size in np.random.default_rng(0).integers(1, 9, 300)]
    order = BlockOrder(sizes, 3, 16)
    order.begin(1)
    assert order.slice(0, 10_000) == by_blocks(sizes, 16, 3, 1)


def test_a_mixture_draws_as_its_weights_say_and_follows_on_in_the_next_epoch(tmp_path: Path) -> None:
    write_token_bin(tmp_path / "web", [range(4_001)])
    write_token_bin(tmp_path / "code", [range(10_000, 12_001)])
    sources = {"web": TokenBins(tmp_path / "web", 1), "code": TokenBins(tmp_path / "code", 1)}
    mixture = Mixture(sources, {"web": 3, "code": 1}, length=5_000)
    assert mixture.shares == expected_shares([3, 1]) == [7500, 2500]
    draws = np.array(listed(mixture, SEED, 0) + listed(mixture, SEED, 1))
    web, code = draws[draws < 4_000], draws[draws >= 4_000]
    # Two epochs are one whole block: to the sample.
    assert (len(web), len(code)) == (7_500, 2_500)
    counts = np.bincount(web, minlength=4_000)
    assert set(counts.tolist()) == {1, 2}
    assert np.bincount(code - 4_000, minlength=2_000).min() == 1


@pytest.mark.parametrize(("length", "expected"), [("first", 5_333), ("last", 8_000), (123, 123)])
def test_the_length_of_an_epoch_of_a_mixture_is_as_asked(tmp_path: Path, length: Any, expected: int) -> None:
    write_token_bin(tmp_path / "web", [range(4_001)])
    write_token_bin(tmp_path / "code", [range(2_001)])
    sources = {"web": TokenBins(tmp_path / "web", 1), "code": TokenBins(tmp_path / "code", 1)}
    mixture = Mixture(sources, {"web": 3, "code": 1}, length=length)
    assert len(mixture.order(0)) == mixture.epoch_length == expected


def test_a_place_a_billion_samples_in_is_calculated_from_itself_alone() -> None:
    order = PermutedOrder(3 * 10**9, 1)
    order.begin(2)
    asked: list[int] = []

    class Counted(PermutedOrder):
        def at(self, places: Any, epoch: int, passed: int = 0) -> Any:
            asked.append(len(places))
            return super().at(places, epoch, passed)

    counted = Counted(3 * 10**9, 1)
    counted.begin(2)
    assert counted.slice(10**9, 10**9 + 8) == permuted(np.arange(10**9, 10**9 + 8), 3 * 10**9, "samples", 1, 2).tolist()
    assert asked == [8]
