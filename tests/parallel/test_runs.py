"""Schedules, limits, synchronisation and resuming mean the same on any number of processes."""

import math

import pytest
import torch

from tests.parallel.conftest import Launch
from tests.parallel.programs.models import classifier, samples, trainer_of
from treadle.errors import CheckpointError

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("scenario", ["one_cycle", "one_cycle_per_process", "one_cycle_by_batches"])
def test_a42_one_cycle_with_placeholders_traverses_the_whole_schedule(launched: Launch, scenario: str) -> None:
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=24)
    expected = [optimizer.param_groups[0]["lr"]]
    for _ in range(23):
        optimizer.step()
        schedule.step()
        expected.append(optimizer.param_groups[0]["lr"])
    for report in launched("runs", processes=2)(scenario):
        assert report["steps"] == 24
        assert report["rates"][:24] == expected
        assert report["rates"][23] == pytest.approx(0.2 / 25 / 1e4)  # where OneCycleLR ends by default


@pytest.mark.parametrize(
    ("scenario", "updates"), [("one_cycle", 8), ("one_cycle_accumulated", 3), ("one_cycle_by_epochs", 8)]
)
def test_a42_the_schedule_is_that_of_one_process(launched: Launch, scenario: str, updates: int) -> None:
    alone = launched("runs", processes=1).rank_zero(scenario)
    assert alone["updates_per_epoch"] == updates
    for report in launched("runs", processes=2)(scenario):
        assert report == alone


def test_a_plateau_schedule_sees_the_same_metric_on_every_rank(launched: Launch) -> None:
    alone = launched("runs", processes=1).rank_zero("plateau")
    assert alone["rates"][-1] < 0.1
    for report in launched("runs", processes=2)("plateau"):
        assert report == alone


@pytest.mark.parametrize(("limit", "steps", "epochs"), [(4, 4, 0), (8, 8, 1), (10, 10, 1), (12, 12, 1), (30, 24, 3)])
def test_a43_a_limit_counts_updates_whatever_the_number_of_processes(
    launched: Launch, limit: int, steps: int, epochs: int
) -> None:
    alone = launched("runs", processes=1).rank_zero(f"at_most_{limit}")
    assert (alone["steps"], alone["epochs"]) == (steps, epochs)
    for report in launched("runs", processes=2)(f"at_most_{limit}"):
        assert report == alone


def test_a43_a_run_with_nothing_but_a_limit_ends_there(launched: Launch) -> None:
    for report in launched("runs", processes=2)("only_a_limit"):
        assert (report["steps"], report["limit"]) == (11, 11)


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_d16_gradients_travel_with_the_last_micro_batch_of_a_window_only(launched: Launch, parts: int) -> None:
    # 89 samples are 8 micro-batches an epoch; the first window of a run is left out, it may be treated apart.
    windows = math.ceil(8 / parts)
    exchanged = [epoch * windows + place // parts for epoch in range(2) for place in range(8)]
    for report in launched("runs", processes=2)(f"synchronised_{parts}"):
        assert report["steps"] == 2 * windows
        assert since_the_second_window(report["before_each"], parts) == since_the_second_window(exchanged, parts)
        assert report["in_all"] - report["before_each"][parts] == report["steps"] - 1


def since_the_second_window(counts: list[int], parts: int) -> list[int]:
    """Return how counts grew from the first micro-batch of the second window on."""
    return [count - counts[parts] for count in counts[parts:]]


def test_ranks_ask_each_other_on_the_host_every_tenth_update_only(launched: Launch) -> None:
    for report in launched("runs", processes=2)("collectives_of_an_epoch"):
        assert since_the_second_window(report["calls"], 1) == [0] * 9 + [1] * 10
    assert launched("runs", processes=1).rank_zero("collectives_of_an_epoch")["calls"] == [0] * 20


@pytest.mark.parametrize("step", [1, 4, 6, 8])
def test_a_resumed_run_ends_in_the_very_same_bits(launched: Launch, step: int) -> None:
    reports = launched("runs", processes=2)("resumed")
    for report in reports:
        assert report["steps"] == report[f"steps_from_{step}"] == 12
        assert torch.equal(report[f"from_{step}"], report["whole"])
        assert report[f"history_from_{step}"] == report["history"]


def test_a_resumed_run_finds_the_order_of_a_loader_that_shuffles(launched: Launch) -> None:
    for report in launched("runs", processes=2)("resumed_with_a_loader_that_shuffles"):
        assert torch.equal(report["from_6"], report["whole"])


def test_a_state_of_two_processes_is_refused_by_one(launched: Launch) -> None:
    results = launched("runs", processes=2)
    results("resumed")
    trainer = trainer_of(classifier())
    with pytest.raises(CheckpointError, match="was written by 2 processes and this run has 1; start as many"):
        trainer.train(samples(24), num_epochs=1, resume_from=results.folder / "states" / "step_1")


def test_a_checkpoint_saved_once_is_loaded_by_every_rank(launched: Launch) -> None:
    first, second = launched("runs", processes=2)("checkpoint_loaded_everywhere")
    assert torch.equal(first["loaded"], first["saved"])
    assert torch.equal(second["loaded"], first["saved"])
