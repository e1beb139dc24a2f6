"""Every plan trains as one process does, with every feature, or refuses it; the table in the docs says which."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.loop.scale_costs import Shape, volume
from tests.parallel.conftest import Launch
from tests.parallel.programs.from_config import WAYS
from tests.parallel.programs.plans import (
    CNN_PLANS,
    CONTEXT,
    EVERYWHERE,
    GLOBAL_BATCH,
    PLANS,
    RESHARDED,
    features_of,
    gpt,
)

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "scaling.md"
BEGIN, END = "<!-- begin: written by tests/parallel/test_plans.py -->", "<!-- end -->"
WRITES = "TREADLE_WRITE_DOCS"
"""Set to 1, the test writes the table instead of comparing it."""
CLOSE = 1e-5
HALF_CLOSE = 0.03
"""How far losses in half precision may be apart, which round after other sums."""
STAGED = [(name, title) for world in (2, 4) for name, titles in WAYS[world].items() for title in titles]
"""What is trained in stages because a config says so."""
WORLDS = {name: world for world, plans in PLANS.items() for name in plans}
STAGED_WORLDS = {name: world for world in (2, 4) for name in WAYS[world]}


@pytest.fixture(scope="session")
def everything(launched: Launch) -> Launch:
    """All launches, in the order in which they go on with each other's runs."""
    for world in (1, 2, 4):
        launched("plans", processes=world)
    for world in (1, 2):
        launched("resharded_back", processes=world)
    return launched


def reports(everything: Launch, plan: str, title: str, network: str = "") -> list[dict[str, Any]]:
    return everything("plans", processes=(STAGED_WORLDS | WORLDS)[plan])(f"{network}{plan}: {title}")


def assert_alike(own: dict[str, Any], one: dict[str, Any], close: float) -> None:
    """Check that a run reports what one process does."""
    assert own.keys() == one.keys()
    for name, value in one.items():
        if name in ("weights", "again"):
            continue
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(own[name], value, rtol=0, atol=10 * close)
        elif name == "history":
            assert own[name].keys() == value.keys()
            for metric, values in value.items():
                assert own[name][metric] == pytest.approx(values, abs=close), metric
        else:
            assert own[name] == pytest.approx(value, abs=close), name


def row(everything: Launch, plan: str, title: str, network: str = "") -> str:
    """Return a row of the table, having compared the run with that of one process."""
    own = reports(everything, plan, title, network)
    if "refused" in own[0]:
        assert len({report["refused"] for report in own}) == 1, "ranks are told different things"
        outcome = f"refused: {own[0]['refused']}"
    else:
        one = everything("plans", processes=1).rank_zero(f"{network}one process: {title}")
        for report in own:
            assert_alike(report, one, HALF_CLOSE if title in ("bf16", "fp16") else CLOSE)
        outcome = "works"
    return f"| {network}{plan} | {title} | {outcome.replace('|', '/')} |"


def rows(everything: Launch) -> list[str]:
    made = [row(everything, plan, title) for plan in WORLDS if plan != "one process" for title in features_of(plan)]
    cnn = [plan for plan in CNN_PLANS if plan != "one process"]
    made += [row(everything, plan, title, "CNN ") for plan in cnn for title in EVERYWHERE]
    return made + [row(everything, plan, title, "config ") for plan, title in STAGED]


def test_the_table_in_the_docs_is_what_the_runs_gave(everything: Launch) -> None:
    lines = ["| plan | feature | outcome |", "|---|---|---|", *rows(everything)]
    table = "\n".join((BEGIN, "", *lines, "", END))
    text = PAGE.read_text()
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    if os.environ.get(WRITES) == "1":
        PAGE.write_text(before + table + after)
    assert before + table + after == PAGE.read_text(), f"run this test with {WRITES}=1 to write the table"


@pytest.mark.parametrize("plan", [plan for plan in WORLDS if plan != "one process"])
@pytest.mark.parametrize("title", EVERYWHERE)
def test_what_any_run_needs_works_with_every_plan(everything: Launch, plan: str, title: str) -> None:
    assert row(everything, plan, title).endswith("| works |")


@pytest.mark.parametrize("plan", [plan for plan in CNN_PLANS if plan != "one process"])
@pytest.mark.parametrize("title", EVERYWHERE)
def test_convolutions_are_spread_too(everything: Launch, plan: str, title: str) -> None:
    assert row(everything, plan, title, "CNN ").endswith("| works |")


@pytest.mark.parametrize("plan", list(WORLDS))
def test_a_run_that_is_taken_up_by_its_own_plan_ends_in_the_very_same_bits(everything: Launch, plan: str) -> None:
    for report in reports(everything, plan, "save and resume"):
        assert torch.equal(report["again"], report["weights"])


# Wrong results that people meet ---------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", [plan for plan in WORLDS if plan != "one process"])
def test_a_schedule_moves_once_per_update_and_not_once_per_process(everything: Launch, plan: str) -> None:
    for report in reports(everything, plan, "20 steps"):
        assert report["rate"] == pytest.approx(1e-2 * 0.7**4)


