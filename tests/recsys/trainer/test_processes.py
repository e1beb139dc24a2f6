"""On two processes a training sees the same batches as on one, and ends in the same weights and metrics."""

import fcntl
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.forking.starting import run
from tests.interrupting import assert_same_bits
from tests.recsys.suites import on_processes
from tests.recsys.suites.every_model import MODELS
from tests.recsys.trainer import trees
from tests.recsys.trainer.several_processes import BATCH, SCENARIOS, buffers_apart, outcome
from treadle.checkpoint import read_file

ROOT = Path(__file__).parents[3]
EXACT = 1e-12


@pytest.fixture(scope="session")
def together(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the program on two processes, once for all tests, and return where it wrote."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    folder = shared / "recsys_on_two"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "output.txt").exists():
            _launch(folder)
    return folder


def _launch(folder: Path) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = run(
        *launcher,
        "-m",
        "tests.recsys.trainer.several_processes",
        str(folder),
        cwd=ROOT,
        env=environment | {"OMP_NUM_THREADS": "1"},
        timeout=300,
        launches=True,
    )
    (folder / "output.txt").write_text(done.stdout + done.stderr)


def read(folder: Path, name: str, rank: int) -> Any:
    path = folder / f"{name}.rank_{rank}"
    if not path.exists():
        pytest.fail(f"{name} did not come to its end:\n{(folder / 'output.txt').read_text()[-6000:]}", pytrace=False)
    return read_file(path)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_two_processes_end_in_the_weights_and_metrics_of_one(together: Path, tmp_path: Path, name: str) -> None:
    alone = outcome(tmp_path, name)
    assert alone["rows"] % BATCH == 1 or name == "positions"
    for rank in range(2):
        found = read(together, name, rank)
        for key, weights in alone["weights"].items():
            torch.testing.assert_close(found["weights"][key], weights, rtol=0, atol=EXACT)
        for part in ("valid", "test"):
            assert found[part] == pytest.approx(alone[part], abs=EXACT)
        assert found["score"] == pytest.approx(alone["score"], abs=EXACT)
        if name != "positions":  # there a loss is a mean over positions, of which processes have unequal numbers
            assert found["losses"] == pytest.approx(alone["losses"], rel=1e-2 if name.startswith("own_") else EXACT)


@pytest.mark.slow
def test_two_processes_write_one_file_and_go_on_from_it_exactly(together: Path) -> None:
    for rank in range(2):
        assert read(together, "resumed", rank) == {"same": True, "files": 2}


@pytest.mark.slow
def test_two_processes_evaluate_one_model_where_its_buffers_differ(together: Path, tmp_path: Path) -> None:
    alone = buffers_apart(tmp_path, "")
    for rank in range(2):
        found = read(together, "buffers_apart", rank)
        assert found["evaluated"] == pytest.approx(alone["evaluated"], abs=EXACT)
        assert found["in_detail"] == pytest.approx(alone["in_detail"], abs=EXACT)


@pytest.mark.slow
@pytest.mark.parametrize("name", trees.LIBRARIES)
def test_two_processes_have_the_trees_of_one(together: Path, tmp_path: Path, name: str) -> None:
    alone = trees.outcome(tmp_path, name)
    assert alone["boosters"] == 1
    for rank in range(2):
        found = read(together, name, rank)
        assert found["text"].equal(alone["text"])
        assert found["resumed"].equal(alone["resumed"])
        for part in ("valid", "test"):
            assert found[part] == pytest.approx(alone[part], abs=EXACT)
        assert found["score"] == pytest.approx(alone["score"], abs=EXACT)
        assert (found["rounds"], found["boosters"]) == (alone["rounds"], 1)


# Every model --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_two_processes_measure_of_a_model_what_one_measures(together: Path, tmp_path: Path, name: str) -> None:
    alone = on_processes.outcome(tmp_path, name)
    found = [read(together, f"model {name}", rank) for rank in range(2)]
    assert_same_bits(found[0], found[1])
    if alone["before"] is not None:
        assert found[0]["before"] == pytest.approx(alone["before"], abs=EXACT)
    if name in on_processes.OF_WHOLE_BATCHES:
        return
    for key, weights in alone["weights"].items():
        torch.testing.assert_close(found[0]["weights"][key], weights, rtol=0, atol=EXACT)
    for part in ("valid", "test"):
        assert found[0][part] == pytest.approx(alone[part], abs=EXACT)
