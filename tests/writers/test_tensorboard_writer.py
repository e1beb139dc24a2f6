"""Metrics for TensorBoard, read back by TensorBoard."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.writers.conftest import resumed
from treadle.events import EventStorage
from treadle.writers import TensorboardWriter, TensorboardXWriter

pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")


def read(folder: Path, *, purge: bool = True) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    sizes = {"images": 0, "histograms": 0, "scalars": 0}
    return EventAccumulator(str(folder), size_guidance=sizes, purge_orphaned_data=purge).Reload()


def curve(folder: Path, name: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in read(folder).Scalars(name)]


def test_scalars_are_written_once_smoothed_or_raw(storage: EventStorage, tmp_path: Path) -> None:
    writer = TensorboardWriter(tmp_path, window_size=2)
    for iteration, value in enumerate([1.0, 3.0, 8.0]):
        storage.iter = iteration
        storage.put_scalar("loss", value)
        storage.put_scalar("lr", value, smoothing_hint=False)
        writer.write()
        writer.write()
    storage.put_scalar("recall", [0.5, 1.0], kind="epoch")
    storage.put_scalar("note", "words", kind="epoch")
    storage.put_scalar("bad", math.nan)
    writer.write()
    writer.close()
    assert curve(tmp_path, "loss") == [(0, 1.0), (1, 2.0), (2, 5.5)]
    assert curve(tmp_path, "lr") == [(0, 1.0), (1, 3.0), (2, 8.0)]
    assert curve(tmp_path, "recall/1") == [(2, 1.0)]
    assert math.isnan(curve(tmp_path, "bad")[0][1])
    assert "note" not in read(tmp_path).Tags()["scalars"]


def test_images_are_written_once(storage: EventStorage, tmp_path: Path) -> None:
    writer = TensorboardXWriter(tmp_path)
    storage.iter = 4
    storage.put_image("floats", torch.full((3, 2, 5), 0.5))
    storage.put_image("bytes", torch.zeros(1, 4, 3, dtype=torch.uint8))
    writer.write()
    writer.write()
    writer.close()
    log = read(tmp_path)
    sizes = {
        name: [(event.step, event.height, event.width) for event in log.Images(name)] for name in ("floats", "bytes")
    }
    assert sizes == {"floats": [(4, 2, 5)], "bytes": [(4, 4, 3)]}
    assert len(storage.images()) == 2, "they are there for other writers too"


def test_histograms_are_written_once(storage: EventStorage, tmp_path: Path) -> None:
    writer = TensorboardWriter(tmp_path)
    storage.put_histogram("weights", torch.tensor([0.0, 1.0, 3.0, 4.0]), bins=2)
    storage.put_histogram("same", torch.tensor([2.0, 2.0]), bins=2)
    storage.put_histogram("none", torch.tensor([math.nan]), bins=2)
    writer.write()
    writer.write()
    writer.close()
    log = read(tmp_path)
    (weights,) = log.Histograms("weights")
    value = weights.histogram_value
    assert (value.min, value.max, value.num, value.sum, value.sum_squares) == (0.0, 4.0, 4.0, 8.0, 26.0)
    assert sum(value.bucket) == 4.0
    assert sum(log.Histograms("same")[0].histogram_value.bucket) == 2.0
    assert "none" not in log.Tags()["histograms"]


def test_b34_a_run_that_goes_on_hides_what_was_written_after_its_checkpoint(tmp_path: Path) -> None:
    first, writer = EventStorage(), TensorboardWriter(tmp_path)
    with first:
        for iteration in range(5):
            first.iter = iteration
            first.put_scalar("loss", float(iteration), smoothing_hint=False)
            writer.write()
            if iteration == 2:
                checkpoint = resumed(first)
        writer.close()
    with checkpoint:
        again = TensorboardWriter(tmp_path)
        for iteration in (3, 4, 5):
            checkpoint.iter = iteration
            checkpoint.put_scalar("loss", 10.0 * iteration, smoothing_hint=False)
            again.write()
        again.close()
    assert curve(tmp_path, "loss") == [(0, 0.0), (1, 1.0), (2, 2.0), (3, 30.0), (4, 40.0), (5, 50.0)]


def test_a_log_that_was_closed_goes_on(storage: EventStorage, tmp_path: Path) -> None:
    writer = TensorboardWriter(tmp_path)
    for iteration in range(3):
        storage.put_scalar("loss", 1.0, cur_iter=iteration)
        writer.write()
        writer.close()
    # Files of one second are read in the order of their names, in which the tenth of a process comes before the ninth.
    events = read(tmp_path, purge=False).Scalars("loss")
    assert sorted((event.step, event.value) for event in events) == [(0, 1.0), (1, 1.0), (2, 1.0)]


def test_nothing_is_made_before_the_first_write(tmp_path: Path) -> None:
    TensorboardWriter(tmp_path / "log").close()
    assert not (tmp_path / "log").exists()
