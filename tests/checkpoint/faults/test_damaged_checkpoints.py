"""A checkpoint that is not as it was written is noticed, reported and passed over for the one before."""

import json
import logging
import shutil
import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint.faults.damaged_runs import (
    FILES,
    STEPS,
    checkpoint,
    content_of,
    flips,
    store_of,
    train,
    truncations,
)
from tests.interrupting import assert_same_run, metric_lines, updates_of
from treadle.errors import CheckpointError


def sealed(content: dict[str, Any]) -> bytes:
    """Return a manifest with a checksum that is right."""
    seal = zlib.crc32(json.dumps(content, sort_keys=True).encode())
    return json.dumps({**content, "crc32": f"{seal:08x}"}).encode()


GARBAGE = {
    "nothing": b"",
    "zeros": bytes(4096),
    "no text": b"\xff\xfe\x00",
    "no JSON": b"{",
    "a number": b"1",
    "null": b"null",
    "a list": b"[]",
    "an empty object": b"{}",
    "too deep": b"[" * 100_000,
    "too deep an object": b'{"format":' * 20_000,
    "no files": sealed({"format": "treadle-checkpoint-1", "step": 9, "ranks": 1}),
    "files that are none": sealed({"format": "treadle-checkpoint-1", "step": 9, "ranks": 1, "files": [1]}),
    "no entry": sealed({"format": "treadle-checkpoint-1", "step": 9, "ranks": 1, "files": {}}),
    "entries that are none": sealed(
        {"format": "treadle-checkpoint-1", "step": 9, "ranks": 1, "files": dict.fromkeys(FILES, 5)}
    ),
    "ranks that are none": sealed({"format": "treadle-checkpoint-1", "step": 9, "ranks": "many", "files": {}}),
    "a newer format": sealed({"format": "treadle-checkpoint-9", "step": 9, "ranks": 1, "files": {}}),
    "another step": sealed({"format": "treadle-checkpoint-1", "step": 3, "ranks": 1, "files": {}}),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_cut_off_at_any_page_is_noticed(run: Path, name: str) -> None:
    file = checkpoint(run, 9) / name
    pages = 0
    for content in truncations(file.read_bytes()):
        with content_of(file, content):
            assert store_of(run).newest_good() == 6, f"{len(content)} bytes"
        pages += 1
    assert pages >= (7 if name == "rank_0.safetensors" else 2)
    assert store_of(run).newest_good() == 9


@pytest.mark.parametrize("name", FILES)
def test_one_flipped_bit_in_any_file_is_noticed(run: Path, name: str) -> None:
    file = checkpoint(run, 9) / name
    for content in flips(file.read_bytes(), most=300):
        with content_of(file, content):
            assert store_of(run).newest_good() == 6


@pytest.mark.parametrize("kind", GARBAGE)
def test_a_manifest_that_is_garbage_is_noticed(run: Path, kind: str) -> None:
    (checkpoint(run, 9) / "manifest.json").write_bytes(GARBAGE[kind])
    with pytest.raises(CheckpointError, match="step_00000009"):
        store_of(run).manifest(9, verify=True)
    assert store_of(run).newest_good() == 6


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_noticed(run: Path, name: str) -> None:
    (checkpoint(run, 9) / name).unlink()
    assert store_of(run).newest_good() == 6


def test_a_checkpoint_that_was_renamed_is_not_taken_for_that_of_another_step(run: Path) -> None:
    checkpoint(run, 9).rename(checkpoint(run, 12))
    with pytest.raises(CheckpointError, match=r"step_00000012 holds the checkpoint of step 9; it was renamed"):
        store_of(run).manifest(12)
    assert store_of(run).newest_good() == 6


def test_what_is_no_checkpoint_is_not_looked_at(run: Path) -> None:
    folder = run / "checkpoints"
    for name in ("step_12", "step_abc", "step_²", "step_", ".DS_Store", "step_00000013.replaced.old"):
        (folder / name).mkdir()
    (folder / "step_00000014").write_text("a file")
    assert store_of(run).steps() == list(STEPS)
    assert store_of(run).newest_good() == 9


def damage_by_flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def damage_by_cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("damage", [damage_by_flip, damage_by_cut, Path.unlink])
@pytest.mark.parametrize("name", FILES)
def test_a_run_goes_on_from_the_checkpoint_before_and_ends_as_if_nothing_was(
    finished_run: Path, run: Path, name: str, damage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    damage(checkpoint(run, 9) / name)
    with caplog.at_level(logging.WARNING):
        resumed = train(run)
    assert f"skipping a damaged checkpoint: {checkpoint(run, 9)}" in caplog.text
    assert "resuming from step 6" in (run / "log.txt").read_text()
    assert updates_of(resumed) == (6, 3)
    assert_same_run(resumed, train(None))
    assert metric_lines(run) == metric_lines(finished_run)
    assert store_of(run).newest_good() == 9
    assert store_of(run).pointer("last") == 9


def test_a_run_goes_on_from_the_oldest_checkpoint_if_no_other_is_whole(run: Path) -> None:
    damage_by_flip(checkpoint(run, 6) / "rank_0.safetensors")
    shutil.rmtree(checkpoint(run, 9))
    resumed = train(run)
    assert "resuming from step 3" in (run / "log.txt").read_text()
    assert updates_of(resumed) == (3, 6)
    assert_same_run(resumed, train(None))


POINTERS = [b"", b"\xff\xff", b"step_00000099", b"../../elsewhere", b"step_\xc2\xb2", b"step_" + b"9" * 5000, b"-1"]


@pytest.mark.parametrize("content", POINTERS)
def test_a_pointer_that_is_garbage_points_nowhere_until_the_run_goes_on(run: Path, content: bytes) -> None:
    (run / "checkpoints" / "last").write_bytes(content)
    (run / "checkpoints" / "best").write_bytes(content)
    assert store_of(run).pointer("last") is None
    assert store_of(run).newest_good() == 9
    assert updates_of(train(run)) == (9, 0)
    assert (run / "checkpoints" / "last").read_text() == "step_00000009"
    assert not (run / "checkpoints" / "best").exists()


def test_metrics_that_were_lost_cost_no_checkpoint_and_are_told(run: Path) -> None:
    shutil.rmtree(checkpoint(run, 9))
    (run / "metrics.jsonl").unlink()
    resumed = train(run)
    assert updates_of(resumed) == (6, 3)
    assert_same_run(resumed, train(None))
    assert [line["step"] for line in metric_lines(run)] == [6, 9]
    log = (run / "log.txt").read_text()
    assert "resuming from step 6" in log
    assert log.count("metrics.jsonl is not what it was when the checkpoint was written (0 bytes instead of ") == 1
    assert "the run continues, and its curves lack what was reported before step 6" in log
