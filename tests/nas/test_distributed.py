"""Two processes: the same call works, every rank holds the same, and it is what one process finds."""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.forking.starting import run
from tests.nas.programs.searching import WAYS

ROOT = Path(__file__).parents[2]
LIMIT_SECONDS = 600

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the searches of one process and of two have written into."""
    place = tmp_path_factory.mktemp("searching")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    for command in ([], launcher):
        done = run(
            *command,
            "-m",
            "tests.nas.programs.searching",
            str(place),
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            timeout=LIMIT_SECONDS,
            launches=True,
        )
        assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return place


@pytest.mark.parametrize("way", WAYS)
def test_darts_10_two_ranks_hold_the_same_supernet_and_export_the_same(folder: Path, way: str) -> None:
    first, second = (load_file(folder / f"{way}.2.{rank}.safetensors") for rank in (0, 1))
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name
    texts = [(folder / f"{way}.2.{rank}.txt").read_text() for rank in (0, 1)]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("way", [way for way in WAYS if way not in ("bf16", "compiled", "spos")])
def test_two_ranks_find_what_one_process_finds(folder: Path, way: str) -> None:
    one, two = load_file(folder / f"{way}.1.0.safetensors"), load_file(folder / f"{way}.2.0.safetensors")
    for name, value in one.items():
        torch.testing.assert_close(
            value, two[name], rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_enas_rewards_on_two_ranks_are_of_one_model(folder: Path) -> None:
    # Each rank fails the launch where its batch norms differ in a step of the controller.
    assert [(folder / f"compared.2.{rank}.txt").read_text() for rank in (0, 1)] == ["4", "4"]
