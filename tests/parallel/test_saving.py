"""Runs in a folder, on two processes: left and taken up again, and steps that went wrong on one rank."""

import shutil
from pathlib import Path

import pytest
import torch

from tests.interrupting import Updates
from tests.parallel.conftest import Launch
from tests.parallel.launching import EXACT, assert_same_run
from tests.parallel.programs import keeping

pytestmark = pytest.mark.slow


def test_a_signal_to_one_rank_has_all_of_them_save_and_leave_together(launched: Launch) -> None:
    for report in launched("keeping", processes=2)("left_and_taken_up"):
        # The signal came after 12 updates of 7 an epoch; the next tenth update is 20, the epoch ends before it.
        assert (report["code"], report["left_at"]) == (75, 14)


def test_a_run_that_was_left_is_taken_up_to_the_very_same_bits(launched: Launch) -> None:
    for report in launched("keeping", processes=2)("left_and_taken_up"):
        assert report["steps"] == 21
        assert tuple(report["updates"]) == (14, 7)
        assert torch.equal(report["again"], report["whole"])
        assert report["history_again"] == report["history"]


def test_a_run_goes_on_from_the_newest_checkpoint_that_is_there(launched: Launch) -> None:
    for report in launched("keeping", processes=2)("killed_between_two_checkpoints"):
        assert report["steps"] == 21
        assert tuple(report["updates"]) == (15, 6)
        assert torch.equal(report["again"], report["whole"])


def test_an_update_whose_loss_is_bad_on_one_rank_is_skipped_by_all(launched: Launch) -> None:
    alone = launched("keeping", processes=1).rank_zero("skipped")
    first, second = launched("keeping", processes=2)("skipped")
    assert torch.equal(first["weights"], second["weights"])
    torch.testing.assert_close(first["weights"], alone["weights"], rtol=0, atol=EXACT)
    assert first["history"]["eval_loss_epoch"] == pytest.approx(alone["history"]["eval_loss_epoch"], rel=EXACT)


def test_a_bad_loss_on_one_rank_rolls_all_of_them_back(launched: Launch) -> None:
    alone = launched("keeping", processes=1).rank_zero("rolled_back_at_a_log")
    first, second = launched("keeping", processes=2)("rolled_back_at_a_log")
    assert torch.equal(first["weights"], second["weights"])
    assert_same_run(first, alone)
    assert_same_run(second, alone)


def test_a_bad_loss_on_one_rank_is_noticed_by_all_before_a_checkpoint_is_written(launched: Launch) -> None:
    for report in launched("keeping", processes=2)("bad_loss_when_saving"):
        assert report["message"].startswith("loss is nan at step 6")


def test_a_last_checkpoint_that_one_rank_could_not_write_is_written_again_by_all(launched: Launch) -> None:
    first, second = launched("keeping", processes=2)("disk_full_at_the_end")
    assert (first["failures"], second["failures"]) == ([21], [])
    for report in (first, second):
        assert (report["steps"], report["finished"]) == (21, True)
        assert torch.equal(report["weights"], report["whole"])


def test_what_is_the_best_checkpoint_is_decided_by_the_first_rank_for_all(launched: Launch) -> None:
    alone = launched("keeping", processes=1).rank_zero("judged")
    assert (alone["steps"], alone["best"], alone["saved"]) == (21, 7, [7, 21])
    assert launched("keeping", processes=2)("judged") == [alone, alone]


MEASURED = ("train_accuracy", "train_f1", "train_largest")


def test_metrics_of_training_are_those_of_one_process_and_of_a_run_without_a_stop(launched: Launch) -> None:
    alone = launched("keeping", processes=1).rank_zero("measured")
    for report in launched("keeping", processes=2)("measured"):
        # Left inside the last of three epochs of seven updates.
        assert (report["left_at"], tuple(report["updates"])) == (20, (20, 1))
        for name in MEASURED:
            assert len(report["whole"][name]) == 3
            assert report["again"][name] == report["whole"][name]
            assert report["whole"][name] == pytest.approx(alone["whole"][name], rel=EXACT)
        assert report["whole"]["train_accuracy"] == alone["whole"]["train_accuracy"]


def test_metrics_of_an_epoch_are_added_up_where_one_process_goes_on_for_two(launched: Launch, tmp_path: Path) -> None:
    two = launched("keeping", processes=2)
    shutil.copytree(two.folder / "measured_on_two", tmp_path / "run")
    updates = Updates()
    trainer = keeping.kept(tmp_path / "run", callbacks=(updates,), **keeping.MEASURED)
    history = keeping.run(trainer, resume="auto")["history"]
    assert (updates.began, updates.made) == (20, 1)
    whole = two.rank_zero("measured")["whole"]
    assert history["train_accuracy"] == whole["train_accuracy"]
    for name in MEASURED:
        assert history[name] == pytest.approx(whole[name], rel=EXACT)
