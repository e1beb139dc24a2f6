"""The tutorial, as a stranger takes it: its programs are saved and its commands run, in their order."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_docs import DOCS, TITLED, blocks_of

PAGE = DOCS / "tutorial.md"
LIMIT_SECONDS = 300
"""How long a command may take before it counts as hung."""


def environment() -> dict[str, str]:
    """Return the environment of a shell in which this Python and its programs come first."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    path = os.pathsep.join([str(Path(sys.executable).parent), kept["PATH"]])
    return kept | {"PATH": path, "PYTHONPATH": str(DOCS.parent), "OMP_NUM_THREADS": "1"}


def run(commands: str, folder: Path) -> str:
    """Run a block of commands as a shell does, and return what they print."""
    done = subprocess.run(
        ["bash", "-e", "-c", commands],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_SECONDS,
    )
    assert done.returncode == 0, f"{commands}\n{done.stdout}"
    return done.stdout


def accuracy(output: str) -> float:
    """Return the last share of held-out digits that a command printed."""
    return float(re.findall(r"([\d.]+)% of the held-out digits", output)[-1])


@pytest.mark.slow
def test_the_tutorial_works_command_by_command(tmp_path: Path) -> None:
    printed: list[str] = []
    for block in blocks_of(PAGE.read_text()):
        if TITLED.fullmatch(block.info):
            (tmp_path / block.info.split('"')[1]).write_text(block.text)
        elif block.info == "sh":
            printed.append(run(block.text, tmp_path))
    by_hand, _, resumed, third, page, two = printed
    assert accuracy(by_hand) > 85
    assert "resuming from step" in resumed
    assert accuracy(resumed) > 85
    assert "all 30 epochs are done" in third
    assert "\nepoch " not in third
    assert page == "runs/tutorial/report.html\n"
    assert "resuming from step 660" in two
    assert accuracy(two) > 85
    steps = [json.loads(line)["step"] for line in (tmp_path / "runs/tutorial/metrics.jsonl").read_text().splitlines()]
    # 22 batches of 64 in each of 32 epochs, reported once, although one process was killed and two went on.
    assert steps == sorted(set(steps))
    assert steps[-1] == 32 * 22


def test_the_tutorial_begins_with_a_loop_by_hand_and_ends_on_two_processes() -> None:
    blocks = list(blocks_of(PAGE.read_text()))
    programs = [block.text for block in blocks if TITLED.fullmatch(block.info)]
    commands = [block.text for block in blocks if block.info == "sh"]
    assert "loss.backward()" in programs[0]
    assert all(part in programs[-1] for part in ('resume="auto"', 'execution="auto"', "run_dir="))
    assert "torchrun --nproc-per-node 2" in commands[-1]
