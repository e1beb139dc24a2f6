"""The programs in `examples/nas/` run, with few epochs, and end in what they claim to show."""

import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "nas"
LONGEST = 85

Run = Callable[..., str]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """A function that runs a program as `__main__`, in an empty folder, and returns its output."""

    def run_example(name: str, *arguments: str) -> str:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run_example


@pytest.mark.slow
def test_darts_digits_finds_a_network_and_goes_on_where_it_was(run: Run) -> None:
    output = run("darts_digits.py", "--epochs", "2", "--run-dir", "here", "--penalty", "0.1")
    again = run("darts_digits.py", "--epochs", "2", "--run-dir", "here", "--penalty", "0.1")
    first = re.search(r"found (\{.*\}) among 18 networks", output)
    assert first is not None
    assert first[1] in again
    assert float(re.search(r"test accuracy ([\d.]+)%", output)[1]) > 50  # type: ignore[index]


def test_own_one_shot_finds_the_layer_that_is_not_linear(run: Run) -> None:
    assert run("own_one_shot.py", "--epochs", "15").startswith("found {'activation': 'relu', 'layer': 'deep'}")


@pytest.mark.slow
def test_spos_with_a_limit_shows_networks_below_it(run: Run) -> None:
    output = run("spos_with_a_limit.py", "--epochs", "2", "--limit", "5000")
    costs = [int(found) for found in re.findall(r"with (\d+) parameters", output)]
    assert len(costs) == 3
    assert max(costs) <= 5000


def test_every_example_has_a_test_here_and_is_short() -> None:
    own = Path(__file__).read_text()
    for path in EXAMPLES.glob("*.py"):
        if "one_shot" in path.name or path.name.startswith(("darts", "spos")):
            assert f'"{path.name}"' in own
            assert len(path.read_text().splitlines()) < LONGEST
