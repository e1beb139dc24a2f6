"""What token bins hold is counted by hand, and shown by `treadle data inspect`."""

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.data.prepare.conftest import texts, write_lines
from treadle.cli import app
from treadle.data.prepare import inspect_bins
from treadle.data.prepare.inspection import sample_documents
from treadle.data.sources import write_token_bin
from treadle.errors import DataError


@pytest.fixture
def two(tmp_path: Path) -> Path:
    write_token_bin(tmp_path / "a", [[1], [2, 3], [], [4, 5, 6], [2, 3]])
    write_token_bin(tmp_path / "b", [[4, 5, 6], [9] * 9], dtype="uint32")
    return tmp_path


def test_lengths_and_duplicates_are_counted(two: Path) -> None:
    told: list[tuple[int, int]] = []
    found = inspect_bins(two, told=lambda *numbers: told.append(numbers))
    assert (found.bins, found.documents, found.tokens) == (2, 7, 20)
    assert (found.shortest, found.longest, found.mean) == (0, 9, pytest.approx(20 / 7))
    assert found.percentiles == {1: 0, 25: 1, 50: 2, 75: 3, 99: 3}
    assert found.histogram == ((0, 0, 1), (1, 1, 1), (2, 3, 4), (4, 7, 0), (8, 15, 1))
    # 2 3 in one bin, and 4 5 6 in both, stored in another type.
    assert found.duplicates == 2
    assert found.dtypes == ("uint16", "uint32")
    assert found.size == sum(path.stat().st_size for path in two.iterdir())
    assert told == [(5, 7), (2, 7)]
    assert inspect_bins(two, duplicates=False).duplicates is None


def test_samples_are_drawn_by_a_seed(two: Path) -> None:
    drawn = sample_documents(two, 4, seed=1)
    assert [(name, number, list(tokens)) for name, number, tokens in drawn] == [
        (name, number, list(tokens)) for name, number, tokens in sample_documents(two, 4, seed=1)
    ]
    assert len(sample_documents(two, 100, seed=0)) == 7
    by_place = {(name, number): list(tokens) for name, number, tokens in sample_documents(two, 100, seed=0)}
    assert by_place["b.bin", 1] == [9] * 9


def test_text_is_prepared_and_inspected_by_commands(tmp_path: Path, tokenizer: Path) -> None:
    lines = [*texts(50), "word1 word2", "word1 word2"]
    write_lines(tmp_path / "web.jsonl", lines)
    output = str(tmp_path / "tokens")
    command = ["data", "prepare", str(tmp_path / "web.jsonl"), "-t", str(tokenizer), "-o", output]
    first = CliRunner().invoke(app, command)
    assert first.exit_code == 0, first.output
    assert "of 52 documents in" in first.output
    assert "1 bin; uint16; <eos> behind each document" in first.output
    second = CliRunner().invoke(app, command)
    assert "1 bin, 1 of them made before; uint16" in second.output
    seen = CliRunner().invoke(app, ["data", "inspect", output, "-t", str(tokenizer), "--samples", "52", "--verify"])
    assert seen.exit_code == 0, seen.output
    assert "all checksums are right" in seen.output
    assert f"{52 - len(set(lines))} duplicates, 3.8% of the documents" in seen.output
    assert "part-000000.bin, document 51, 3 tokens:\n  word1 word2" in seen.output
    bare = CliRunner().invoke(app, ["data", "inspect", output, "--no-duplicates", "--samples", "1"])
    assert "duplicate" not in bare.output
    assert "made with words" in bare.output


def unwrapped(result: Result) -> str:
    """Return what a command printed, in one line: where it breaks lines depends on the length of a path."""
    return " ".join(result.output.split())


def test_commands_say_what_is_wrong(tmp_path: Path, two: Path) -> None:
    write_lines(tmp_path / "web.jsonl", ["word1"])
    asked = CliRunner().invoke(app, ["data", "prepare", str(tmp_path / "web.jsonl"), "-o", str(tmp_path / "tokens")])
    assert asked.exit_code == 1
    assert "treadle data prepare: text becomes tokens by a tokenizer; name one with --tokenizer" in unwrapped(asked)
    data = bytearray((two / "a.bin").read_bytes())
    data[0] ^= 1
    (two / "a.bin").write_bytes(data)
    damaged = CliRunner().invoke(app, ["data", "inspect", str(two), "--verify"])
    assert damaged.exit_code == 1
    assert "a.bin is damaged: its checksum is" in unwrapped(damaged)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="has no token bin"):
        inspect_bins(tmp_path / "empty")
