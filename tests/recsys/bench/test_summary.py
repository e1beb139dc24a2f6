"""What the page of a benchmark shows: intervals, paired tests, costs, and the lists of single users."""

import json
import math
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.recsys.bench.tiny import benchmark
from treadle.errors import ConfigError
from treadle.recsys.bench import Benchmark
from treadle.recsys.bench.summary import read_leaderboard, summarize
from treadle.recsys.bench.users import read_values, sample_users
from treadle.recsys.evaluation import compare_models
from treadle.tools.report.leaderboard import render_leaderboard, write_leaderboard

LAST = {"split": {"LS": "valid_and_test"}, "order": "TO"}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Benchmark:
    """A model of popularity, one of pairs with two seeds, and one of sequences."""
    folder = tmp_path_factory.mktemp("summary")
    small = {"GRU4Rec.hidden_size": 8, "GRU4Rec.num_layers": 1}
    made = benchmark(folder, ["Pop", "BPR", "GRU4Rec"], seeds=(1, 2), epochs=1, eval_args=LAST, **small)
    board = made.run()
    assert not board.failed
    return made


@pytest.fixture(scope="module")
def shown(done: Benchmark) -> dict[str, Any]:
    return summarize(done.folder, done.leaderboard())


def test_intervals_are_those_of_the_mean_over_seeds_of_each_user(done: Benchmark, shown: dict[str, Any]) -> None:
    assert {one["model"] for one in shown["models"]} == {"Pop", "BPR", "GRU4Rec"}
    for one in shown["models"]:
        for name, known in one["metrics"].items():
            low, high = known["interval"]
            assert low <= known["mean"] <= high, (one["model"], name)
    runs = sorted((done.folder / "runs").glob("BPR-*"))
    values = []
    for run in runs:
        kept = read_values(run, "")
        assert kept is not None
        values.append(kept[1]["ndcg@5"])
    both = torch.stack(values).mean(dim=0)
    own = next(one for one in shown["models"] if one["model"] == "BPR")["metrics"]["ndcg@5"]
    assert own["mean"] == pytest.approx(float(both.mean()))
    spread = 1.96 * float(both.std()) / math.sqrt(len(both))
    assert own["interval"] == pytest.approx([own["mean"] - spread, own["mean"] + spread], abs=0.35 * spread)


def test_models_of_sequences_are_paired_with_others_by_their_users(done: Benchmark, shown: dict[str, Any]) -> None:
    best, *others = [one["model"] for one in shown["models"]]
    kept = {model: read_values(done.folder / "runs" / f"{model}-1", "same") for model in (best, *others)}
    tokens = {model: one[0] for model, one in kept.items() if one is not None}
    assert len(tokens) == 3
    assert len({tuple(one) for one in tokens.values()}) == 1
    runs = {model: one[1] for model, one in kept.items() if one is not None}
    assert len(compare_models(runs, ["ndcg@5"], baseline=best, resamples=50)) == 2
    assert shown["models"][0]["p"] is None
    assert all(0 < one["p"] <= 1 for one in shown["models"][1:])


def test_a_user_is_shown_with_what_each_model_recommends(done: Benchmark, shown: dict[str, Any]) -> None:
    users = shown["users"]
    assert set(users) == set(sample_users([f"u{user}" for user in range(24)]))
    for one in users.values():
        assert len(one["wanted"]) == 1
        # Of 12 items one is to be found; the rest is known, and nobody recommends it again.
        assert len(one["history"]) == 11
        assert one["wanted"][0] not in one["history"]
        assert set(one["lists"]) == {"Pop", "BPR", "GRU4Rec"}
        for items in one["lists"].values():
            assert len(items) == len(set(items)) == 10
            assert not set(items) & set(one["history"])
    # The metrics of a user follow from the list.
    tokens, values = read_values(done.folder / "runs" / "Pop-1", "") or ([], None)
    assert values is not None
    for user, one in users.items():
        hit = one["wanted"][0] in one["lists"]["Pop"][:5]
        assert float(values["recall@5"][tokens.index(user)]) == float(hit)


def test_other_users_are_shown_by_the_models_that_were_kept(done: Benchmark, shown: dict[str, Any]) -> None:
    board = read_leaderboard(done.folder)
    assert [line.model for line in board.lines] == [one["model"] for one in shown["models"]]
    chosen = summarize(done.folder, board, ["u3", "nobody"])["users"]
    assert chosen == {"u3": shown["users"]["u3"]}
    with pytest.raises(ConfigError, match=r"^none of the users \['nobody'\] is in the test of 'tiny'; give tokens of"):
        summarize(done.folder, board, ["nobody"])


def test_a_folder_without_a_benchmark_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no benchmark; give the --folder of treadle recsys bench$"):
        read_leaderboard(tmp_path)


class Page(HTMLParser):
    """The elements of a page, and what stands in its data."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.data = ""
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = dict(attrs).get("id") == "data"

    def handle_data(self, data: str) -> None:
        self.data += data if self._inside else ""

    def handle_endtag(self, tag: str) -> None:
        self._inside = False


def test_the_page_is_one_file_and_data_never_becomes_part_of_it(shown: dict[str, Any], tmp_path: Path) -> None:
    bad = "</script><img src=x onerror=alert(1)>"
    hostile = {**shown, "title": bad, "labels": {"i1": bad}, "notes": [bad], "failed": [[bad, "1", bad]]}
    plain, page = Page(), Page()
    plain.feed(render_leaderboard(shown))
    page.feed(write_leaderboard(hostile, tmp_path / "page.html").read_text())
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in plain.tags]
    assert json.loads(page.data)["notes"] == [bad]
    for tag, attributes in page.tags:
        assert not any(str(attributes.get(name, "data:")).partition(":")[0] != "data" for name in ("src", "href")), tag
    text = render_leaderboard(shown)
    assert "default-src 'none'" in text
    assert "innerHTML" not in text
    assert "https://" not in text
