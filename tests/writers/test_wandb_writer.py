"""Metrics for Weights & Biases, logged offline and read back from its files."""

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.writers.conftest import resumed
from treadle.errors import ConfigError
from treadle.events import EventStorage
from treadle.writers import WandbWriter

pytest.importorskip("wandb", reason="the extra wandb is not installed")

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is sent, and nothing is printed."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_CONSOLE", "off")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")


BLOCK = 32768
"""The files of wandb are logs in the manner of LevelDB: pieces with a head of 7 bytes, which cross no block."""
LAST_PIECES = (1, 4)


def pieces(data: bytes) -> Iterator[bytes]:
    """Yield the records of such a log; the first 7 bytes say what it is."""
    place, record = 7, b""
    while place + 7 <= len(data):
        if BLOCK - place % BLOCK < 7:
            place += BLOCK - place % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + 7])
        record += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in LAST_PIECES:
            yield record
            record = b""


def records_of(path: Path) -> list[Any]:
    """Return what a run logged, once it is all there: wandb's own process writes it after the run was finished."""
    from wandb.proto import wandb_internal_pb2

    for _ in range(600):
        found = [wandb_internal_pb2.Record.FromString(piece) for piece in pieces(path.read_bytes())]
        if found and found[-1].WhichOneof("record_type") == "exit":
            return found
        time.sleep(0.05)
    raise AssertionError(f"wandb never completed {path}")


def records(folder: Path) -> list[Any]:
    """Return everything that the runs in a folder logged, in the order of their beginnings."""
    files = sorted(folder.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.parent.name)
    return [record for path in files for record in records_of(path)]


def wait_for_the_next_second() -> None:
    """Wait until wandb gives a run of the same id another folder: it names them by the second."""
    begun = time.strftime("%S")
    while time.strftime("%S") == begun:
        time.sleep(0.05)


def rows(folder: Path) -> list[dict[str, Any]]:
    logged = [record.history for record in records(folder) if record.WhichOneof("record_type") == "history"]
    named = [
        {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in row.item} for row in logged
    ]
    return [{name: value for name, value in row.items() if not name.startswith("_")} for row in named]


def run_ids(folder: Path) -> list[str]:
    return [record.run.run_id for record in records(folder) if record.WhichOneof("record_type") == "run"]


def test_scalars_images_and_histograms_are_logged_over_the_iteration(storage: EventStorage, tmp_path: Path) -> None:
    writer = WandbWriter("tests", dir=tmp_path, window_size=2, name="first")
    for iteration, value in enumerate([1.0, 3.0]):
        storage.iter = iteration
        storage.put_scalar("train/loss", value)
        writer.write()
        writer.write()
    storage.iter = 7
    storage.put_image("cat", torch.zeros(3, 4, 6, dtype=torch.bfloat16))
    storage.put_histogram("weights", torch.tensor([0.0, 1.0, 4.0]), bins=2)
    writer.write()
    writer.close()
    first, second, media = rows(tmp_path)
    assert (first, second) == ({"iteration": 0, "train/loss": 1.0}, {"iteration": 1, "train/loss": 2.0})
    assert media["iteration"] == 7
    assert (media["cat/height"], media["cat/width"]) == (4, 6)
    assert (media["weights/values"], media["weights/bins"]) == ([2, 1], [0.0, 2.0, 4.0])


def test_b34_a_run_that_goes_on_keeps_one_curve(tmp_path: Path) -> None:
    first, writer = EventStorage(), WandbWriter("tests", dir=tmp_path)
    with first:
        for iteration in range(5):
            first.put_scalar("loss", float(iteration), smoothing_hint=False, cur_iter=iteration)
            writer.write()
            if iteration == 2:
                first.iter = 2
                checkpoint = resumed(first)
        writer.close()
    wait_for_the_next_second()
    with checkpoint:
        again = WandbWriter("tests", dir=tmp_path)
        for iteration in (3, 4, 5):
            checkpoint.put_scalar("loss", float(iteration), smoothing_hint=False, cur_iter=iteration)
            again.write()
        again.close()
    assert len(set(run_ids(tmp_path))) == 1
    assert rows(tmp_path) == [{"iteration": step, "loss": float(step)} for step in range(6)]


def test_a_new_run_is_a_run_of_its_own(tmp_path: Path) -> None:
    writer = WandbWriter("tests", dir=tmp_path)
    for _ in range(2):
        with EventStorage() as storage:
            storage.put_scalar("loss", 1.0)
            writer.write()
            writer.close()
    assert len(set(run_ids(tmp_path))) == 2


def test_without_an_account_it_is_said_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    def refusing(**settings: Any) -> None:
        raise wandb.errors.UsageError("No API key configured. Use `wandb login` to log in.")

    monkeypatch.setattr(wandb, "init", refusing)
    writer = WandbWriter("tests", dir=tmp_path)
    with EventStorage(), pytest.raises(ConfigError) as error:
        writer.write()
    assert str(error.value) == (
        "WandbWriter cannot begin a run of Weights & Biases: No API key configured. Use `wandb login` to log in. To "
        f"keep the metrics in {tmp_path}, without an account, set WANDB_MODE=offline, or pass mode='offline'"
    )


def test_nothing_is_begun_before_the_first_write(tmp_path: Path) -> None:
    WandbWriter("tests", dir=tmp_path / "log").close()
    assert not (tmp_path / "log").exists()
