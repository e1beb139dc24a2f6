"""Several processes: together they do what one does, and go on with what another number began."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.engine import distributed_program as program
from tests.engine.parts import Points
from tests.forking.starting import run

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
NAMES = [
    "whole",
    "interrupted",
    "resumed:begun_by_one",
    "own_step",
    "own_optimizer",
    "evaluated",
    "normed",
    "eager",
    "waiting",
    "poisoned",
]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """What one process reports, and a run that it began and did not finish."""
    folder = tmp_path_factory.mktemp("alone")
    reports = {"whole": program.whole(folder / "whole")}
    program.interrupted(folder / "begun_by_one")
    reports["own_step"] = program.own_step(folder / "own_step")
    reports["own_optimizer"] = program.own_optimizer(folder / "own_optimizer_alone")
    return folder, reports


@pytest.fixture(scope="module")
def together(alone: tuple[Path, dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """What two processes report, rank by rank."""
    folder = alone[0]
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    names = [name.replace("whole", "whole:whole_of_two").replace("own_step", "own_step:own_of_two") for name in NAMES]
    done = run(
        *command,
        "-m",
        "tests.engine.distributed_program",
        str(folder),
        *names,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=240,
        launches=True,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    plain = [name.partition(":")[0] for name in NAMES]
    return {name: [json.loads((folder / f"{name}.rank{rank}.json").read_text()) for rank in range(2)] for name in plain}


Together = dict[str, list[dict[str, Any]]]
Alone = tuple[Path, dict[str, Any]]


def assert_same(own: dict[str, Any], reference: dict[str, Any]) -> None:
    assert own["weights"] == pytest.approx(reference["weights"], abs=1e-6)
    for name in ("losses", "norms"):
        last = len(own[name])
        for (value, iteration), (other, place) in zip(own[name], reference[name][-last:], strict=True):
            assert iteration == place
            assert value == pytest.approx(other, abs=1e-5)


def test_b46_losses_norms_and_weights_are_those_of_one_process(together: Together, alone: Alone) -> None:
    for report in together["whole"]:
        assert_same(report, alone[1]["whole"])
        assert report["samples"] == 12 * 8


def test_b22_another_number_of_processes_goes_on_with_the_next_samples(together: Together, alone: Alone) -> None:
    for report in together["resumed"]:
        assert report["start"] == 7
        assert_same({**report, "losses": report["losses"][-5:], "norms": report["norms"][-5:]}, alone[1]["whole"])
        # The seventh iteration is caught up with: the checkpoint was taken before its last hook acted.
        assert report["consumed"] == [[place, 8 * (place + 1)] for place in range(6, 12)]


def test_b22_one_process_goes_on_with_what_two_began(together: Together, alone: Alone) -> None:
    # Several processes ask each other every ten steps whether one wants to stop.
    assert together["interrupted"] == [{"done": 10}, {"done": 10}]
    report = program.resumed(alone[0] / "interrupted")
    assert report["start"] == 10
    assert_same({**report, "losses": report["losses"][-2:], "norms": report["norms"][-2:]}, alone[1]["whole"])
    assert report["consumed"] == [(10, 88), (11, 96)]


def test_b25_the_best_checkpoint_is_saved_on_all_ranks_together(together: Together, alone: Alone) -> None:
    for report in together["whole"]:
        assert report["best"] == alone[1]["whole"]["best"]
        assert report["steps"] == alone[1]["whole"]["steps"]
    store = alone[0] / "whole_of_two" / "checkpoints" / f"step_{together['whole'][0]['best']:08d}"
    assert {path.name for path in store.iterdir()} >= {"rank_0.safetensors", "rank_1.safetensors"}


def test_b30_each_sample_is_evaluated_once_on_two_processes(together: Together, alone: Alone) -> None:
    for report in together["evaluated"]:
        for count in (1, 5, 8, 11):
            assert report[str(count)] == pytest.approx(sorted(Points(count).points[:, 0].tolist()))
    for report in together["whole"]:
        assert report["results"] == alone[1]["whole"]["results"]


@pytest.mark.parametrize("step", ["core", "own"])
def test_evaluations_of_two_processes_are_of_the_model_that_is_saved(together: Together, step: str) -> None:
    for report in (found[step] for found in together["normed"]):
        assert report["reported"] == pytest.approx(report["saved"], rel=1e-6)
        assert report["by_hand"] == pytest.approx(report["saved"], rel=1e-6)


@pytest.mark.parametrize("step", ["core", "own"])
def test_a_run_of_two_processes_that_died_before_an_evaluation_reports_the_same(together: Together, step: str) -> None:
    for report in (found[step] for found in together["normed"]):
        assert report["start"] == 8
        assert report["resumed"] == report["reported"]


def test_b38_a_loss_that_is_no_number_on_one_rank_stops_all_of_them(together: Together) -> None:
    for report in together["poisoned"]:
        assert report["error"].startswith("total_loss is nan at iteration 2")
        assert report["iter"] == 3


def test_b39_the_time_waited_for_data_is_the_longest_of_any_rank(together: Together) -> None:
    reports = together["waiting"]
    assert reports[0]["waited"] == pytest.approx(reports[1]["waited"])
    assert reports[0]["waited"] == pytest.approx(max(report["own"] for report in reports), rel=1e-6)


def test_a_step_of_ones_own_gets_averaged_gradients(together: Together, alone: Alone) -> None:
    for report in together["own_step"]:
        assert_same(report, alone[1]["own_step"])


def test_an_optimizer_that_a_step_of_ones_own_made_gets_averaged_gradients(together: Together, alone: Alone) -> None:
    first, second = together["own_optimizer"]
    assert first["probe"] == second["probe"]
    assert first["probe"] == pytest.approx(alone[1]["own_optimizer"]["probe"], abs=1e-6)
    assert_same(first, alone[1]["own_optimizer"])


def test_a_trainer_without_a_config_goes_on_exactly_on_two_processes(together: Together) -> None:
    first, second = together["eager"]
    assert first["start"] == second["start"] == 4
    assert first["whole"] == first["resumed"] == second["whole"] == second["resumed"]


def test_a_hook_that_must_act_on_all_processes_is_refused_on_one_alone(together: Together) -> None:
    for rank, report in enumerate(together["eager"]):
        assert report["error"].startswith(f"process {rank} has the hooks ")
        assert report["error"].endswith("so register the same on each, in the same order")
