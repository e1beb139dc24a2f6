"""Cross-entropies with class weights and ignored targets, on two processes."""

import importlib.util

import pytest
import torch

from tests.parallel.conftest import Launch
from tests.parallel.launching import EXACT

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "scenario", ["weights", "weights_accumulated", "ignored", "ignored_accumulated", "both", "two_optimizers"]
)
def test_two_processes_make_the_gradient_of_one_batch(launched: Launch, scenario: str) -> None:
    whole = scenario.removesuffix("_accumulated")
    reference = launched("weighted", processes=1).rank_zero(whole)
    first, second = launched("weighted", processes=2)(scenario)
    assert torch.equal(first["weights"], second["weights"])
    torch.testing.assert_close(first["weights"], reference["weights"], rtol=0, atol=EXACT)
    assert first["steps"] == reference["steps"] == 10


@pytest.mark.parametrize("scenario", ["labels", "labels_accumulated"])
def test_a_model_that_computes_its_loss_from_labels_has_the_gradient_of_one_batch(
    launched: Launch, scenario: str
) -> None:
    reference = launched("weighted", processes=1).rank_zero("labels")
    first, second = launched("weighted", processes=2)(scenario)
    assert torch.equal(first["weights"], second["weights"])
    torch.testing.assert_close(first["weights"], reference["weights"], rtol=0, atol=EXACT)
    assert first["steps"] == reference["steps"] == 10


def test_class_weights_in_a_verb_of_ones_own_are_refused_on_two_processes_and_fine_on_one(launched: Launch) -> None:
    assert launched("weighted", processes=1).rank_zero("own_verb") == {"message": ""}
    for report in launched("weighted", processes=2)("own_verb"):
        assert "computes cross_entropy with class weights" in report["message"]


def test_stages_of_a_model_weigh_their_micro_batches_by_the_targets_that_count(launched: Launch) -> None:
    reference = launched("weighted", processes=1).rank_zero("stages")
    for report in launched("weighted", processes=2)("stages"):
        torch.testing.assert_close(report["outputs"], reference["outputs"], rtol=0, atol=EXACT)
        assert report["steps"] == reference["steps"] == 8


def test_the_last_module_of_stages_may_say_over_what_its_loss_is_a_mean(launched: Launch) -> None:
    reference = launched("weighted", processes=1).rank_zero("stages_that_end_in_a_loss")
    for report in launched("weighted", processes=2)("stages_that_end_in_a_loss"):
        # What a window's losses are means over goes from stage to stage in single precision.
        torch.testing.assert_close(report["outputs"], reference["outputs"], rtol=0, atol=1e-6)


def test_stages_leave_out_an_update_for_a_bad_loss_whose_gradient_is_fine(launched: Launch) -> None:
    reference = launched("weighted", processes=1).rank_zero("stages_with_a_bad_loss")
    for report in launched("weighted", processes=2)("stages_with_a_bad_loss"):
        torch.testing.assert_close(report["outputs"], reference["outputs"], rtol=0, atol=EXACT)
        assert report["steps"] == reference["steps"] == 8


@pytest.mark.skipif(not importlib.util.find_spec("transformers"), reason="the extra hf is not installed")
@pytest.mark.parametrize(("way", "parts"), [("stages", 1), ("stages", 4), ("shares", 1), ("shares", 4)])
def test_a_config_averages_the_loss_of_a_model_of_transformers_over_its_labels(
    launched: Launch, way: str, parts: int
) -> None:
    reference = launched("weighted", processes=1).rank_zero("pretrained shares 1")
    for report in launched("weighted", processes=2)(f"pretrained {way} {parts}"):
        # What a window's losses are means over goes from stage to stage in single precision.
        torch.testing.assert_close(report["weights"], reference["weights"], rtol=0, atol=EXACT)
        assert report["losses"] == pytest.approx(reference["losses"], abs=1e-6)
