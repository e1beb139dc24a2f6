"""The programs in `examples/recsys` run, and show what they claim to show."""

import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples" / "recsys"
Run = Callable[..., str]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """A function that runs a program as `__main__`, in an empty folder, and returns its output."""

    def run_example(name: str, *arguments: str) -> str:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", [str(EXAMPLES.parents[1]), *sys.path])
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_module(f"examples.recsys.{name}", run_name="__main__")
        return capsys.readouterr().out

    return run_example


def numbers(pattern: str, text: str) -> list[float]:
    found = re.search(pattern, text)
    assert found is not None, f"no {pattern!r} in {text!r}"
    return [float(group) for group in found.groups()]


def test_quick_start_recommends_from_the_department_of_a_customer(run: Run, tmp_path: Path) -> None:
    output = run("quick_start", "--epochs", "4")
    (listed,) = re.findall(r"^customer 7: (.*)$", output, re.MULTILINE)
    departments = [int(article.split()[1]) // 20 for article in listed.split(", ")]
    assert departments == [7 % 6] * 5
    assert "a new customer (popular): article" in output
    assert len((tmp_path / "recommendations.csv").read_text().splitlines()) == 1 + 200 * 10


def test_alternating_losses_brings_both_losses_down(run: Run) -> None:
    output = run("alternating_losses", "--epochs", "10")
    first, last, near, nearer = numbers(r"ranking loss (.*) -> (.*); similarity (.*) -> (.*)\n", output)
    assert last < first
    assert nearer < near


def test_mixed_precision_gives_about_what_single_precision_gives(run: Run) -> None:
    output = run("mixed_precision", "--epochs", "3")
    (full,) = numbers(r"LightGCN in fp32: valid ndcg@10 (.*)\n", output)
    (half,) = numbers(r"LightGCN in bf16: valid ndcg@10 (.*)\n", output)
    assert half == pytest.approx(full, abs=0.02)
    assert "SimpleX by hand: valid ndcg@10 0." in output


def test_layer_rates_moves_what_was_trained_before_less(run: Run) -> None:
    output = run("layer_rates", "--epochs", "5")
    assert "rates [0.01, 0.0001]" in output
    (users,) = numbers(r"user_embedding\.weight moved by (.*)%", output)
    (items,) = numbers(r"item_embedding\.weight moved by (.*)%", output)
    assert items < users / 20


def test_the_page_lists_every_program() -> None:
    page = (EXAMPLES / "README.md").read_text()
    programs = {path.stem for path in EXAMPLES.glob("*.py")} - {"shop"}
    assert set(re.findall(r"examples\.recsys\.(\w+)`", page)) == programs
    assert all(len(path.read_text().splitlines()) <= 80 for path in EXAMPLES.glob("*.py"))
