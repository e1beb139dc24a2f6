"""A server of recommendations: what it answers, what it refuses, and that it goes on whatever comes."""

import asyncio
import logging
import re
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.recsys.serve.asgi import Client, Reply
from tests.recsys.serve.ready import ready
from treadle.errors import CheckpointError, ConfigError
from treadle.recsys import Recommender
from treadle.recsys.serve.server.app import Options, make_app
from treadle.recsys.serve.server.live_model import LiveModel
from treadle.recsys.serve.server.statistics import Statistics

Session = Callable[[Client], Coroutine[Any, Any, Any]]


class Served:
    """An application over a recommender that is given, and files that stand for it."""

    def __init__(self, folder: Path, recommender: Any, **options: Any) -> None:
        self.file = folder / "model.pth"
        self.file.write_text("first")
        self.recommender, self.problem = recommender, ""
        self.statistics = Statistics()
        self.model = LiveModel(folder, self.load, self.changed)
        self.application = make_app(self.model, self.statistics, Options(refresh=3600.0, **options))

    def load(self, place: Path) -> Any:
        if self.problem:
            raise CheckpointError(self.problem)
        return self.recommender

    def changed(self, well: bool) -> None:
        self.statistics.loads += well
        self.statistics.failed_loads += not well

    def run(self, session: Session) -> Any:
        async def whole() -> Any:
            async with Client(self.application) as client:
                return await session(client)

        return asyncio.run(whole())

    def post(self, path: str, **given: Any) -> Reply:
        reply: Reply = self.run(lambda client: client.post(path, **given))
        return reply


@pytest.fixture
def ease() -> Recommender:
    return ready("EASE")[1]


@pytest.fixture
def served(tmp_path: Path, ease: Recommender) -> Served:
    return Served(tmp_path, ease)


def test_a_list_over_http_is_that_of_the_recommender(served: Served, ease: Recommender) -> None:
    reply = served.post("/recommend", user="u3", k=4)
    assert reply.status == 200
    assert not reply.json["popular"]
    assert [one["item"] for one in reply.json["items"]] == ease.recommend("u3", k=4)["u3"]
    assert reply.headers["cache-control"] == "no-store"
    asked = {"history": ["i1", "i2"], "exclude": ["i0"], "filter": ["i0", "i3", "i4", "i5"], "explain": 1}
    found = served.post("/recommend", k=3, **asked).json["items"]
    wanted = ease.recommend(k=3, **asked)
    assert [one["item"] for one in found] == wanted["history 1"]
    assert [one["because"] for one in found] == wanted.because[0][: len(found)]
    alike = served.post("/similar", item="i4", k=3).json["items"]
    assert [one["item"] for one in alike] == ease.similar_items("i4", k=3)["i4"]


def test_somebody_unknown_gets_what_is_popular_only_if_that_was_asked_for(served: Served, ease: Recommender) -> None:
    assert served.post("/recommend", user="new").status == 404
    reply = served.post("/recommend", user="new", k=2, popular=True).json
    assert reply["popular"]
    assert [one["item"] for one in reply["items"]] == ease.recommend("new", k=2)["new"]


def test_more_items_than_there_are_is_all_of_them(served: Served, ease: Recommender) -> None:
    number = len(ease.items) - 1
    assert len(served.post("/recommend", user="u3", k=500, exclude_seen=False).json["items"]) == number
    assert len(served.post("/similar", item="i3", k=500).json["items"]) == number - 1


