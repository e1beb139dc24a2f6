"""Phases, loops of your own and models that a wrapper does not see whole, on two processes."""

import pytest
import torch
from torch import tensor

from tests.parallel.conftest import Launch
from tests.parallel.launching import assert_same_run

pytestmark = pytest.mark.slow


def compare(launched: Launch, scenario: str) -> None:
    """Compare both ranks with the script run alone, and bit by bit with each other."""
    reference = launched("loops", processes=1).rank_zero(scenario)
    first, second = launched("loops", processes=2)(scenario)
    assert torch.equal(first["weights"], second["weights"])
    assert_same_run(first, reference)
    assert_same_run(second, reference)


@pytest.mark.parametrize("scenario", ["48", "49", "accumulated", "clipped", "sum"])
def test_phases_that_train_part_of_a_model_each_equal_one_process(launched: Launch, scenario: str) -> None:
    compare(launched, f"phases_{scenario}")


def test_a_hand_written_loop_gets_averaged_gradients_and_equal_weights_to_start_from(launched: Launch) -> None:
    compare(launched, "hand_written")


@pytest.mark.parametrize("kind", ["", "_clipped", "_bounded"])
def test_loops_after_pytorch_accelerateds_train_and_evaluate_as_on_one_process(launched: Launch, kind: str) -> None:
    compare(launched, f"own_loops{kind}")


def test_an_update_of_ones_own_after_the_trainers_epoch_is_averaged_too(launched: Launch) -> None:
    compare(launched, "own_step_after_the_trainers_epoch")


def test_a_gradient_is_averaged_none_on_one_rank_is_zero_and_none_on_all_stays_none(launched: Launch) -> None:
    for report in launched("loops", processes=2)("averaged_gradients"):
        assert report["everywhere"].tolist() == [1.5, 1.5]  # (1 + 2) / 2
        assert report["somewhere"].tolist() == [3.0, 6.0]  # (0 + 6) / 2 and (0 + 12) / 2
        assert report["nowhere_is_none"]
        assert report["frozen_is_none"]


def test_gradients_of_several_types_and_strides_are_averaged(launched: Launch) -> None:
    for report in launched("loops", processes=2)("averaged_gradients_of_several_types"):
        assert report["single"].tolist() == [0.0, 0.5, 1.0]
        assert report["half"].dtype == torch.bfloat16
        assert report["half"].tolist() == [0.0, 0.5, 1.0]
        assert report["turned"].tolist() == [[0.0, 0.5], [1.0, 1.5], [2.0, 2.5]]


def test_sparse_gradients_are_averaged_by_rows_and_stay_sparse(launched: Launch) -> None:
    rows = torch.zeros(6, 2, dtype=torch.float64)
    both = rows.index_fill(0, tensor([0, 1, 2]), 1.0)  # row 0: (1 + 1) / 2; rows 1 and 2: two on one rank
    one = rows.index_fill(0, tensor([3]), 0.5)
    for report in launched("loops", processes=2)("averaged_sparse_gradients"):
        assert report["sparse"] == [True, True]
        assert torch.equal(report["both"], both)
        assert torch.equal(report["one"], one)


@pytest.mark.parametrize("kind", ["", "_accumulated", "_clipped_by_norm", "_clipped_by_value", "_by_hand"])
def test_an_embedding_with_sparse_gradients_trains_as_on_one_process(launched: Launch, kind: str) -> None:
    compare(launched, f"sparse_embedding{kind}")


def test_a_layer_that_is_thawed_during_the_run_is_synchronised_from_then_on(launched: Launch) -> None:
    compare(launched, "thawed_in_the_middle")


def test_a_parameter_that_no_loss_reaches_does_not_disturb_the_others(launched: Launch) -> None:
    compare(launched, "unused_parameter")


def test_running_statistics_end_alike_on_all_ranks(launched: Launch) -> None:
    first, second = launched("loops", processes=2)("batch_norm")
    assert torch.equal(first["weights"], second["weights"])
    assert first["history"] == second["history"]


def test_weights_in_bfloat16_end_alike_on_all_ranks(launched: Launch) -> None:
    alone = launched("loops", processes=1).rank_zero("half_precision_weights")
    first, second = launched("loops", processes=2)("half_precision_weights")
    assert torch.equal(first["weights"], second["weights"])
    torch.testing.assert_close(first["weights"], alone["weights"], rtol=0, atol=2**-8)
