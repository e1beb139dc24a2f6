"""Tokens in files that are mapped: written whole or not at all, and drawn by window or by document."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from treadle.data.sources import TokenBin, TokenBins, TokenBinWriter, write_token_bin
from treadle.errors import ConfigError, DataError

DOCUMENTS = [[1, 2, 3], [4], [], [5, 6, 7, 8, 9], [10, 11]]


@pytest.fixture
def books(tmp_path: Path) -> Path:
    write_token_bin(tmp_path / "books", DOCUMENTS, meta={"tokenizer": "by hand"})
    return tmp_path / "books"


def test_documents_are_read_as_they_were_written(books: Path) -> None:
    source = TokenBins(books)
    assert [document.tolist() for document in source] == DOCUMENTS  # type: ignore[attr-defined]
    assert source.lengths().tolist() == [3, 1, 0, 5, 2]
    header = source.bins[0].header
    assert (header.tokens, header.documents, header.meta) == (11, 5, {"tokenizer": "by hand"})


def test_the_files_are_those_of_the_format(books: Path) -> None:
    assert np.fromfile(books.with_suffix(".bin"), dtype="<u2").tolist() == list(range(1, 12))
    index = books.with_suffix(".idx").read_bytes()
    assert index[:8] == b"TRDLTOKS"
    assert np.frombuffer(index[-48:], dtype="<u8").tolist() == [0, 3, 4, 4, 9, 11]


def test_windows_are_neighbours_and_targets_are_the_tokens_that_follow(books: Path) -> None:
    source = TokenBins(books, 3)
    assert len(source) == 3
    assert [[part.tolist() for part in source[place]] for place in range(3)] == [
        [[1, 2, 3], [2, 3, 4]],
        [[4, 5, 6], [5, 6, 7]],
        [[7, 8, 9], [8, 9, 10]],
    ]
    as_dict = TokenBins(books, 3, keys=("input_ids", "labels"))[1]
    assert {name: values.tolist() for name, values in as_dict.items()} == {"input_ids": [4, 5, 6], "labels": [5, 6, 7]}


@pytest.mark.parametrize("keys", [None, ("input_ids", "labels")])
def test_a_batch_of_rows_is_what_collating_the_samples_gives(books: Path, keys: Any) -> None:
    source = TokenBins(books, 2, keys=keys)
    batch = source.rows()(torch.tensor([4, 0, 2]))
    expected = torch.utils.data.default_collate([source[4], source[0], source[2]])
    parts = zip(*(one.values() if keys else one for one in (batch, expected)), strict=True)
    assert all(torch.equal(one, other) for one, other in parts)


def test_windows_do_not_reach_from_one_bin_into_the_next(tmp_path: Path) -> None:
    write_token_bin(tmp_path / "b", [[9, 8, 7, 6]], dtype="uint32")
    write_token_bin(tmp_path / "a", [[1, 2, 3, 4, 5, 6]])
    source = TokenBins(tmp_path, 2)
    assert [source[place][0].tolist() for place in range(len(source))] == [[1, 2], [3, 4], [9, 8]]
    assert len(TokenBins([tmp_path / "b", tmp_path / "a.idx"])) == 2


def test_a_bin_is_pickled_without_its_tokens(tmp_path: Path) -> None:
    write_token_bin(tmp_path / "long", [list(range(5_000))])
    source = TokenBins(tmp_path / "long", 100)
    _ = source[3]
    pickled = pickle.dumps(source)
    assert len(pickled) < 2_000
    assert torch.equal(pickle.loads(pickled)[3][0], source[3][0])  # noqa: S301


def test_what_fails_leaves_no_bin_and_no_older_one(books: Path) -> None:
    with pytest.raises(DataError), TokenBinWriter(books) as writer:
        writer.add([-1])
    with pytest.raises(DataError, match=r"books\.idx is not there: the bin is not complete, or is none"):
        TokenBins(books)
    assert not list(books.parent.glob("*.part"))


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ([70_000], "document 1 has tokens from 70000 to 70000, and uint16 holds 0 to 65535; use a larger dtype"),
        ([3, -1], "document 1 has tokens from -1 to 3, and uint16 holds 0 to 65535"),
        ([0.5], "document 1 is of shape \\(1,\\) and type float64; give its tokens as a sequence of whole numbers"),
        ([[1]], "document 1 is of shape \\(1, 1\\)"),
    ],
)
def test_a_document_that_is_none_is_named(tmp_path: Path, document: Any, text: str) -> None:
    with pytest.raises(DataError, match=text):
        write_token_bin(tmp_path / "books", [[1], document])


def test_damage_is_found(books: Path) -> None:
    tokens, index = books.with_suffix(".bin"), books.with_suffix(".idx")
    whole, its_index = tokens.read_bytes(), index.read_bytes()
    tokens.write_bytes(whole[:-2])
    with pytest.raises(DataError, match=r"books\.bin has 20 bytes, and its index says 22; write the bin again"):
        TokenBins(books)
    tokens.write_bytes(b"\xff" + whole[1:])
    with pytest.raises(DataError, match=r"books\.bin is damaged: its checksum is [0-9a-f]{8}, and its index says"):
        TokenBins(books).verify()
    tokens.write_bytes(whole)
    TokenBins(books).verify()
    index.write_bytes(its_index.replace(b"uint16", b"uint32"))
    with pytest.raises(DataError, match=r"books\.idx is damaged: its header has another checksum"):
        TokenBins(books)
    index.write_bytes(its_index[:-8] + b"\x09" + its_index[-7:])
    with pytest.raises(DataError, match=r"books\.idx is damaged: its offsets have another checksum"):
        TokenBins(books).lengths()
    index.write_bytes(b"nothing of the kind at all")
    with pytest.raises(DataError, match=r"books\.idx is no index of a token bin"):
        TokenBin(books)
    index.write_bytes(its_index[:8] + b"\x02" + its_index[9:])
    with pytest.raises(DataError, match=r"books\.idx has version 2 of the format, and this is version 1"):
        TokenBin(books)


def test_what_cannot_be_meant_is_refused(books: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="TokenBins: length=0 must be a whole number above 0"):
        TokenBins(books, 0)
    with pytest.raises(ConfigError, match="names inputs and targets, and documents have none; give length="):
        TokenBins(books, keys=("a", "b"))
    with pytest.raises(DataError, match="11 tokens make no sample"):
        TokenBins(books, 11)
    with pytest.raises(ConfigError, match="dtype='uint8' does not exist"):
        TokenBinWriter(books, dtype="uint8")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"has no token bin, a file that ends in \.idx"):
        TokenBins(tmp_path / "empty")
    with pytest.raises(DataError, match="no bin was named"):
        TokenBins([])
    with pytest.raises(IndexError, match="sample 5 of 5"):
        TokenBins(books)[5]


def test_the_fingerprint_is_that_of_the_tokens(books: Path) -> None:
    before = TokenBins(books).fingerprint()
    write_token_bin(books, [*DOCUMENTS[:-1], [10, 12]])
    after = TokenBins(books).fingerprint()
    assert before.keys() == after.keys() == {"books.bin"}
    assert before != after
