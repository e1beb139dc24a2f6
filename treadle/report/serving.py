"""The runs in a folder on a page that follows them, for browsers on this machine."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from treadle.errors import ConfigError
from treadle.report.page import page_of
from treadle.report.payload import names_of, payload_of
from treadle.run_reading import PANELS, TRIALS, Run, find_runs, read_run
from treadle.run_status import STATUS

LOOPBACK = "127.0.0.1"
WATCHED = ("metrics.jsonl", STATUS, "manifest.json", "log.txt", TRIALS)
"""The files of a run that change while it trains; and so do its panels."""
REFRESH = 2.0
"""Seconds between two questions of a page for what is new."""


class ReportServer(ThreadingHTTPServer):
    """Serves the page of the runs in some folders, to this machine only.

    Args:
        folders: Folders of runs, or folders that hold such.
        port: Where to listen; 0 takes a free one.
        refresh: How often a page asks for what is new, in seconds.

    Raises:
        ConfigError: A folder is not there, or the port is taken.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, folders: list[Path], port: int = 0, refresh: float = REFRESH) -> None:
        for folder in folders:
            if not folder.is_dir():
                raise ConfigError(f"there is no folder {folder}")
        self.folders, self.refresh = folders, refresh
        try:
            super().__init__((LOOPBACK, port), _Answer)
        except OSError as error:
            raise ConfigError(f"cannot listen on port {port}: {error}; give another one with --port") from error

    @property
    def address(self) -> str:
        """Where a browser finds the page."""
        return f"http://{LOOPBACK}:{self.server_address[1]}/"

    def runs(self) -> list[Run]:
        """Return the runs as they are now; one that is removed meanwhile is left out."""
        return list(self._read())

    def _read(self) -> Iterator[Run]:
        paths = [(folder, path) for folder in self.folders for path in find_runs(folder)]
        names = [path.name if path == folder else str(path.relative_to(folder)) for folder, path in paths]
        # A run is known by its name: of two folders with runs of one name, the page says which is which.
        unlike = names_of([path for _, path in paths])
        for (_, path), name, other in zip(paths, names, unlike, strict=True):
            try:
                yield read_run(path, name if names.count(name) == 1 else other)
            except (ConfigError, OSError):
                continue

    def tag(self) -> str:
        """Return what changes whenever a file of a run does: a page that has seen it is sent nothing."""
        seen = [
            (str(file), file.stat().st_mtime_ns, file.stat().st_size)
            for folder in self.folders
            for path in find_runs(folder)
            for file in (*(path / name for name in WATCHED), *sorted((path / PANELS).glob("*")))
            if file.is_file()
        ]
        return f'"{hashlib.sha256(json.dumps(seen).encode()).hexdigest()[:32]}"'


class _Answer(BaseHTTPRequestHandler):
    """Answers one browser."""

    server: ReportServer

    def do_GET(self) -> None:
        """Send the page, or what is new for it."""
        # A page of another site that has its name point here must not read the runs.
        host = self.headers.get("Host", "").rpartition(":")[0]
        pages: dict[str, Callable[[], None]] = {"/": self._send_page, "/data.json": self._send_data}
        if host not in (LOOPBACK, "localhost"):
            self.send_error(HTTPStatus.FORBIDDEN, "only for browsers on this machine")
        elif self.path in pages:
            pages[self.path]()
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _send_page(self) -> None:
        page = page_of(self.server.runs(), live=self.server.refresh)
        self._send(page, "text/html; charset=utf-8")

    def _send_data(self) -> None:
        tag = self.server.tag()
        if self.headers.get("If-None-Match") == tag:
            self.send_response(HTTPStatus.NOT_MODIFIED)
            self.end_headers()
            return
        self._send(json.dumps(payload_of(self.server.runs()), allow_nan=False), "application/json", ETag=tag)

    def _send(self, text: str, kind: str, **headers: str) -> None:
        content = text.encode()
        self.send_response(HTTPStatus.OK)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing: the terminal belongs to whoever started the server."""


def serve(folders: list[Path], port: int, announce: Callable[[str], None]) -> None:
    """Serve the page of the runs in `folders` until Ctrl-C."""
    with ReportServer(folders, port) as server:
        announce(f"{server.address}  (Ctrl-C ends it)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            announce(f"no longer serving {os.linesep.join(map(str, folders))}")
