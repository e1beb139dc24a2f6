"""A wish to stop, a bad loss or a failure on one rank ends the run on all of them, and nobody waits for ever."""

import json

import pytest
import torch

from tests.parallel.conftest import Launch
from tests.parallel.programs.stopping import UPDATES_PER_EPOCH

pytestmark = pytest.mark.slow


def agreed(step: int) -> int:
    """Return where a run ends that one rank wants to end after `step` updates: a tenth update or an epoch's end."""
    return min(-(-step // every) * every for every in (10, UPDATES_PER_EPOCH))


def check(launched: Launch, scenario: str, steps: int | None = None) -> None:
    """Check that both ranks stopped together, in good order, and where they should have."""
    first, second = launched("stopping", processes=2)(scenario)
    expected = agreed(first["after"]) if steps is None else steps
    assert (first["steps"], second["steps"]) == (expected, expected)
    assert first["epochs"] == second["epochs"]
    assert (first["reason"], second["reason"]) == ("another process asked to stop", "enough")
    assert first["ended"] == second["ended"] == ["on_stop_training_error", "on_training_run_end"]
    assert torch.equal(first["weights"], second["weights"])


@pytest.mark.parametrize("place", range(4))
def test_a48_one_rank_that_stops_at_a_random_step_ends_all_at_the_same_step(launched: Launch, place: int) -> None:
    check(launched, f"at_random_{place}")


@pytest.mark.parametrize("place", range(4))
def test_a48_a_request_of_one_rank_ends_all_at_the_same_step(launched: Launch, place: int) -> None:
    check(launched, f"requested_{place}")


@pytest.mark.parametrize(
    ("event", "steps"),
    [
        ("on_train_epoch_start", 30),  # the third epoch begins after 28 updates, the next agreement is at 30
        ("on_update_start", 28),
        ("on_train_step_start", 20),
        ("on_train_step_end", 20),
        ("on_log", 20),
        ("on_train_epoch_end", 28),
        ("on_eval_step_end", 28),
        ("on_eval_epoch_end", 28),
        ("on_training_run_epoch_end", 28),
    ],
)
def test_a48_one_rank_may_stop_at_any_event(launched: Launch, event: str, steps: int) -> None:
    check(launched, f"event_{event}", steps)


def test_a48_one_rank_may_stop_in_a_verb(launched: Launch) -> None:
    first, second = launched("stopping", processes=2)("in_a_verb")
    assert (first["steps"], second["steps"]) == (28, 28)


def test_a48_a_loop_of_ones_own_ends_with_its_epoch(launched: Launch) -> None:
    check(launched, "in_a_loop_of_ones_own", 28)


def test_a_run_after_a_stopped_one_is_not_stopped(launched: Launch) -> None:
    for report in launched("stopping", processes=2)("twice"):
        assert (report["first"], report["second"]) == (10, 14)


def test_early_stopping_ends_all_ranks_after_the_same_epoch(launched: Launch) -> None:
    first, second = launched("stopping", processes=2)("early_stopping")
    assert first == second
    assert (first["epochs"], first["steps"]) == (2, 8)
    assert first["reason"].startswith("eval_loss_epoch did not improve by more than 10 in 1 evaluation")


@pytest.mark.parametrize(
    ("scenario", "step", "noticed"),
    [("nan_before_a_log", 7, 10), ("nan_at_a_log", 10, 10), ("nan_at_the_end_of_an_epoch", 14, 14)],
)
def test_a_nan_on_one_rank_is_raised_by_all_with_the_same_step(
    launched: Launch, scenario: str, step: int, noticed: int
) -> None:
    for report in launched("stopping", processes=2)(scenario):
        assert report["message"].startswith(f"loss is nan at step {step}")
        assert report["message"].endswith("; lower the learning rate or set clip_norm")
        assert report["at"] == noticed


def test_an_infinite_loss_on_one_rank_is_raised_by_all_with_the_same_step(launched: Launch) -> None:
    for report in launched("stopping", processes=2)("infinite"):
        assert " at step 20" in report["message"]


def test_a_rank_that_fails_brings_the_job_down(launched: Launch) -> None:
    results = launched("failing", processes=2)
    assert results.exit_code not in (None, 0)
    assert "ValueError: this rank has had enough" in results.printed(1)
    assert "process 1 failed: ValueError: this rank has had enough" in results.printed(0)
    assert "as if nothing had happened" not in results.output


def test_a_rank_that_waits_in_vain_fails_in_time_and_keeps_what_all_of_them_did(launched: Launch) -> None:
    results = launched("hanging", processes=2)
    assert results.exit_code not in (None, 0)
    run = results.folder / "run"
    assert "another process is stuck, or has not come here; what each process was doing is in " in results.printed(0)
    assert "process 0 failed: RuntimeError: " in results.printed(1)
    first, second = (json.loads((run / "flight_recorder" / f"rank_{rank}.json").read_text()) for rank in (0, 1))
    # The first rank asked for one collective more than the second, which is the one it waits in.
    assert len(first["entries"]) == len(second["entries"]) + 1
    assert {"gloo:all_reduce"} <= {entry["profiling_name"] for entry in first["entries"]}
    assert (run / "flight_recorder" / "rank_1").exists()
