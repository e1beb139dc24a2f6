"""Optuna's journal in a file that survives being killed in the middle of a line.

Optuna's own file backend holds its lock as a file, which a killed process leaves behind for half a minute, and takes a
line that was cut short for damage. Here the system holds the lock, and gives it back when the process dies; a line that
was cut short was never said, and is removed by whoever writes next.

To be killed loses nothing that was written. For the case that the power goes, the end of a trial waits for the disk,
but not more than ten times a second: what is lost then is a tenth of a second of work at most.
"""

import fcntl
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from optuna.storages.journal import BaseJournalBackend

from treadle.files.atomic_io import sync_file

CREATE_STUDY, CREATE_TRIAL, SET_TRIAL_STATE = 0, 4, 6
"""Numbers that Optuna gives the operations of a journal."""
RUNNING = 0
CHUNK = 1 << 16
SYNC_SECONDS = 0.1
"""How long the end of a trial may be on its way to the disk while others end."""


class Journal(BaseJournalBackend):
    """The file behind a `JournalStorage`; any number of processes may use it at once.

    Args:
        path: The file; it and its folder are made if they are not there.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not self.path.exists()
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        if is_new:
            sync_file(self.path.parent)
        self._lock = threading.RLock()
        self._holds = 0
        self._place = (0, 0)  # a log number, and the byte it begins at
        self._synced, self._is_behind = -SYNC_SECONDS, False
        self._clean = 0  # up to here the file is known to end with a whole line

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        """Return the logs from this number on; a line that is not whole yet is left for the next time."""
        number, offset = self._place if self._place[0] <= log_number_from else (0, 0)
        whole = self._read_from(offset).rpartition(b"\n")[0]
        lines = whole.split(b"\n") if whole else []
        self._place = (number + len(lines), offset + len(whole) + bool(lines))
        return map(json.loads, lines[log_number_from - number :])

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Add logs, all or none of them."""
        text = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs).encode()
        with self.exclusive(), self._lock:
            end = self._repaired_end()
            try:
                written = os.write(self._file, text)
                if written != len(text):
                    raise OSError(f"{self.path}: only {written} of {len(text)} bytes could be written")
                self._is_behind = self._is_behind or any(map(_lasts, logs))
                if self._is_behind and time.monotonic() - self._synced >= SYNC_SECONDS:
                    self.sync()
            except OSError:
                with suppress(OSError):
                    os.ftruncate(self._file, end)
                raise
            self._clean = end + len(text)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep all other processes from writing; the block, and other threads of this one, may."""
        # Threads are not kept out: one that holds the lock of Optuna's storage may write while the block waits for it.
        with self._lock:
            if self._holds == 0:
                fcntl.flock(self._file, fcntl.LOCK_EX)
            self._holds += 1
        try:
            yield
        finally:
            with self._lock:
                self._holds -= 1
                if self._holds == 0:
                    fcntl.flock(self._file, fcntl.LOCK_UN)

    def sync(self) -> None:
        """Wait until everything that was written is on the disk."""
        if self._is_behind:
            os.fsync(self._file)
            self._synced, self._is_behind = time.monotonic(), False

    def close(self) -> None:
        """Close the file; everything is on the disk."""
        self.sync()
        os.close(self._file)

    def _read_from(self, offset: int) -> bytes:
        parts = []
        while part := os.pread(self._file, CHUNK, offset):
            parts.append(part)
            offset += len(part)
        return b"".join(parts)

    def _repaired_end(self) -> int:
        """Return where the file ends, after the part of a line that a killed process left there was cut off."""
        size = os.fstat(self._file).st_size
        if size in (0, self._clean) or os.pread(self._file, 1, size - 1) == b"\n":
            return size
        end = size
        while end:
            begin = max(0, end - CHUNK)
            place = os.pread(self._file, end - begin, begin).rfind(b"\n")
            if place >= 0:
                end = begin + place + 1
                break
            end = begin
        os.ftruncate(self._file, end)
        return end


def _lasts(log: dict[str, Any]) -> bool:
    """Whether a log is worth waiting for the disk."""
    operation = log.get("op_code")
    if operation == CREATE_TRIAL:
        return bool(log.get("state", RUNNING) != RUNNING)
    return bool(operation == CREATE_STUDY or (operation == SET_TRIAL_STATE and log.get("state") != RUNNING))
