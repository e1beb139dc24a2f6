"""No optimizer steps with the gradients of one process alone, whoever made it and wherever it steps."""

import pytest
import torch

from tests.parallel.conftest import Launch
from tests.parallel.launching import EXACT, assert_same_run

pytestmark = pytest.mark.slow

KEPT = ["in_a_loop", "in_a_verb", "in_a_dict", "in_a_callback", "of_the_model", "own_update", "own_step", "apart"]


@pytest.mark.parametrize("scenario", KEPT)
def test_an_optimizer_of_ones_own_learns_the_same_on_every_rank_as_on_one_process(
    launched: Launch, scenario: str
) -> None:
    reference = launched("exchange", processes=1).rank_zero(scenario)
    first, second = launched("exchange", processes=2)(scenario)
    assert torch.equal(first["weights"], second["weights"])
    assert_same_run(first, reference)


def test_gradients_that_a_closure_makes_are_averaged_and_its_loss_too(launched: Launch) -> None:
    reference = launched("exchange", processes=1).rank_zero("closure")
    first, second = launched("exchange", processes=2)("closure")
    assert torch.equal(first["weights"], second["weights"])
    torch.testing.assert_close(first["weights"], reference["weights"], rtol=0, atol=100 * EXACT)


def test_an_optimizer_that_nobody_keeps_is_refused_by_name(launched: Launch) -> None:
    assert launched("exchange", processes=1).rank_zero("stranger") == {"message": ""}
    for report in launched("exchange", processes=2)("stranger"):
        assert report["message"].startswith(
            "the Adam of weights of shape (5, 3), (5,), (1, 5) and 1 more steps in training on 2 processes, and the "
            "trainer does not know it"
        )
        assert "treadle.parallel.local_updates()" in report["message"]


def test_weights_beside_the_model_that_differ_from_rank_to_rank_are_refused(launched: Launch) -> None:
    for report in launched("exchange", processes=2)("different_weights"):
        assert report["message"] == (
            "the weights of the optimizer 'opt_critic', the SGD of weights of shape (5, 3), (5,), (1, 5) and 1 more, "
            "are not the same on all processes; make them before train() after torch.manual_seed(...), or make them "
            "part of the model"
        )


def test_one_process_alone_may_fit_a_probe_after_an_evaluation(launched: Launch) -> None:
    first, second = launched("exchange", processes=2)("probe_after_an_evaluation")
    assert (first["fitted"], second["fitted"], first["steps"]) == (2, 0, 4)


SHAPES = "the SGD of weights of shape (5, 3), (5,), (1, 5) and 1 more"
CRITIC = f"the optimizer 'opt_critic', {SHAPES}"
LOOP, EVALUATION = "outside of the loop over an epoch", "in an evaluation"
ELSEWHERE = [
    ("at_run_start", CRITIC, LOOP),
    ("after_an_epoch", CRITIC, LOOP),
    ("at_run_end", CRITIC, LOOP),
    ("own_run", CRITIC, LOOP),
    ("of_the_model_at_run_end", "the SGD of weights of shape (3, 8), (3,)", LOOP),
    ("in_a_callback_between_epochs", f"the optimizer 'callback_handler.callback_list[0].optimizer', {SHAPES}", LOOP),
    ("in_an_evaluation", CRITIC, EVALUATION),
    ("in_an_evaluation_by_steps", CRITIC, EVALUATION),
    ("in_evaluate", CRITIC, EVALUATION),
]


@pytest.mark.parametrize(("scenario", "optimizer", "place"), ELSEWHERE, ids=[scenario for scenario, _, _ in ELSEWHERE])
def test_an_optimizer_of_the_run_that_steps_where_nobody_averages_gradients_is_refused_by_name(
    launched: Launch, scenario: str, optimizer: str, place: str
) -> None:
    assert launched("exchange", processes=1).rank_zero(scenario) == {"message": ""}
    for report in launched("exchange", processes=2)(scenario):
        assert report["message"] == (
            f"{optimizer}, steps {place} on 2 processes, where nobody averages gradients: its weights would become "
            "others on each. Step it in the loop over an epoch, such as in train_epoch_end, in on_train_epoch_end or "
            "in a _run_train_epoch of your own; or, if its weights are no part of the run, within "
            "treadle.parallel.local_updates()"
        )


def test_a_probe_that_is_made_in_an_evaluation_is_that_evaluations_own_also_where_it_is_kept(launched: Launch) -> None:
    first, second = launched("exchange", processes=2)("probe_of_each_evaluation")
    assert (first["fitted"], second["fitted"]) == ([True, True], [False, False])


def test_one_process_alone_may_fit_probes_after_the_last_epoch(launched: Launch) -> None:
    first, second = launched("exchange", processes=2)("probe_at_the_end")
    assert (first["fitted"], second["fitted"]) == (1, 0)
