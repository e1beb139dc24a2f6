"""Evaluation, gathering and prediction count every sample once, whatever the number of processes."""

from typing import Any

import pytest
import torch

from tests.parallel.conftest import Launch
from tests.parallel.launching import EXACT
from tests.parallel.programs.evaluation import SIZES

pytestmark = pytest.mark.slow
several = pytest.mark.parametrize("processes", [2, 3])


def compare(alone: dict[str, Any], reports: list[dict[str, Any]]) -> None:
    """Compare an evaluation by several ranks with one by a single process, sample by sample."""
    seen = [number for report in reports for number in report["seen"]]
    assert sorted(seen) == sorted(alone["seen"])
    for report in reports:
        assert report["loss"] == pytest.approx(alone["loss"], rel=EXACT)
        assert report["accuracy"] == alone["accuracy"]


@several
@pytest.mark.parametrize("size", SIZES)
def test_d28_every_sample_is_evaluated_exactly_once(launched: Launch, processes: int, size: int) -> None:
    alone = launched("evaluation", processes=1).rank_zero("sizes")[str(size)]
    reports = [report[str(size)] for report in launched("evaluation", processes=processes)("sizes")]
    assert sorted(alone["seen"]) == list(range(size))
    compare(alone, reports)


@several
@pytest.mark.parametrize("size", [13, 25])
def test_d28_drop_last_drops_a_short_global_batch(launched: Launch, processes: int, size: int) -> None:
    alone = launched("evaluation", processes=1).rank_zero("sizes_with_drop_last")[str(size)]
    reports = launched("evaluation", processes=processes)("sizes_with_drop_last")
    assert len(alone["seen"]) == 12 * (size // 12)
    compare(alone, [report[str(size)] for report in reports])


@several
@pytest.mark.parametrize("size", [5, 26])
def test_d28_data_without_a_length_is_evaluated_exactly_once(launched: Launch, processes: int, size: int) -> None:
    alone = launched("evaluation", processes=1).rank_zero("iterable")[str(size)]
    reports = [report[str(size)] for report in launched("evaluation", processes=processes)("iterable")]
    assert sorted(alone["seen"]) == list(range(size))
    compare(alone, reports)


@several
def test_d28_a_loader_that_shuffles_is_evaluated_exactly_once(launched: Launch, processes: int) -> None:
    alone = launched("evaluation", processes=1).rank_zero("shuffled_loader")
    assert sorted(alone["seen"]) == list(range(25))
    compare(alone, launched("evaluation", processes=processes)("shuffled_loader"))


@several
def test_d28_a_metric_whose_state_grows_is_computed_over_all_ranks(launched: Launch, processes: int) -> None:
    alone = launched("evaluation", processes=1).rank_zero("metric_whose_state_grows")
    for report in launched("evaluation", processes=processes)("metric_whose_state_grows"):
        assert report["auroc"] == pytest.approx(alone["auroc"], rel=1e-6)  # torchmetrics computes it in float32


@pytest.mark.parametrize("verb", ["evaluate", "train_with"])
def test_d28_fewer_samples_than_processes_are_refused_on_every_rank(launched: Launch, verb: str) -> None:
    results = launched("evaluation", processes=2)
    expected = "the evaluation data has 1 samples for 2 processes; give at least one to each"
    for report in results(f"too_few_samples_to_{verb}"):
        assert report["message"] == expected


def test_a_single_sample_is_predicted_on_every_rank(launched: Launch) -> None:
    for report in launched("evaluation", processes=2)("too_few_samples_to_predict"):
        assert report["outputs"].shape == (1, 3)


def test_d29_rows_are_gathered_in_rank_order_without_padding(launched: Launch) -> None:
    for report in launched("evaluation", processes=2)("gathered"):
        assert report["ragged"].tolist() == [0, 1, 10, 11, 12]
        assert report["by_the_trainer"].tolist() == [0, 1, 10, 11, 12]
        assert report["nothing_first"].tolist() == [[1, 1, 1]]
        assert report["flags"].tolist() == [True, True, True]
        assert report["equal"].tolist() == [[0, 0], [1, 1]]
        assert report["turned"].tolist() == [[0, 3], [1, 4], [2, 5], [1, 4], [2, 5], [3, 6]]


def test_d29_rows_that_equal_the_padding_survive(launched: Launch) -> None:
    for report in launched("evaluation", processes=2)("gathered"):
        assert report["padding_like"].tolist() == [[-1, -1]] * 5


def test_d29_a_scalar_gives_one_row_for_each_process(launched: Launch) -> None:
    for report in launched("evaluation", processes=3)("gathered"):
        assert report["scalars"].tolist() == [0, 1, 2]


def test_d29_unequal_rows_without_a_padding_value_are_refused_on_every_rank(launched: Launch) -> None:
    for report in launched("evaluation", processes=3)("gathered_without_padding"):
        assert report["message"] == "gather: the processes hold [1, 2, 3] rows; pass padding_value= to join them"


@several
def test_d29_a_verb_gathers_what_it_evaluated(launched: Launch, processes: int) -> None:
    for report in launched("evaluation", processes=processes)("gathered_in_a_verb"):
        assert report["numbers"] == list(range(25))


@several
@pytest.mark.parametrize("size", SIZES)
def test_every_sample_is_predicted_in_order_on_every_rank(launched: Launch, processes: int, size: int) -> None:
    alone = launched("evaluation", processes=1).rank_zero("predicted")[str(size)]
    assert alone.shape == (size, 3)
    for report in launched("evaluation", processes=processes)("predicted"):
        torch.testing.assert_close(report[str(size)], alone, rtol=0, atol=EXACT)


@several
def test_data_without_a_length_is_predicted_in_order_on_every_rank(launched: Launch, processes: int) -> None:
    alone = launched("evaluation", processes=1).rank_zero("predicted_without_length")["outputs"]
    assert alone.shape == (26, 3)
    for report in launched("evaluation", processes=processes)("predicted_without_length"):
        torch.testing.assert_close(report["outputs"], alone, rtol=0, atol=EXACT)


def test_a_prediction_that_is_no_tensor_is_refused_on_several_processes(launched: Launch) -> None:
    for report in launched("evaluation", processes=2)("predicted_no_tensor"):
        assert report["message"] == "predict() on several processes needs a tensor from calculate_prediction"


@several
def test_every_verb_looks_at_one_model_where_buffers_differ(launched: Launch, processes: int) -> None:
    alone = launched("evaluation", processes=1).rank_zero("buffers_apart")
    for report in launched("evaluation", processes=processes)("buffers_apart"):
        torch.testing.assert_close(report["predicted"], alone["predicted"], rtol=0, atol=EXACT)
        assert report["evaluated"] == pytest.approx(alone["evaluated"], rel=EXACT)
        assert report["by_own_loop"] == pytest.approx(alone["by_own_loop"], rel=EXACT)
        assert torch.equal(report["saved"], alone["saved"])


@several
def test_what_a_run_reports_is_of_the_model_it_saved(launched: Launch, processes: int) -> None:
    reports = launched("evaluation", processes=processes)("buffers_apart_in_a_run")
    for report in reports:
        assert report["reported"] == pytest.approx(report["of_the_saved"], rel=EXACT)
        assert report["average"] == pytest.approx(report["of_the_average"], rel=EXACT)
        assert torch.equal(report["mean"], reports[0]["mean"])
        assert torch.equal(report["predicted"], reports[0]["predicted"])


@several
def test_d25_training_and_evaluation_alternate_and_ranks_stay_bit_identical(launched: Launch, processes: int) -> None:
    alone = launched("evaluation", processes=1).rank_zero("train_evaluate_train")
    reports = launched("evaluation", processes=processes)("train_evaluate_train")
    for report in reports:
        assert torch.equal(report["weights"], reports[0]["weights"])
        torch.testing.assert_close(report["weights"], alone["weights"], rtol=0, atol=EXACT)
        assert report["losses"] == pytest.approx(alone["losses"], rel=EXACT)


def test_d24_the_model_stays_the_users_own_and_its_names_without_a_prefix(launched: Launch) -> None:
    for report in launched("evaluation", processes=2)("train_evaluate_train"):
        assert report["model_is_the_users"]
        assert report["names"] == ["0.bias", "0.weight", "2.bias", "2.weight"]


@several
@pytest.mark.parametrize("size", [1, 13, 25])
def test_metrics_by_name_are_those_of_one_process(launched: Launch, processes: int, size: int) -> None:
    alone = launched("evaluation", processes=1).rank_zero("named_metrics")[str(size)]
    assert {"accuracy", "perplexity", "largest"} <= set(alone)
    assert ("auroc" in alone) is (size > 1)
    for report in launched("evaluation", processes=processes)("named_metrics"):
        assert report[str(size)] == pytest.approx(alone, rel=EXACT)
        for counted in ("accuracy", "f1"):
            assert report[str(size)][counted] == alone[counted]
