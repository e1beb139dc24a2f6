"""Every program in `examples/` runs, with few epochs, and ends in what it claims to show."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from examples import resume_after_kill
from tests.conftest import EXAMPLES, RunExample
from tests.forking.starting import start

LONGEST = 80
"""Lines that an example may have: it is read before it is run."""


def number(pattern: str, text: str) -> float:
    """Return the number that the group in `pattern` finds in `text`."""
    found = re.search(pattern, text)
    assert found is not None, f"no {pattern!r} in {text!r}"
    return float(found[1])


@pytest.mark.slow
def test_digits_trains_and_says_where_its_run_is(run_example: RunExample, tmp_path: Path) -> None:
    output = run_example("digits.py", "--epochs", "1", "--run-dir", "here")
    assert number(r"held-out accuracy ([\d.]+)%; the run is in here\n", output) > 50
    assert (tmp_path / "here" / "checkpoints" / "last").exists()


def test_gan_alternates_two_optimizers_on_every_batch(run_example: RunExample) -> None:
    # 2048 points in batches of 128, each used by both players.
    assert run_example("gan.py", "--epochs", "1").startswith("32 steps; ")


@pytest.mark.slow
def test_gan_makes_points_around_the_circle(run_example: RunExample) -> None:
    output = run_example("gan.py", "--epochs", "60")
    assert number(r"made points lie ([\d.]+)", output) == pytest.approx(1, abs=0.2)
    assert number(r"\+- ([\d.]+)", output) < 0.4


def test_finetune_frozen_moves_the_backbone_in_the_second_stage_only(run_example: RunExample) -> None:
    output = run_example("finetune_frozen.py", "--epochs", "2")
    assert "backbone unchanged: True" in output
    assert "backbone moved: True" in output
    assert "backbone.*, *.bias: lr 0.001, weight decay 0.0, ['backbone.0.bias', 'backbone.2.bias']" in output


def test_custom_loop_makes_fewer_updates_than_there_are_batches(run_example: RunExample) -> None:
    output = run_example("custom_loop.py", "--epochs", "3")
    assert number(r"^(\d+) updates instead of 96", output) < 96
    assert number(r"accuracy ([\d.]+)%", output) > 80


def test_token_loss_needs_the_number_of_tokens_to_be_the_same_however_a_batch_is_cut(run_example: RunExample) -> None:
    output = run_example("token_loss.py", "--epochs", "1")
    assert number(r"with the number of tokens: weights (\S+) apart", output) < 1e-12
    assert number(r"without the number of tokens: weights (\S+) apart", output) > 1e-6


@pytest.mark.slow
def test_resume_after_kill_ends_with_equal_weights(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def forked(command: list[str]) -> Any:
        assert command[0] == sys.executable
        return start(*command[1:])

    # The program starts itself three times: what it starts are processes as before, forked where that is possible.
    monkeypatch.setattr(resume_after_kill, "subprocess", SimpleNamespace(Popen=forked))
    monkeypatch.setattr(sys, "argv", ["resume_after_kill.py", "--epochs", "2"])
    resume_after_kill.main()
    output = capfd.readouterr().out
    assert "killed: exit status -9" in output
    assert "resuming from step" in output
    assert "weights equal, bit for bit: True" in output


def programs() -> list[str]:
    return sorted(path.name for path in EXAMPLES.glob("*.py"))


def test_every_example_has_a_test_here() -> None:
    own = Path(__file__).read_text()
    assert [name for name in programs() if f'"{name}"' not in own] == []


@pytest.mark.parametrize("name", programs())
def test_an_example_is_short_and_says_what_it_shows(name: str) -> None:
    text = (EXAMPLES / name).read_text()
    assert len(text.splitlines()) < LONGEST
    assert text.startswith('"""')
