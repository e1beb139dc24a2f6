"""`treadle eval`: the numbers of a run's checkpoints, without a trace in its folder."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Treadle
from tests.interrupting import contents

CONFIG = "configs/small.py"


@pytest.fixture
def run(project: Path, treadle: Treadle) -> Path:
    """A finished run, evaluated after iterations 4, 8 and 12."""
    treadle("train", CONFIG)
    return Path("runs/small")


def measured(run: Path) -> dict[int, float]:
    """Return what the training itself measured, by the number of iterations done."""
    lines = [json.loads(line) for line in (run / "metrics.json").read_text().splitlines()]
    # A line within the run is of the iteration before; the last one is of the end.
    return {line["iteration"] + (line is not lines[-1]): line["Acc@1"] for line in lines if "Acc@1" in line}


@pytest.mark.parametrize(("which", "iteration"), [(("-c", "4"), 4), (("--checkpoint", "last"), 12), ((), 12)])
def test_a_checkpoint_is_measured_as_it_was_in_training(
    run: Path, treadle: Treadle, which: tuple[str, ...], iteration: int
) -> None:
    found = json.loads(treadle("eval", "runs/small", "--json", *which).stdout)
    assert found["iteration"] == iteration
    assert found["Acc@1"] == measured(run)[iteration]


def test_the_best_checkpoint_is_the_one_with_the_best_number(run: Path, treadle: Treadle) -> None:
    found = json.loads(treadle("eval", "runs/small", "--json", "-c", "best").stdout)
    assert found["Acc@1"] == max(measured(run).values())


def test_the_numbers_are_shown_as_a_table(run: Path, treadle: Treadle) -> None:
    lines = treadle("eval", "runs/small").stdout.splitlines()
    assert lines[0] == "runs/small, after iteration 12"
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if line.startswith("│")]
    assert rows == [["Acc@1", f"{measured(run)[12]:.6g}"], ["Acc@5", "100"]]


def test_nothing_in_the_folder_of_the_run_is_changed(run: Path, treadle: Treadle) -> None:
    before = contents(run)
    treadle("eval", "runs/small", "train.test_micro_batch_size=4")
    assert contents(run) == before


def test_several_test_sets_keep_their_names_and_overrides_count(run: Path, treadle: Treadle) -> None:
    added = "+dataloader.test.more={_target_:mine.parts.Points,count:8,seed:2}"
    found = json.loads(treadle("eval", "runs/small", added, "--json").stdout)
    assert set(found) == {"iteration", "held_out/Acc@1", "held_out/Acc@5", "more/Acc@1", "more/Acc@5"}


def test_a_checkpoint_that_is_not_there_is_answered_by_those_that_are(run: Path, treadle: Treadle) -> None:
    text = " ".join(treadle("eval", "runs/small", "-c", "5", status=1).stderr.split())
    assert text == (
        "treadle eval: runs/small has no checkpoint '5'; it has best, complete, last, model_best, model_final, 4, 8, 12"
    )


def test_a_run_without_test_data_says_what_to_add(run: Path, treadle: Treadle) -> None:
    text = treadle("eval", "runs/small", "~dataloader.test", status=1).stderr
    assert text == "treadle eval: runs/small/config.yaml has no test data; add dataloader.test\n"


def test_a_run_without_a_checkpoint_says_so(project: Path, treadle: Treadle) -> None:
    treadle("train", CONFIG, "train.train_iter=1")
    Path("empty").mkdir()
    Path("empty/config.yaml").write_text(Path("runs/small/config.yaml").read_text())
    assert treadle("eval", "empty", status=1).stderr == "treadle eval: empty holds no checkpoint\n"


def test_a_damaged_checkpoint_is_refused(run: Path, treadle: Treadle) -> None:
    path = run / "checkpoints" / "step_00000004" / "rank_0.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert "rank_0.safetensors" in treadle("eval", "runs/small", "-c", "4", status=1).stderr