REFUSED: dict[str, tuple[int, str, dict[str, Any], str]] = {
    "unknown user": (404, "/recommend", {"user": "x"}, "the model knows nothing of the user 'x'; give a history, or"),
    "unknown item": (404, "/recommend", {"history": ["i1", "x"]}, "history: the data has no item_id 'x'"),
    "unknown excluded": (404, "/recommend", {"user": "u3", "exclude": ["x"]}, "exclude: the data has no item_id 'x'"),
    "nothing": (400, "/recommend", {}, "there is no user and no history to recommend by"),
    "empty history": (400, "/recommend", {"history": []}, "the history is empty"),
    "enormous history": (422, "/recommend", {"history": ["i1"] * 10_001}, "history: List should have at most 10000"),
    "types": (422, "/recommend", {"history": "i1"}, "history: Input should be a valid list"),
    "float token": (422, "/recommend", {"history": [1.5]}, "history.0"),
    "k as text": (422, "/recommend", {"user": "u3", "k": "5"}, "k: Input should be a valid integer"),
    "k too small": (422, "/recommend", {"user": "u3", "k": 0}, "k: Input should be greater than or equal to 1"),
    "k too large": (422, "/recommend", {"user": "u3", "k": 1001}, "k: Input should be less than or equal to 1000"),
    "other field": (422, "/recommend", {"uesr": "u3"}, "uesr is no field of this request; /docs has them"),
    "filter": (400, "/recommend", {"user": "u3", "filter": {"a": "b"}}, "filter names 'a', which is no field"),
    "no item": (422, "/similar", {}, "item: Field required"),
    "unknown similar": (404, "/similar", {"item": "x"}, "the data has no item_id 'x'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_request_that_cannot_be_meant_is_refused_in_one_line(served: Served, case: str) -> None:
    status, path, asked, message = REFUSED[case]
    reply = served.post(path, **asked)
    assert reply.status == status
    assert reply.json["error"].startswith(message)
    assert list(reply.json) == ["error"]


def test_requests_of_other_kinds_are_refused_and_the_server_goes_on(served: Served) -> None:
    limit = Options().most_bytes

    async def session(client: Client) -> list[Reply]:
        return [
            await client.ask("POST", "/recommend", [b'{"user": '], length=9),
            await client.ask("POST", "/recommend", [b"[1]"]),
            await client.ask("POST", "/recommend", [b'{"user": "u3"}'], kind="text/plain"),
            await client.ask("POST", "/recommend", [b"\xff\xfe"]),
            await client.ask("POST", "/recommend", [], length=10_000_000),
            await client.ask("POST", "/recommend", [b" " * 65_536] * (limit // 65_536 + 2)),
            await client.ask("GET", "/recommend"),
            await client.ask("GET", "/../etc/passwd"),
            await client.ask("POST", "/recommend", [b'{"user": "u3"}'], host="evil.example:80"),
            await client.post("/recommend", user="u3"),
        ]

    replies = served.run(session)
    assert [one.status for one in replies] == [422, 422, 422, 422, 413, 413, 405, 404, 403, 200]
    errors = [one.json.get("error", "") for one in replies]
    assert errors[0].startswith("the body is no JSON")
    assert errors[4] == errors[5] == "the body is too large; 1,048,576 bytes are taken at most"
    assert replies[4].headers["connection"] == "close"
    assert errors[8] == "only for programs on this machine; call it by 127.0.0.1 or localhost"


def test_a_body_that_does_not_come_is_not_waited_for(tmp_path: Path, ease: Recommender) -> None:
    served = Served(tmp_path, ease, patience=0.01)
    reply = served.run(lambda client: client.ask("POST", "/recommend", [b'{"us', None]))
    assert reply.status == 408
    assert reply.json["error"] == "the body did not come within 0.01 seconds"


class Slow:
    """A recommender that answers when it is let."""

    def __init__(self, recommender: Recommender) -> None:
        self._recommender = recommender
        self.let, self.begun = threading.Event(), threading.Event()
        self.sizes: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._recommender, name)

    def answer(self, asked: Any, k: int) -> Any:
        self.sizes.append(len(asked))
        self.begun.set()
        self.let.wait()
        return self._recommender.answer(asked, k)


async def under_way(slow: Slow) -> None:
    """Return when the model has been asked."""
    await asyncio.to_thread(slow.begun.wait)


async def turns() -> None:
    """Let all that can go on go on."""
    for _ in range(50):
        await asyncio.sleep(0)


def test_what_comes_while_the_model_is_busy_is_answered_together(tmp_path: Path, ease: Recommender) -> None:
    slow = Slow(ease)
    served = Served(tmp_path, slow)
    asked: list[dict[str, Any]] = [{"user": f"u{user}", "k": 1 + user % 4} for user in range(6)]
    asked[3] = {"history": ["nothing"]}

    async def session(client: Client) -> list[Reply]:
        first = asyncio.create_task(client.post("/recommend", user="u9"))
        await under_way(slow)
        others = [asyncio.create_task(client.post("/recommend", **one)) for one in asked]
        await turns()
        slow.let.set()
        return [await one for one in (first, *others)]

    first, *others = served.run(session)
    assert slow.sizes == [1, 5]
    assert first.status == 200
    assert [one.status for one in others] == [200, 200, 200, 404, 200, 200]
    for one, reply in zip(asked, others, strict=True):
        if "user" in one:
            wanted = ease.recommend(one["user"], k=one["k"])[one["user"]]
            assert [item["item"] for item in reply.json["items"]] == wanted


def test_where_too_many_wait_the_next_is_to_come_again(tmp_path: Path, ease: Recommender) -> None:
    slow = Slow(ease)
    served = Served(tmp_path, slow, patience=3600.0, waiting=1)

    async def session(client: Client) -> list[Reply]:
        first = asyncio.create_task(client.post("/recommend", user="u1"))
        await under_way(slow)
        second = asyncio.create_task(client.post("/recommend", user="u2"))
        await turns()
        third = await client.post("/recommend", user="u3")
        slow.let.set()
        return [await first, await second, third]

    first, second, third = served.run(session)
    assert [one.status for one in (first, second, third)] == [200, 200, 503]
    assert third.json["error"] == "1 requests wait already; come again in a second"
    assert third.headers["retry-after"] == "1"


def test_a_request_that_takes_too_long_is_given_up_and_takes_no_place(tmp_path: Path, ease: Recommender) -> None:
    slow = Slow(ease)
    served = Served(tmp_path, slow, patience=0.01, waiting=1)

    async def session(client: Client) -> list[Reply]:
        given_up = [await client.post("/recommend", user=user) for user in ("u1", "u2", "u3")]
        slow.let.set()
        while (last := await client.post("/recommend", user="u3")).status == 503:
            pass
        return [*given_up, last]

    replies = served.run(session)
    assert [one.status for one in replies] == [503, 503, 503, 200]
    assert {one.json.get("error") for one in replies[:3]} == {"no answer within 0.01 seconds; come again in a second"}


class Failing:
    """A recommender with a mistake in it."""

    def __init__(self, recommender: Recommender) -> None:
        self._recommender = recommender

    def __getattr__(self, name: str) -> Any:
        return getattr(self._recommender, name)

    def answer(self, asked: Any, k: int) -> Any:
        raise ZeroDivisionError("a secret of the program")


def test_a_failure_is_logged_and_told_without_the_program(
    tmp_path: Path, ease: Recommender, caplog: pytest.LogCaptureFixture
) -> None:
    served = Served(tmp_path, Failing(ease))
    with caplog.at_level(logging.ERROR):
        reply = served.post("/recommend", user="u3")
    assert (reply.status, reply.json) == (500, {"error": "the server failed at this request; its log has the reason"})
    assert b"secret" not in reply.body
    assert "ZeroDivisionError: a secret of the program" in caplog.text
    assert served.post("/similar", item="i3").status == 200


def test_a_newer_model_is_taken_up_while_requests_of_the_older_one_are_answered(
    tmp_path: Path, ease: Recommender
) -> None:
    slow, newer = Slow(ease), ready("ItemKNN")[1]
    served = Served(tmp_path, slow)

    async def session(client: Client) -> list[Any]:
        first = asyncio.create_task(client.post("/recommend", user="u3", k=3))
        await under_way(slow)
        served.recommender = newer
        served.file.write_text("a newer one")
        assert served.model.look()
        slow.let.set()
        return [(await first).json, (await client.post("/recommend", user="u3", k=3)).json]

    old, new = served.run(session)
    assert [one["score"] for one in old["items"]] == ease.recommend("u3", k=3).scores[0].tolist()
    assert [one["score"] for one in new["items"]] == newer.recommend("u3", k=3).scores[0].tolist()
    assert not served.model.look(), "nothing is newer"


def test_a_model_that_cannot_be_loaded_or_disappears_leaves_the_one_that_is_there(served: Served) -> None:
    served.problem = "it is damaged"
    served.file.write_text("damaged")
    assert not served.model.look()
    assert not served.model.look(), "it is not tried again as it is"
    health = served.run(lambda client: client.ask("GET", "/health")).json
    assert health["problem"].endswith(
        "cannot be loaded: it is damaged; what was loaded from " + f"{served.file} is served on"
    )
    served.file.unlink()
    assert not served.model.look()

    async def session(client: Client) -> list[Reply]:
        return [await client.ask("GET", "/health"), await client.post("/recommend", user="u3")]

    health, reply = served.run(session)
    assert health.json["source_present"] is False
    assert "holds no model" in health.json["problem"]
    assert reply.status == 200
    served.problem = ""
    served.file.write_text("whole again")
    assert served.model.look()
    assert served.run(lambda client: client.ask("GET", "/health")).json["problem"] == ""


def test_the_newest_model_of_a_folder_is_served(tmp_path: Path, ease: Recommender) -> None:
    served = Served(tmp_path, ease)
    run = tmp_path / "another"
    run.mkdir()
    (run / "BPR.pth").write_text("newer")
    assert served.model.look()
    assert served.model.source == run / "BPR.pth"
    with pytest.raises(CheckpointError, match="nowhere holds no model"):
        LiveModel(tmp_path / "nowhere", served.load)


def test_what_is_counted_is_told_as_prometheus_reads_it(served: Served) -> None:
    async def session(client: Client) -> str:
        await client.post("/recommend", user="u3")
        await client.post("/recommend", user="x")
        await client.ask("GET", "/a/path/of/somebody")
        return (await client.ask("GET", "/metrics")).body.decode()

    text = served.run(session)
    line = re.compile(r'[a-z_]+(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})? -?[0-9.e+-]+')
    assert all(line.fullmatch(one) for one in text.splitlines() if not one.startswith("# "))
    assert 'treadle_requests_total{path="/recommend",status="200"} 1\n' in text
    assert 'treadle_requests_total{path="/recommend",status="404"} 1\n' in text
    assert 'treadle_requests_total{path="other",status="404"} 1\n' in text
    assert "treadle_batch_size_count 2\n" in text
    assert "treadle_model_loads_total 1\n" in text


def test_the_pages_need_no_network(served: Served) -> None:
    async def session(client: Client) -> list[Reply]:
        return [await client.ask("GET", path) for path in ("/", "/docs", "/openapi.json")]

    page, docs, schema = served.run(session)
    for one in (page, docs):
        assert one.status == 200
        assert not re.search(rb"(src|href|url)\s*[=(]\s*[\"']?(https?:)?//", one.body)
        assert "default-src 'none'" in one.headers["content-security-policy"]
    assert set(schema.json["paths"]) == {"/recommend", "/similar", "/health", "/metrics"}
    fields = schema.json["components"]["schemas"]["RecommendRequest"]["properties"]
    assert {"user", "history", "k", "exclude", "filter"} <= set(fields)


def test_limits_that_let_nothing_through_are_refused() -> None:
    with pytest.raises(ConfigError, match="patience=0 must be more than 0"):
        Options(patience=0)
