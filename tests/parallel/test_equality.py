"""The same script alone and under torchrun ends in the same weights and reports the same numbers."""

import pytest
import torch

from tests.parallel.conftest import Launch
from tests.parallel.launching import assert_same_run

pytestmark = pytest.mark.slow
several = pytest.mark.parametrize("processes", [2, 3])


def compare(launched: Launch, processes: int, scenario: str) -> None:
    """Compare every rank of a launch with the script run alone, and the ranks, bit by bit, with each other."""
    reference = launched("equality", processes=1).rank_zero(scenario)
    reports = launched("equality", processes=processes)(scenario)
    for report in reports:
        assert torch.equal(report["weights"], reports[0]["weights"])
        assert_same_run(report, reference)


@several
@pytest.mark.parametrize("scenario", ["samples_48", "adam", "initial_weights_that_differ_by_rank"])
def test_a_plain_run_does_not_depend_on_the_number_of_processes(
    launched: Launch, processes: int, scenario: str
) -> None:
    compare(launched, processes, scenario)


@several
@pytest.mark.parametrize("count", [53, 50, 49, 1])
def test_a_short_last_batch_counts_each_sample_once_even_with_fewer_samples_than_ranks(
    launched: Launch, processes: int, count: int
) -> None:
    compare(launched, processes, f"samples_{count}")


@several
@pytest.mark.parametrize("scenario", ["2_of_48", "2_of_53", "3_of_53", "3_of_49", "8_of_50"])
def test_accumulated_windows_short_ones_too_are_those_of_one_process(
    launched: Launch, processes: int, scenario: str
) -> None:
    compare(launched, processes, f"accumulation_{scenario}")


@several
@pytest.mark.parametrize("scenario", ["1_of_48", "1_of_53", "1_of_49", "3_of_50"])
def test_a_summed_loss_is_summed_over_all_ranks_and_reported_per_sample(
    launched: Launch, processes: int, scenario: str
) -> None:
    compare(launched, processes, f"sum_{scenario}")


@several
@pytest.mark.parametrize(
    "scenario",
    [
        "tokens_counted_on_the_host_1",
        "tokens_counted_on_the_host_3",
        "tokens_counted_on_the_device_1",
        "tokens_counted_on_the_device_3",
        "tokens_may_be_missing",
    ],
)
def test_a_mean_over_tokens_is_over_the_tokens_of_all_ranks(launched: Launch, processes: int, scenario: str) -> None:
    compare(launched, processes, scenario)


@several
@pytest.mark.parametrize("scenario", ["clip_norm", "clip_value"])
def test_clipping_acts_on_the_gradient_of_the_global_batch(launched: Launch, processes: int, scenario: str) -> None:
    compare(launched, processes, scenario)


@several
def test_a_loss_that_is_not_in_forward_is_synchronised_too(launched: Launch, processes: int) -> None:
    compare(launched, processes, "loss_outside_forward")


@several
def test_weights_of_the_loss_are_synchronised_too(launched: Launch, processes: int) -> None:
    compare(launched, processes, "loss_with_weights_of_its_own")


@several
@pytest.mark.parametrize("scenario", ["iterable_1_of_48", "iterable_1_of_53", "iterable_3_of_49", "ready_batches"])
def test_data_of_unknown_length_is_dealt_out_in_turn(launched: Launch, processes: int, scenario: str) -> None:
    compare(launched, processes, scenario)


@several
@pytest.mark.parametrize(
    "scenario",
    [
        "ready_loader_in_order",
        "ready_loader_with_workers",
        "ready_loader_with_its_own_generator",
        "ready_loader_that_shuffles",
        "weighted_sampler",
        "drop_last",
    ],
)
def test_a_ready_made_loader_gives_all_ranks_shares_of_one_order(
    launched: Launch, processes: int, scenario: str
) -> None:
    compare(launched, processes, scenario)


@several
def test_the_order_follows_the_users_own_seed_on_any_number_of_processes(launched: Launch, processes: int) -> None:
    compare(launched, processes, "order_from_the_users_own_seed")
