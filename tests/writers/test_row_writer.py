"""Rows that the disk does not take."""

import logging
import os
from io import FileIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.writers.test_json_writer import rows_of
from treadle.events import EventStorage
from treadle.writers import JSONWriter


class FullDisk:
    """Takes some bytes of what is written beyond the end of a file, and then no more."""

    def __init__(self, room: int) -> None:
        self.room = room

    def __enter__(self) -> None:
        original = FileIO.write

        def write(file: Any, data: bytes) -> int:
            free = max(0, os.fstat(file.fileno()).st_size - file.tell()) + self.room
            if not free:
                raise OSError(28, "No space left on device")
            written: int = original(file, data[:free])
            self.room -= max(0, written - (free - self.room))
            return written

        kind = type("Full", (FileIO,), {"write": write})
        self._patch = patch("treadle.writers.row_file.FileIO", kind)
        self._patch.start()

    def __exit__(self, *exception: object) -> None:
        self._patch.stop()


@pytest.mark.parametrize("room", [0, 7])
def test_rows_that_a_full_disk_does_not_take_wait_and_those_that_are_there_stay(
    storage: EventStorage, tmp_path: Path, room: int, caplog: pytest.LogCaptureFixture
) -> None:
    path, writer = tmp_path / "metrics.json", JSONWriter(tmp_path / "metrics.json")
    storage.put_scalar("loss", 1.0, cur_iter=1)
    storage.put_scalar("score", 1.0, cur_iter=2)
    writer.write()
    writer.close()
    with FullDisk(room), caplog.at_level(logging.WARNING):
        storage.put_scalar("late", 0.5, cur_iter=1)
        storage.put_scalar("loss", 2.0, cur_iter=3)
        writer.write()
        assert f"rows of metrics wait to be written to {path}: [Errno 28] No space left on device" in caplog.text
        storage.put_scalar("score", 3.0, cur_iter=4)
        writer.write()
        writer.close()
    assert f"{path} lacks the rows of the iterations [1, 3, 4]" in caplog.text
    writer.write()
    assert rows_of(path) == [
        {"iteration": 1, "late": 0.5, "loss": 1.0},
        {"iteration": 2, "score": 1.0},
        {"iteration": 3, "loss": 1.5},
        {"iteration": 4, "score": 2.0},
    ]
