"""Runs on sources and on mixtures of them, killed again and again and resumed with other numbers of workers."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import default_collate

from tests.crash.attempts import server
from tests.data.sources import killed_run
from tests.data.sources.files import make_source, marks_of, number_and_features, write_lines
from tests.data.sources.killed_run import EPOCHS, GLOBAL
from tests.data.sources.reference import listed, streamed
from treadle import Trainer
from treadle.checkpoint import read_file
from treadle.data.sources import IndexedSource, JsonLines
from treadle.errors import CheckpointError

LONG = bool(os.environ.get("TREADLE_LONG"))
SINGLE = ("tokens", "lines", "parquet", "tar", "images", "table", "stream", "mixture stream") if LONG else ("stream",)
"""Sources by themselves, and a mixture that has no index."""
OTHER_WORKERS = (2, 0, 3, 1, 2) if LONG else (2,)
"""With how many workers a run is started before each kill; at last it is without."""
STEPS = 45
SEED = 7


def started(folder: Path, kind: str, workers: int, kill_at: int) -> int:
    process = server.Process(target=_train, args=(folder, kind, workers, kill_at))
    process.start()
    process.join(100)
    assert process.exitcode is not None
    return process.exitcode


def _train(folder: Path, kind: str, workers: int, kill_at: int) -> None:
    torch.set_num_threads(1)
    multiprocessing.set_start_method("fork", force=True)
    with (folder / "output.txt").open("a") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    killed_run.train(folder, kind, workers, kill_at)


def began_and_seen(folder: Path, rank: int = 0) -> tuple[list[int], dict[int, list[int]]]:
    """Return from which step each process resumed, and the samples of each step as they were seen last."""
    began, seen = [], {}
    for line in (folder / f"seen_{rank}.txt").read_text().splitlines():
        word, step, *numbers = line.split()
        if word == "began":
            began.append(int(step))
        else:
            seen[int(step)] = [int(number) for number in numbers]
    return began, seen


def expected_numbers(folder: Path, kind: str) -> list[int]:
    source = make_source(kind, folder / "files")
    if not isinstance(source, IndexedSource):
        return [number for epoch in range(EPOCHS) for number in streamed(source, SEED, epoch)]
    samples = [source[index] for epoch in range(EPOCHS) for index in listed(source, SEED, epoch)]
    return [number for sample in samples for number in marks_of(default_collate([sample]))]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["packed mixture", *(["mixture"] if LONG else [])])
def test_a_mixture_that_is_killed_at_random_ends_in_the_same_bits(kind: str, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    assert started(whole, kind, 0, -1) == 0, (whole / "output.txt").read_text()
    chance = random.Random(5)
    kills = sorted(chance.sample(range(2, STEPS + 1), 20 if LONG else 2))
    for number, step in enumerate(kills):
        # Two workers at first, then any number.
        assert started(killed, kind, 2 if not number else chance.choice([0, 1, 2]), step) == -signal.SIGKILL
    assert started(killed, kind, 1, -1) == 0, (killed / "output.txt").read_text()
    began, seen = began_and_seen(killed)
    # Each resumed behind the last step that the one before it finished.
    assert began == [0, *(step - 1 for step in kills)]
    numbers = [number for step in range(1, STEPS + 1) for number in seen[step]]
    assert numbers == expected_numbers(killed, kind)
    one, other = (read_file(folder / "outcome.safetensors") for folder in (whole, killed))
    assert one["steps"] == other["steps"] == STEPS
    for name, weights in one["model"].items():
        assert torch.equal(weights, other["model"][name]), name


@pytest.mark.slow
@pytest.mark.parametrize("kind", SINGLE)
def test_a_source_that_is_killed_and_resumed_with_other_workers_ends_in_the_same_bits(
    kind: str, tmp_path: Path
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    assert started(whole, kind, 0, -1) == 0, (whole / "output.txt").read_text()
    steps = max(began_and_seen(whole)[1])
    kills = sorted(random.Random(kind).sample(range(2, steps + 1), len(OTHER_WORKERS)))
    for step, workers in zip(kills, OTHER_WORKERS, strict=True):
        assert started(killed, kind, workers, step) == -signal.SIGKILL, (killed / "output.txt").read_text()
    assert started(killed, kind, 0, -1) == 0, (killed / "output.txt").read_text()
    began, seen = began_and_seen(killed)
    assert began == [0, *(step - 1 for step in kills)]
    assert sorted(seen) == list(range(1, steps + 1))
    assert [number for step in sorted(seen) for number in seen[step]] == expected_numbers(killed, kind)
    one, other = (read_file(folder / "outcome.safetensors") for folder in (whole, killed))
    assert one["steps"] == other["steps"] == steps
    for name, weights in one["model"].items():
        assert torch.equal(weights, other["model"][name]), name


@pytest.mark.slow
@pytest.mark.skipif(not LONG, reason="starts torchrun again and again; run by `make long`, with TREADLE_LONG=1")
@pytest.mark.parametrize("kind", ["mixture", "packed mixture"])
def test_a_mixture_on_two_processes_that_are_killed_ends_in_the_same_bits(kind: str, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    for folder in (whole, killed):
        # Two processes would write the same files at once.
        make_source(kind, folder / "files")
    assert in_two_processes(whole, kind, 0, -1) == 0, (whole / "output.txt").read_text()
    chance = random.Random(6)
    kills = sorted(chance.sample(range(2, STEPS + 1), 20))
    for step in kills:
        assert in_two_processes(killed, kind, chance.choice([0, 1, 2]), step) != 0
    assert in_two_processes(killed, kind, 1, -1) == 0
    seen = []
    for rank in (0, 1):
        began, of_rank = began_and_seen(killed, rank)
        assert began == [0, *(step - 1 for step in kills)]
        seen.append(of_rank)
    numbers = [number for step in range(1, STEPS + 1) for rank in (0, 1) for number in seen[rank][step]]
    assert numbers == expected_numbers(killed, kind)
    one, other = (read_file(folder / "outcome.safetensors") for folder in (whole, killed))
    for name, weights in one["model"].items():
        assert torch.equal(weights, other["model"][name]), name


def in_two_processes(folder: Path, kind: str, workers: int, kill_at: int) -> int:
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    program = ["-m", "tests.data.sources.killed_run", str(folder), kind, str(workers), str(kill_at)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    with (folder / "output.txt").open("a") as output:
        done = subprocess.run(
            [sys.executable, "-m", *launcher, *program],
            stdout=output,
            stderr=output,
            env=environment | {"OMP_NUM_THREADS": "1"},
            check=False,
            timeout=120,
        )
    return done.returncode


def test_the_size_of_a_step_is_that_of_the_reference(tmp_path: Path) -> None:
    assert len(expected_numbers(tmp_path, "mixture")) == STEPS * GLOBAL


# What a run says of its files -------------------------------------------------------------------------------------


def make_trainer(folder: Path | None = None) -> Any:
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    return Trainer(model, torch.nn.MSELoss(), optimizer, callbacks=(), run_dir=folder, seed=1)


def test_a_file_that_changed_since_the_run_began_is_told_at_resume(tmp_path: Path) -> None:
    source = make_source("lines", tmp_path)
    make_trainer(tmp_path / "run").train(source, num_epochs=1, per_device_batch_size=8)
    lines = tmp_path / "lines" / "a.jsonl"
    lines.write_text(lines.read_text().replace('"number": 3,', '"number": 4,'))
    os.utime(lines, ns=(1, 1))
    with pytest.raises(
        CheckpointError, match=r"data\.files\.a\.jsonl: 1160 bytes, \w{8} in the checkpoint, 1160 bytes"
    ):
        make_trainer(tmp_path / "run").train(
            make_source("lines", tmp_path), num_epochs=2, per_device_batch_size=8, resume="auto"
        )


def test_the_count_of_skipped_records_is_shown_in_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_lines(tmp_path / "a.jsonl", range(20))
    path.write_text(path.read_text().replace('{"number": 7,', '["number": 7,').replace('{"number": 9,', "{number: 9}"))
    source = JsonLines(path, transform=number_and_features, on_corrupt="skip")
    make_trainer().train(source, num_epochs=2, per_device_batch_size=4)
    assert source.skipped == 2
    assert capsys.readouterr().out.count("the train data: 2 corrupt records were skipped so far") == 1
