"""Documents share rows: which ones, what is in a row, and the place of a stream of them."""

import logging
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from treadle.data import Stream, make_loader
from treadle.data.sources import (
    NEXT_TOKEN,
    IndexedSource,
    Mixture,
    PackedDocuments,
    PackedFields,
    PackedStream,
    StreamedSource,
    TokenBins,
    write_token_bin,
)
from treadle.errors import ConfigError, DataError
from treadle.runs.description import rows_checksum

ROW = 32


def documents(count: int = 300, longest: int = 40) -> list[Tensor]:
    """Documents of skewed lengths, each token of which is its own."""
    generator = torch.Generator().manual_seed(0)
    lengths = (torch.rand(count, generator=generator) ** 3 * longest).int().clamp_min(1).tolist()
    ends = np.cumsum(lengths).tolist()
    return [torch.arange(end - length, end) + 1 for length, end in zip(lengths, ends, strict=True)]


def contents(row: dict[str, Tensor]) -> list[list[int]]:
    """The documents in a row, what is left over not among them."""
    begins = [*(row["position_ids"] == 0).nonzero().flatten().tolist(), ROW]
    parts = [row["input_ids"][begin:end].tolist() for begin, end in pairwise(begins)]
    return [part for part in parts if part[0]]


@pytest.mark.parametrize("seed", [None, 3])
def test_every_token_is_in_one_row_with_the_rest_of_its_document(seed: int | None) -> None:
    text = documents(longest=ROW)
    rows = PackedDocuments(text, ROW, seed=seed, buffer=50)
    found = [part for row in rows for part in contents(row)]
    assert sorted(found) == sorted(document.tolist() for document in text)
    assert rows.report.split == 0
    # The first rows hold documents of the first buffer only; mixed, of everywhere.
    first = {number for row in range(5) for number in rows.documents_of(row)}
    assert (max(first) < 50) == (seed is None)


def test_hardly_anything_is_left_over() -> None:
    report = PackedDocuments(documents(2000), ROW).report
    assert 0 < report.waste < 0.01
    places = report.rows * ROW
    assert report.waste == pytest.approx(1 - report.tokens / places)
    assert report.tokens == sum(map(len, documents(2000)))


def test_rows_are_filled_where_the_least_room_is_left() -> None:
    rows = PackedDocuments([[1] * 20, [2] * 25, [3] * 7, [4] * 12, [5] * 3], ROW)
    assert [rows.documents_of(row) for row in range(len(rows))] == [[0, 3], [1, 2], [4]]
    assert rows.max_documents == 3
    assert str(rows.report) == "5 documents in 3 rows of 32; 30.2% of the places are padding"


def test_labels_do_not_reach_across_documents() -> None:
    row = PackedDocuments([[5, 6, 7], [8, 9]], 7, padding=1)[0]
    assert row["input_ids"].tolist() == [5, 6, 7, 8, 9, 1, 1]
    assert row["labels"].tolist() == [-100, 6, 7, -100, 9, -100, -100]
    assert row["position_ids"].tolist() == [0, 1, 2, 0, 1, 0, 1]
    shifted = PackedDocuments([[5, 6, 7], [8, 9]], 7, fields=NEXT_TOKEN)[0]
    assert shifted["targets"].tolist() == [6, 7, -100, 9, -100, -100, -100]
    named = PackedDocuments([[5, 6]], 2, fields=PackedFields("a", "b", "c", next_token=True))[0]
    assert {name: part.tolist() for name, part in named.items()} == {"a": [5, 6], "b": [6, -100], "c": [0, 1]}


def test_longer_documents_are_split_left_out_or_refused(caplog: pytest.LogCaptureFixture) -> None:
    text = [np.arange(1, 11), [20, 21], [], [30] * 5]
    split = PackedDocuments(text, 4)
    tokens = sorted(token for row in split for token in row["input_ids"].tolist() if token)
    assert tokens == sorted([*range(1, 11), 20, 21, *[30] * 5])
    assert [row["position_ids"].tolist() for row in split][:2] == [[0, 1, 2, 3]] * 2
    assert (split.report.split, split.report.dropped, split.report.empty) == (2, 0, 1)
    assert "2 longer documents are split; 1 documents are empty" in str(split.report)
    assert not caplog.records
    dropped = PackedDocuments(text, 4, long="drop")
    assert [row["input_ids"].tolist() for row in dropped] == [[20, 21, 0, 0]]
    assert [one.levelno for one in caplog.records] == [logging.WARNING]
    assert "2 longer documents are left out" in caplog.text
    with pytest.raises(DataError, match=r"document 0 has 10 tokens, more than row_length=4.*long='split'.*long='drop'"):
        PackedDocuments(text, 4, long="refuse")


