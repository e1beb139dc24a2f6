"""fp16 on two processes: one scale, and one mind about what is left out."""

import pytest
import torch

from tests.parallel.conftest import Launch

pytestmark = pytest.mark.slow


def test_all_ranks_begin_with_the_scale_that_the_largest_loss_needs(launched: Launch) -> None:
    first, second = launched("half_precision", processes=2)("one_scale")
    assert first["scales"] == second["scales"]
    assert first["scales"][0] <= 1.0
    assert torch.equal(first["weights"], second["weights"])
    assert first["weights"].isfinite().all()


def test_an_overflow_on_one_rank_leaves_the_update_out_on_all(launched: Launch) -> None:
    first, second = launched("half_precision", processes=2)("one_flag")
    assert first["skipped"] == second["skipped"] == [0, 0, 1, 1, 1, 1]
    assert first["scales"] == second["scales"] == [64.0, 64.0, 32.0, 32.0, 32.0, 32.0]
    assert torch.equal(first["weights"], second["weights"])
    assert first["weights"].isfinite().all()


@pytest.mark.parametrize("plan", ["DDP", "FSDP2", "stages"])
def test_an_update_is_that_of_one_process_whatever_the_scale(launched: Launch, plan: str) -> None:
    for report in launched("half_precision", processes=2)("as_by_hand"):
        assert report["moved"] > 0.05
        assert report[plan] < 2e-3


def test_stages_scale_by_what_the_last_one_chose_and_leave_updates_out_together(launched: Launch) -> None:
    first, second = launched("half_precision", processes=2)("stages_of_one_mind")
    assert first == second
    assert first["chosen"] == [65536.0] * 4
    assert first["chosen, skipped"] == [0.0] * 4
    assert first["too large, skipped"][0] == 1.0
    assert first["too large"][0] == 2.0**21


def test_finding_the_shapes_that_stages_send_leaves_no_trace_in_their_buffers(launched: Launch) -> None:
    for report in launched("half_precision", processes=2)("statistics_of_stages"):
        assert report["buffers"] == 12
        assert report["off"] < 1e-6
