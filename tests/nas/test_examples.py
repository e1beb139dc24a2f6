"""The programs in `examples/nas/` run, with few epochs, and end in what they claim to show."""

import re
from pathlib import Path

import pytest

from tests.conftest import EXAMPLES, RunExample

LONGEST = 85


@pytest.mark.slow
def test_darts_digits_finds_a_network_and_goes_on_where_it_was(run_example: RunExample) -> None:
    output = run_example("nas/darts_digits.py", "--epochs", "2", "--run-dir", "here", "--penalty", "0.1")
    again = run_example("nas/darts_digits.py", "--epochs", "2", "--run-dir", "here", "--penalty", "0.1")
    first = re.search(r"found (\{.*\}) among 18 networks", output)
    assert first is not None
    assert first[1] in again
    assert float(re.search(r"test accuracy ([\d.]+)%", output)[1]) > 50  # type: ignore[index]


def test_own_one_shot_finds_the_layer_that_is_not_linear(run_example: RunExample) -> None:
    output = run_example("nas/own_one_shot.py", "--epochs", "15")
    assert output.startswith("found {'activation': 'relu', 'layer': 'deep'}")


@pytest.mark.slow
def test_spos_with_a_limit_shows_networks_below_it(run_example: RunExample) -> None:
    output = run_example("nas/spos_with_a_limit.py", "--epochs", "2", "--limit", "5000")
    costs = [int(found) for found in re.findall(r"with (\d+) parameters", output)]
    assert len(costs) == 3
    assert max(costs) <= 5000


def test_every_example_has_a_test_here_and_is_short() -> None:
    own = Path(__file__).read_text()
    for path in (EXAMPLES / "nas").glob("*.py"):
        if "one_shot" in path.name or path.name.startswith(("darts", "spos")):
            assert f'"nas/{path.name}"' in own
            assert len(path.read_text().splitlines()) < LONGEST