def test_what_cannot_be_meant_is_refused() -> None:
    with pytest.raises(ConfigError, match="long='cut' does not exist"):
        PackedDocuments([[1]], 4, long="cut")
    with pytest.raises(ConfigError, match="row_length=0 must be a whole number above 0"):
        PackedDocuments([[1]], 0)
    with pytest.raises(ConfigError, match="buffer=0 must be"):
        PackedStream([[1]], 4, buffer=0)
    for empty in (PackedDocuments, lambda *arguments: list(PackedStream(*arguments))):
        with pytest.raises(
            DataError, match=r"no row can be made of 1 documents in 0 rows of 4; .*; 1 documents are empty"
        ):
            empty([[]], 4)


def test_batches_have_one_shape_and_are_those_of_single_rows() -> None:
    rows = PackedDocuments(documents(), ROW)
    drawn = list(Stream(make_loader(rows, shuffle=False, batch_size=4), device=torch.device("cpu")))
    assert {tuple(part.shape) for batch in drawn[:-1] for part in batch.values()} == {(4, ROW)}
    singles = list(DataLoader(rows, batch_size=4))
    for batch, single in zip(drawn, singles, strict=True):
        assert all(torch.equal(batch[name], single[name]) for name in single)


class Read:
    """Says how much was read of the documents."""

    lengths = [len(one) for one in documents()]

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Tensor:
        self.asked.append(index)
        return documents()[index]


def test_documents_whose_lengths_are_known_are_not_read_before_they_are_drawn() -> None:
    text = Read()
    rows = PackedDocuments(text, ROW)  # type: ignore[arg-type]
    assert text.asked == []
    assert rows[0]["input_ids"].shape == (ROW,)
    assert sorted(text.asked) == sorted(rows.documents_of(0))


# Documents that come one after the other --------------------------------------------------------------------


class Placed:
    """Documents that come one after the other, from a place that is known."""

    def __init__(self) -> None:
        self.next, self.read = 0, 0

    def __iter__(self) -> Iterator[Tensor]:
        text = documents()
        while self.next < len(text):
            self.next, self.read = self.next + 1, self.read + 1
            yield text[self.next - 1]
        self.next = 0

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next = state["next"]


def equal(one: list[dict[str, Tensor]], other: list[dict[str, Tensor]]) -> bool:
    assert len(one) == len(other)
    return all(torch.equal(a[name], b[name]) for a, b in zip(one, other, strict=True) for name in a)


def test_a_stream_makes_the_rows_of_a_data_set() -> None:
    rows = list(PackedDocuments(documents(), ROW, buffer=50))
    stream = PackedStream(documents(), ROW, buffer=50)
    assert equal(list(stream), rows)
    assert equal(list(stream), rows)


class Lines(StreamedSource):
    """A streamed source of documents, shuffled through a buffer."""

    def __init__(self) -> None:
        super().__init__(buffer=30, transform=torch.tensor)

    def blocks(self, size: int, seed: int, state: Any) -> Iterator[Any]:
        text = documents()
        for begin in range(state or 0, len(text), size):
            yield [document.tolist() for document in text[begin : begin + size]], begin + size


def batches(stream: PackedStream, state: Any = None, **loader: Any) -> Stream:
    drawn = Stream(DataLoader(stream, batch_size=4, **loader), device=torch.device("cpu"), seed=1)
    drawn.begin(0)
    if state is not None:
        drawn.load_state_dict(state)
    return drawn


