"""The runs in a folder on a page that follows them, for browsers on this machine."""

import hashlib
import json
import os
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from treadle.errors import ConfigError
from treadle.runs.heartbeat import HEARTBEAT
from treadle.runs.metric_rows import MetricLines
from treadle.runs.reader import PANELS, TRIALS, Run, Start, find_runs, read_any_run
from treadle.runs.status import STATUS
from treadle.tools.report.page import render_page
from treadle.tools.report.payload import Metrics, build_payload, short_names

LOOPBACK = "127.0.0.1"
WATCHED = ("metrics.jsonl", STATUS, HEARTBEAT, "manifest.json", "log.txt", TRIALS)
"""The files of a run that change while it trains; and so do its panels."""
PATIENCE = 10.0
"""Seconds that a browser may take to say what it wants, or to take an answer."""
MOST_THREADS = 32
"""Browsers that are answered at once; who comes then is to come again."""
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
    request_queue_size = 64

    def __init__(self, folders: list[Path], port: int = 0, refresh: float = REFRESH) -> None:
        for folder in folders:
            if not folder.is_dir():
                raise ConfigError(f"there is no folder {folder}")
        self.folders, self.refresh = folders, refresh
        self._followed: dict[Path, _FollowedRun] = {}
        # One of several browsers reads what is new, for all of them.
        self._reading = threading.RLock()
        self._sent: tuple[str, bytes] | None = None
        self._colours: dict[str, int] = {}
        self._room = threading.BoundedSemaphore(MOST_THREADS)
        try:
            super().__init__((LOOPBACK, port), _RequestHandler)
        except OSError as error:
            raise ConfigError(f"cannot listen on port {port}: {error}; give another one with --port") from error

    @property
    def address(self) -> str:
        """Where a browser finds the page."""
        return f"http://{LOOPBACK}:{self.server_address[1]}/"

    def runs(self) -> list[Run]:
        """Return the runs as they are now; one that is removed meanwhile is left out."""
        with self._reading:
            return list(self._read())

    def _read(self) -> Iterator[Run]:
        paths = [(folder, path) for folder in self.folders for path in find_runs(folder)]
        names = [path.name if path == folder else str(path.relative_to(folder)) for folder, path in paths]
        # A run is known by its name: of two folders with runs of one name, the page says which is which.
        unlike = short_names([path for _, path in paths])
        self._followed = {path: self._followed.get(path) or _FollowedRun(path) for _, path in paths}
        for (_, path), name, other in zip(paths, names, unlike, strict=True):
            try:
                yield self._followed[path].now(name if names.count(name) == 1 else other)
            except (ConfigError, OSError):
                continue

    def tag(self) -> str:
        """Return what changes whenever a file of a run does: a page that has seen it is sent nothing."""
        seen = [
            fact
            for folder in self.folders
            for path in find_runs(folder)
            for file in (*(path / name for name in WATCHED), *sorted((path / PANELS).glob("*")))
            if (fact := _fact(file)) is not None
        ]
        return f'"{hashlib.sha256(json.dumps(seen).encode()).hexdigest()[:32]}"'

    def data(self) -> tuple[str, bytes]:
        """Return what pages are to show, as JSON, and its tag; it is made once for all that ask."""
        with self._reading:
            tag = self.tag()
            if self._sent is None or self._sent[0] != tag:
                self._sent = tag, json.dumps(self._payload(), allow_nan=False).encode()
            return self._sent

    def _payload(self) -> dict[str, Any]:
        return build_payload(self.runs(), colours=self._colours)

    def page(self) -> str:
        """Return the page as it is now."""
        with self._reading:
            return render_page(self.runs(), live=self.refresh, colours=self._colours)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, where one is left: whoever opens hundreds of connections does not get as many."""
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and make room for the next."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a browser that left in the middle of an answer; all else goes on stderr, as always."""
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


def _fact(file: Path) -> tuple[str, int, int] | None:
    try:
        facts = file.stat()
    except (OSError, ValueError):
        return None
    return (str(file), facts.st_mtime_ns, facts.st_size) if stat.S_ISREG(facts.st_mode) else None


class _FollowedRun:
    """A run that is looked at again and again: of its metrics only what is new is read."""

    def __init__(self, path: Path) -> None:
        self._path, self._lines = path, MetricLines(path / "metrics.jsonl")
        self._metrics, self._starts = Metrics(), tuple[Start, ...]()

    def now(self, name: str) -> Run:
        """Return the run as it is now."""
        run = read_any_run(self._path, name)
        if self._lines.is_outdated() or run.starts != self._starts:
            # After a resume lines may have been taken back.
            self._lines, self._metrics, self._starts = self._lines.anew(), Metrics(run.starts), run.starts
        for rows in self._lines.read():
            self._metrics.add(rows)
        self._metrics.problems = self._lines.told()
        return replace(run, metrics=self._metrics)


class _RequestHandler(BaseHTTPRequestHandler):
    """Answers one browser."""

    server: ReportServer
    timeout = PATIENCE

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
        self._send(self.server.page().encode(), "text/html; charset=utf-8")

    def _send_data(self) -> None:
        tag, content = self.server.data()
        if self.headers.get("If-None-Match") == tag:
            self.send_response(HTTPStatus.NOT_MODIFIED)
            self.end_headers()
            return
        self._send(content, "application/json", ETag=tag)

    def _send(self, content: bytes, kind: str, **headers: str) -> None:
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
