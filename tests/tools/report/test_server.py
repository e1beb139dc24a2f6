"""Runs are shown live, to this machine only."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tools.report.runs import make_run, rows_of
from treadle.errors import ConfigError
from treadle.runs.panels import write_picture
from treadle.tools.report import server as serving
from treadle.tools.report.server import ReportServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ReportServer]:
    make_run(tmp_path / "runs" / "first", rows_of([2.0, 1.0]))
    with ReportServer([tmp_path / "runs"]) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def ask(server: ReportServer, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(*server.server_address[:2])
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    found = answer.status, dict(answer.getheaders()), answer.read()
    connection.close()
    return found


def test_the_page_asks_for_what_is_new(server: ReportServer) -> None:
    status, headers, body = ask(server, "/")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert b"const LIVE = 2.0;" in body
    assert b'"name":"first"' in body


def test_runs_of_one_name_in_two_folders_are_told_apart(tmp_path: Path) -> None:
    for name in ("old/first", "new/first", "new/second"):
        make_run(tmp_path / name, rows_of([2.0]))
    with ReportServer([tmp_path / "old", tmp_path / "new"]) as server:
        assert [run.name for run in server.runs()] == ["old/first", "new/first", "second"]


def test_only_what_is_new_is_sent_and_new_runs_and_rows_are_seen(server: ReportServer, tmp_path: Path) -> None:
    _, headers, body = ask(server, "/data.json")
    assert [run["name"] for run in json.loads(body)["runs"]] == ["first"]
    assert ask(server, "/data.json", **{"If-None-Match": headers["ETag"]})[0] == 304
    make_run(tmp_path / "runs" / "second", rows_of([3.0]))
    status, later, body = ask(server, "/data.json", **{"If-None-Match": headers["ETag"]})
    assert (status, [run["name"] for run in json.loads(body)["runs"]]) == (200, ["first", "second"])
    with (tmp_path / "runs" / "second" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(rows_of([3.0, 2.5])[1]) + "\n")
    body = ask(server, "/data.json", **{"If-None-Match": later["ETag"]})[2]
    assert json.loads(body)["runs"][1]["series"]["train_loss"]["value"] == [3.0, 2.5]


def test_it_listens_on_loopback_and_answers_to_no_other_name(server: ReportServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert ask(server, "/", Host="evil.example:80")[0] == 403
    assert ask(server, "/data.json", Host="evil.example")[0] == 403


@pytest.mark.parametrize("path", ["/../first/log.txt", "/etc/passwd", "/runs/first/log.txt", "/index.html"])
def test_no_file_is_served(server: ReportServer, path: str) -> None:
    assert ask(server, path)[0] == 404


def test_a_taken_port_and_a_missing_folder_are_refused(server: ReportServer, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on port \d+: .*; give another one with --port"):
        ReportServer([tmp_path], port=server.server_address[1])
    with pytest.raises(ConfigError, match="there is no folder"):
        ReportServer([tmp_path / "none"])


def test_a_new_panel_is_something_new(server: ReportServer, tmp_path: Path) -> None:
    before = server.tag()
    write_picture(tmp_path / "runs" / "first", "a_picture", "<svg/>")
    assert server.tag() != before
    shown = json.loads(ask(server, "/data.json")[2])["runs"][0]["panels"]
    assert [(panel["title"], panel["svg"]) for panel in shown] == [("a picture", "<svg/>")]


def test_connections_that_say_nothing_hold_no_more_than_some_threads(
    server: ReportServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving._RequestHandler, "timeout", 0.5)
    before = threading.active_count()
    silent = [socket.create_connection(server.server_address[:2]) for _ in range(60)]
    try:
        most = 0
        while (status := _status_or_none(server)) != 200:
            most = max(most, threading.active_count() - before)
            time.sleep(0.01)
    finally:
        for one in silent:
            one.close()
    assert most <= serving.MOST_THREADS
    assert status == 200


def _status_or_none(server: ReportServer) -> int | None:
    try:
        return ask(server, "/data.json")[0]
    except (ConnectionError, http.client.HTTPException):
        return None  # there was no room


def test_a_browser_that_leaves_in_the_middle_brings_no_traceback(
    server: ReportServer, capfd: pytest.CaptureFixture[str]
) -> None:
    for _ in range(5):
        one = socket.create_connection(server.server_address[:2])
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # it leaves without a goodbye
        one.sendall(b"GET / HTTP/1.0\r\nHost: 127.0.0.1:1\r\n\r\n")
        one.close()
    assert ask(server, "/data.json")[0] == 200
    while any("process_request_thread" in thread.name for thread in threading.enumerate()):
        time.sleep(0.01)
    assert "Traceback" not in capfd.readouterr().err