@pytest.mark.parametrize("plan", list(WORLDS))
def test_an_evaluation_counts_each_sample_once_however_they_are_padded(everything: Launch, plan: str) -> None:
    for report in reports(everything, plan, "evaluation"):
        assert report["samples"] == 13
        assert report["history"]["samples"] == [13, 13]


@pytest.mark.parametrize("plan", ["DDP", "FSDP2", "tensor"])
def test_an_accumulated_loss_is_a_mean_over_the_tokens_of_a_window(everything: Launch, plan: str) -> None:
    assert row(everything, plan, "a loss per token, accumulated").endswith("| works |")


# From a config --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["zero", "by layer"])
def test_a_config_spreads_a_model_and_evaluates_it(everything: Launch, name: str) -> None:
    plain = everything("plans", processes=1).rank_zero("config: plain")
    for report in everything("plans", processes=2)(f"config: {name}"):
        assert report["losses"] == pytest.approx(plain["losses"], abs=CLOSE)
        assert report["accuracy"] == plain["accuracy"]


@pytest.mark.parametrize(("plan", "title"), STAGED)
def test_a_config_cuts_a_model_into_stages(everything: Launch, plan: str, title: str) -> None:
    assert row(everything, plan, title, "config ").endswith("| works |")


def test_a_run_of_a_config_in_stages_is_taken_up_to_the_very_same_bits(everything: Launch) -> None:
    for plan in ("pipeline", "DDP + pipeline", "tensor + pipeline", "FSDP2 + pipeline"):
        for report in reports(everything, plan, "save and resume", "config "):
            assert torch.equal(report["again"], report["weights"])
            assert report["again_losses"] == report["losses"]


def test_a_trainer_in_stages_goes_on_when_it_is_asked_to_train_again(everything: Launch) -> None:
    for report in reports(everything, "pipeline", "train() again", "config "):
        assert torch.equal(report["again"], report["weights"])
        assert report["again_losses"] == report["losses"]


def test_what_stages_of_a_config_cannot_do_is_refused_on_every_process(everything: Launch) -> None:
    for found in everything("plans", processes=2)("config refusals"):
        assert found == {
            "own step": "train.dist.pipeline_parallel_size: a run_step of your own calls the model, which no process "
            "has all of; leave run_step as it is, or set it to 1",
        }


# What is exchanged ----------------------------------------------------------------------------------------------


def count_of(weights: Iterable[Tensor]) -> int:
    return sum(weight.numel() for weight in weights)


def is_sharded(name: str) -> bool:
    """Whether tensor parallelism cuts a weight: all of a layer by columns, of one by rows its matrix."""
    layer, kind = name.rsplit(".", 1)
    return layer.endswith((".inputs", ".outward")) or (layer.endswith(".residual") and kind == "weight")


@pytest.mark.parametrize("plan", [plan for plan in WORLDS if plan != "one process"])
def test_the_bytes_that_a_step_exchanges_are_those_of_the_formula(everything: Launch, plan: str) -> None:
    model = gpt()
    trunk = model.trunk
    # Who shares samples with others has as many as two ranks of DDP; of four ranks, two do.
    samples = GLOBAL_BATCH if plan in ("tensor", "pipeline") else GLOBAL_BATCH // 2
    spread = [name for name, _ in model.named_parameters() if is_sharded(name)]
    shape = Shape(
        weights=count_of(model.parameters()),
        block_weights=count_of(trunk.blocks.parameters()),
        layers=2,
        width=16,
        tokens=samples * CONTEXT,
        shared_weights=model.head.weight.numel(),
        first_stage=count_of([trunk.tokens.weight, trunk.positions.weight, *trunk.blocks[0].parameters()]),
        spread_weights=count_of(model.get_parameter(name) for name in spread),
    )
    first = everything("plans", processes=WORLDS[plan]).rank_zero(f"volume of {plan}")
    assert first["volume"] == volume(shape, plan)


# Another plan goes on -------------------------------------------------------------------------------------------

PLACES = {name: world for world, plans in RESHARDED.items() for name in plans}


@pytest.mark.parametrize("saved_by", list(PLACES))
@pytest.mark.parametrize("taken_up_by", list(PLACES))
def test_a_run_goes_on_under_another_plan(everything: Launch, saved_by: str, taken_up_by: str) -> None:
    program = "plans" if PLACES[saved_by] <= PLACES[taken_up_by] else "resharded_back"
    whole = everything("plans", processes=1).rank_zero("uninterrupted")
    for report in everything(program, processes=PLACES[taken_up_by])(f"{taken_up_by} from {saved_by}"):
        assert report["losses"] == pytest.approx(whole["losses"], abs=CLOSE)
        epochs = "train_loss_epoch"
        assert report["history"][epochs] == pytest.approx(whole["history"][epochs], abs=CLOSE)