@pytest.mark.parametrize("source", [Placed, documents, Lines])
def test_a_stream_is_entered_at_any_batch(source: Any) -> None:
    whole = list(batches(PackedStream(source(), ROW, buffer=50)).rest())
    for place in (0, 1, 7, len(whole) // 2, len(whole) - 1, len(whole)):
        left = batches(PackedStream(source(), ROW, buffer=50))
        before = [left.window(1)[0] for _ in range(place)]
        text = source()
        entered = batches(PackedStream(text, ROW, buffer=50), left.state_dict())
        assert equal([*before, *entered.rest()], whole)
        if isinstance(text, Placed) and place > 7:
            assert text.read < len(documents()), "documents before the place were read again"
        entered.begin(1)
        others = list(entered.rest())
        # Only the lines are shuffled, anew for each epoch.
        assert equal(others, whole) != isinstance(text, Lines)


@pytest.mark.slow
def test_two_workers_give_the_rows_of_none() -> None:
    whole = list(batches(PackedStream(Lines(), ROW, buffer=50)).rest())
    assert equal(list(batches(PackedStream(Lines(), ROW, buffer=50), num_workers=2).rest()), whole)


def test_a_stream_reports_what_it_has_read() -> None:
    stream = PackedStream(documents(), ROW, buffer=50)
    rows = iter(stream)
    next(rows)
    assert (stream.report.documents, stream.report.rows > 5) == (50, True)
    assert stream.fingerprint() == {"packing": {"row_length": ROW, "long": "split", "buffer": 50}}
    assert stream.report.tokens == sum(map(len, documents()[:50]))


def test_a_stream_leaves_long_documents_out_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    rows = list(PackedStream([[1, 2], [3] * 9, [4] * 9], 4, long="drop", buffer=1))
    assert [row["input_ids"].tolist() for row in rows] == [[1, 2, 0, 0]]
    assert [one.message for one in caplog.records] == ["documents of more than row_length=4 tokens are left out"]
    with pytest.raises(DataError, match="document 1 has 9 tokens"):
        list(PackedStream([[1, 2], [3] * 9], 4, long="refuse", buffer=1))


def test_a_stream_refuses_the_state_of_documents_of_another_kind() -> None:
    left = batches(PackedStream(Placed(), ROW, buffer=50))
    left.window(20)
    with pytest.raises(DataError, match="a list has no load_state_dict to take it back"):
        list(batches(PackedStream(documents(), ROW, buffer=50), left.state_dict()).rest())


# With other sources -----------------------------------------------------------------------------------------


def test_packed_rows_are_mixed_by_weight() -> None:
    sources = {"one": PackedDocuments(documents(), ROW), "other": PackedDocuments(documents(100), ROW)}
    mixture = Mixture(sources, {"one": 3, "other": 1}, length=40)
    loader = make_loader(mixture, shuffle=True, batch_size=4)
    drawn = list(Stream(loader, device=torch.device("cpu"), seed=5))
    assert {tuple(part.shape) for batch in drawn for part in batch.values()} == {(4, ROW)}
    assert len(drawn) == 10
    assert {"packing", "pieces", "share"} <= mixture.fingerprint()["one"].keys()


def test_a_mixture_of_documents_is_packed() -> None:
    class Documents(IndexedSource):
        def __init__(self, text: list[Tensor]) -> None:
            super().__init__()
            self.text = text

        def __len__(self) -> int:
            return len(self.text)

        def read_one(self, index: int) -> Tensor:
            return self.text[index]

    mixture = Mixture({"one": Documents(documents()), "other": Documents(documents(100))})
    expected = PackedDocuments(documents() + documents(100), ROW)
    assert equal(list(PackedDocuments(mixture, ROW)), list(expected))


def test_what_rows_are_known_by_changes_with_the_documents() -> None:
    first = PackedDocuments(documents(), ROW).fingerprint()
    assert first == PackedDocuments(documents(), ROW).fingerprint()
    assert first != PackedDocuments(documents(), ROW, seed=1).fingerprint()
    assert first != PackedDocuments(documents()[1:], ROW).fingerprint()


def test_a_run_knows_bins_by_their_checksums_and_not_by_what_is_open(tmp_path: Path) -> None:
    write_token_bin(tmp_path / "text", documents())
    rows = PackedDocuments(TokenBins(tmp_path), ROW)
    before = rows_checksum(rows)
    assert rows[0]["input_ids"].shape == (ROW,)
    assert rows_checksum(rows) == before is not None
    write_token_bin(tmp_path / "text", [document.flip(0) for document in documents()])
    assert rows_checksum(PackedDocuments(TokenBins(tmp_path), ROW)) != before
