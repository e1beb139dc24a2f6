"""`treadle demo`: the menu, each demonstration with a little of everything, and what it says comes next."""

import json
import random
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli.conftest import Treadle
from treadle.errors import MissingDependencyError
from treadle.tools.demo import DEMOS, Demo, find_demo
from treadle.tools.demo import digits as digits_demo
from treadle.tools.demo import language_model as language_demo
from treadle.tools.demo import recommender as recommender_demo
from treadle.tools.demo import search as search_demo
from treadle.tools.demo.language_model import ARTICLES, NOUNS, PLURALS, VERBS, entropy, is_correct, sentence, write

SHORT = {
    "digits": (digits_demo, {"epochs": 1}),
    "recommender": (recommender_demo, {"epochs": 3}),
    "search": (search_demo, {"trials": 2, "epochs": 1}),
    "language-model": (language_demo, {"iterations": 4}),
}
"""The program of each demonstration, and what makes it short."""


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every demonstration short."""
    for program, arguments in SHORT.values():
        monkeypatch.setattr(program, "run", partial(program.run, **arguments))


def test_without_a_terminal_the_menu_is_shown(treadle: Treadle) -> None:
    output = treadle("demo").stdout
    for number, demo in enumerate(DEMOS, start=1):
        assert re.search(rf"^  {number}  {demo.name} +{re.escape(demo.title)}$", output, flags=re.MULTILINE)
    assert output.endswith("Run one by: treadle demo digits\n")
    assert not Path("runs").exists()


@pytest.mark.parametrize(("asked", "threads"), [("", 1), ("2", 2)])
def test_a_demonstration_takes_one_core_unless_more_are_asked_for(
    treadle: Treadle, monkeypatch: pytest.MonkeyPatch, asked: str, threads: int
) -> None:
    used: list[int] = []
    fakes = [demo._replace(program=lambda folder, say: used.append(torch.get_num_threads())) for demo in DEMOS]
    monkeypatch.setattr("treadle.tools.demo.DEMOS", fakes)
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    if not asked:
        monkeypatch.delenv("OMP_NUM_THREADS")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        treadle("demo", "search")
    finally:
        torch.set_num_threads(before)
    assert used == [threads]


@pytest.mark.parametrize(("answer", "run"), [("search", "search"), ("4", "language-model"), ("", "digits")])
def test_a_terminal_is_asked(treadle: Treadle, monkeypatch: pytest.MonkeyPatch, answer: str, run: str) -> None:
    ran: list[str] = []
    fakes = [demo._replace(program=lambda folder, say, name=demo.name: ran.append(name)) for demo in DEMOS]
    monkeypatch.setattr("treadle.tools.demo.DEMOS", fakes)
    monkeypatch.setattr("treadle.cli.demo.sys", FakeTerminal)
    monkeypatch.setattr("typer.prompt", lambda text, default: answer or default)
    treadle("demo")
    assert ran == [run]


class FakeTerminal:
    class stdin:  # noqa: N801 - it stands for `sys.stdin`
        @staticmethod
        def isatty() -> bool:
            return True


@pytest.mark.slow
def test_the_recommender_says_how_many_epochs_it_was_trained_for(tmp_path: Path) -> None:
    for _ in range(2):  # begun, and started again when it is finished
        said: list[str] = []
        recommender_demo.run(tmp_path, said.append)
        lines = (tmp_path / "LightGCN" / "metrics.jsonl").read_text().splitlines()
        made = json.loads(lines[-1])["epoch"] + 1
        assert made < 25
        assert f" after {made} epochs, where it stopped: " in said[2]


def test_a_demonstration_that_is_not_there_is_told_the_nearest(treadle: Treadle) -> None:
    text = treadle("demo", "serch", status=1).stderr.replace("\n  ", " ")
    assert "treadle demo: there is no demonstration 'serch'; there are ['digits', 'recommender', 'search'" in text
    assert "did you mean 'search'?" in text


def test_a_name_may_be_written_with_an_underscore() -> None:
    assert find_demo("language_model").name == "language-model"


def test_what_a_demonstration_needs_is_named_with_the_extra_that_brings_it(tmp_path: Path) -> None:
    demo = Demo("moon", "A trip", ("torch", "no_such_rocket"), lambda folder, say: None)
    with pytest.raises(MissingDependencyError) as caught:
        demo.run(tmp_path, print)
    told = "the demonstration 'moon' needs no_such_rocket; pip install 'treadle[demo]'"
    assert str(caught.value) == told


SAID = {
    "digits": r"\n\n[\d.]+% of 359 held-out digits are read\.",
    "recommender": r"LightGCN: +ndcg@10 0\.\d+ on the test part, after 3 epochs",
    "search": r"The best of 2: [\d.]+% with width=",
    "language-model": r"A character costs \d\.\d+ nats; the grammar leaves 0\.\d+ open",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [demo.name for demo in DEMOS])
def test_a_demonstration_says_what_it_did_and_what_comes_next_and_goes_on(
    treadle: Treadle, short: None, name: str
) -> None:
    output = treadle("demo", name).stdout
    assert re.search(SAID[name], output)
    assert f"Everything is in runs/demo-{name}. What next:\n" in output
    assert re.search(rf"^  treadle demo {name} +resumes where it was", output, flags=re.MULTILINE)
    pages = re.findall(r"^  open (\S+)", output, flags=re.MULTILINE)
    assert len(pages) == {"recommender": 2}.get(name, 1)
    assert all("<html" in Path(page).read_text() for page in pages)
    again = treadle("demo", name).stdout
    assert re.search(SAID[name], again)


def test_a_demonstration_goes_where_it_is_told(treadle: Treadle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language_demo, "run", lambda folder, say: folder.mkdir())
    output = treadle("demo", "language-model", "--run-dir", "here").stdout
    assert "  treadle demo language-model --run-dir here " in output
    assert Path("here").is_dir()


def test_sentences_follow_the_grammar_and_their_mutations_do_not() -> None:
    generator = random.Random(0)
    for _ in range(50):
        text = sentence(generator)
        words = text.removesuffix(".").split(" ")
        verb = words[3].removesuffix("s") if words[3] not in VERBS else f"{words[3]}s"
        assert is_correct(text)
        assert not is_correct(" ".join([*words[:3], verb, *words[4:]]) + ".")
        assert not is_correct(text.removesuffix("."))


def test_the_entropy_is_that_of_the_choices() -> None:
    # Two phrases of 2 articles, 6 adjectives, 6 nouns and 2 numbers, and one of 5 verbs.
    assert (len(ARTICLES[True]), len(NOUNS), len(VERBS), PLURALS) == (2, 6, 5, {"child": "children"})
    text = write(3, seed=0)
    nats = 2 * torch.tensor(2.0 * 6 * 6 * 2).log() + torch.tensor(5.0).log()
    assert entropy(text) == pytest.approx(float(3 * nats / len(text)), rel=1e-6)


def test_the_drawings_of_a_search_are_pictures(tmp_path: Path) -> None:
    said: list[Any] = []
    search_demo.run(tmp_path, said.append, trials=2, epochs=1)
    for name in ("trials", "parallel_coordinates"):
        assert (tmp_path / "panels" / f"{name}.svg").read_text().startswith("<svg")
