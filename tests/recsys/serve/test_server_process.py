"""A server as a process of its own: over sockets, with connections that say nothing, and ended by a signal."""

import asyncio
import http.client
import json
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from benchmarks.docs.browser import ABSENT, find_browser, looked_at
from tests.recsys.data.small import write_table
from tests.recsys.trainer.runs import interactions, settings
from treadle.errors import ConfigError
from treadle.recsys import Config, load_recommender
from treadle.recsys.quick_start import build
from treadle.recsys.serve.server.process import patient_protocol, serve

HEADER = ("user_id:token", "item_id:token", "rating:float", "timestamp:float")
SILENT = 1000


@pytest.fixture
def model_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_table(tmp_path / "dataset" / "toy", "toy.inter", HEADER, zip(*interactions().values(), strict=True))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TREADLE_DATA", raising=False)
    trainer, _, train, valid, _ = build(Config("EASE", "toy", config_dict=settings(tmp_path)))
    trainer.fit(train, valid, verbose=False)
    return Path(trainer.saved_model_file)


@pytest.fixture
def server(model_file: Path) -> Iterator[tuple["subprocess.Popen[str]", int]]:
    command = [sys.executable, "-m", "treadle", "recsys", "serve", str(model_file), "--port", "0", "--timeout", "60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("http://127.0.0.1:"), line + (process.stderr.read() if process.stderr else "")
            yield process, int(line.split(":")[2].split()[0])
        finally:
            process.kill()


@pytest.fixture
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = SILENT + 512
    if soft < wanted:
        if hard < wanted:
            pytest.skip(f"the system lets a process have {hard} files, and this needs {wanted}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
def test_a_server_answers_beside_silent_connections_and_ends_when_all_is_answered(
    server: tuple["subprocess.Popen[str]", int], model_file: Path, many_files: None
) -> None:
    process, port = server
    wanted = load_recommender(model_file).recommend(history=["i1", "i2"], k=4)["history 1"]
    body = json.dumps({"history": ["i1", "i2"], "k": 4}).encode()
    with ExitStack() as stack:
        for _ in range(SILENT):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        client = http.client.HTTPConnection("127.0.0.1", port)
        client.putrequest("POST", "/recommend")
        client.putheader("Content-Type", "application/json")
        client.putheader("Content-Length", str(len(body)))
        client.endheaders(body[:5])
        other = http.client.HTTPConnection("127.0.0.1", port)
        other.request("GET", "/health")
        assert json.loads(other.getresponse().read())["status"] == "ok"
        # The first request is half here when the signal comes: it is answered before the server ends.
        process.send_signal(signal.SIGTERM)
        client.send(body[5:])
        reply = client.getresponse()
        assert reply.status == 200
        assert [one["item"] for one in json.loads(reply.read())["items"]] == wanted
        client.close()
        other.close()
    out, error = process.communicate()
    assert process.returncode == 0, error
    assert out.endswith(f"no longer serving {model_file}\n")
    assert "Traceback" not in error


@pytest.mark.slow
@pytest.mark.skipif(find_browser() is None, reason=ABSENT)
def test_the_pages_ask_the_server_and_show_its_answer(
    server: tuple["subprocess.Popen[str]", int], model_file: Path
) -> None:
    wanted = load_recommender(model_file).recommend(history=["i1", "i2"], k=4)["history 1"]
    address = f"http://127.0.0.1:{server[1]}"
    page, told = looked_at(f"{address}/?history=i1,i2&k=4", "--dump-dom")
    assert told == []
    assert re.findall(r"<td>(i\d+)</td>", page) == wanted
    page, _ = looked_at(f"{address}/?history=i1,nothing", "--dump-dom")
    assert "history: the data has no item_id 'nothing'" in page
    docs, told = looked_at(f"{address}/docs", "--dump-dom")
    assert told == []
    assert "POST /recommend" in docs
    assert "exclude_seen" in docs


async def answer(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


def test_connections_that_say_nothing_or_never_end_to_ask_are_closed() -> None:
    uvicorn = pytest.importorskip("uvicorn", reason="the extra serve is not installed")

    async def session() -> list[bytes]:
        listener = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(answer, http=patient_protocol(0.01), lifespan="off", log_level="error")
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        heard = []
        for said in (b"", b"GET / HTTP/1.1\r\nHost: local"):
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            writer.write(said)
            heard.append(await reader.read())
            writer.close()
        server.should_exit = True
        await serving
        return heard

    assert asyncio.run(session()) == [b"", b""]


def test_a_port_that_is_taken_is_told_before_the_model_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen at 127.0.0.1:{port}: .*; give another --port"):
            serve(Path("no-such-run"), port=port, announce=print)
