"""Stages, divided layers and sharded weights together, in float64, beside a loop written by hand on one process."""

import importlib.util

import pytest

from tests.parallel.conftest import Launch
from tests.parallel.programs.combined import PRETRAINED, STEPS

pytestmark = pytest.mark.slow

EXACT = 1e-12
SINGLE = 1e-7
"""How far models may be apart that normalise in single precision, whatever they are in: those of the Llama kind, T5."""
DOUBLE = ("gpt2", "bert", "vit")


def largest(report: dict[str, float]) -> float:
    return max(report[name] for name in ("losses", "norms", "weights") if name in report)


@pytest.mark.parametrize("plan", ["tensor + pipeline", "FSDP2 + pipeline"])
def test_stages_of_divided_or_sharded_layers_train_as_one_process_does(launched: Launch, plan: str) -> None:
    for report in launched("combined", processes=4)(f"GPT, {plan}"):
        assert largest(report) < EXACT
        assert report["steps"] == STEPS
        assert report["average"] < EXACT
        assert report["evaluated"] < EXACT


@pytest.mark.parametrize("plan", ["tensor + pipeline", "FSDP2 + pipeline"])
def test_a_run_of_such_stages_resumes_within_an_epoch_to_the_very_same_bits(launched: Launch, plan: str) -> None:
    for report in launched("combined", processes=4)(f"GPT, {plan}"):
        assert (report["began_at"], report["updates"]) == (2, STEPS - 2)
        assert report["again"] == 0.0


@pytest.mark.parametrize("plan", ["DDP", "hybrid", "FSDP2 + tensor"])
def test_muon_makes_whole_matrices_orthogonal_however_they_are_cut(launched: Launch, plan: str) -> None:
    for report in launched("combined", processes=4)(f"Muon, {plan}"):
        assert largest(report) < EXACT
        assert (report["began_at"], report["updates"]) == (2, STEPS - 2)
        # Four processes of DDP add up the first gradients after a resume in another order.
        assert report["again"] < EXACT if plan == "DDP" else report["again"] == 0.0


@pytest.mark.skipif(not importlib.util.find_spec("transformers"), reason="the extra hf is not installed")
@pytest.mark.parametrize(("kind", "plan"), [(kind, plan) for kind, plans in PRETRAINED.items() for plan in plans])
def test_a_model_of_transformers_says_itself_how_it_is_divided(launched: Launch, kind: str, plan: str) -> None:
    for report in launched("combined", processes=4)(f"{kind}, {plan}"):
        assert largest(report) < (EXACT if kind in DOUBLE else SINGLE)
        assert report["steps"] == STEPS


@pytest.mark.skipif(not importlib.util.find_spec("transformers"), reason="the extra hf is not installed")
def test_a_fused_head_of_sharded_weights_trains_as_the_head_does(launched: Launch) -> None:
    for report in launched("combined", processes=4)("fused head, hybrid"):
        assert largest(report) < EXACT
        assert report["steps"] == STEPS
        assert "FusedHead: under parallel=Plan(shard=2, tensor=2) no process computes all scores" in report["refused"]
