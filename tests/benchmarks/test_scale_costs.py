"""The cost model on paper says what its formulas say, and the page repeats it."""

import os
from pathlib import Path

import pytest

from benchmarks.loop.scale_costs import Machine, Shape, efficiency, exchanges, on_the_wire, volume

PAGE = Path(__file__).parents[2] / "docs" / "scaling.md"
BEGIN, END = "<!-- begin: written by tests/benchmarks/test_scale_costs.py -->", "<!-- end: paper -->"
LARGE = Shape(
    weights=1_300_000_000,
    block_weights=1_200_000_000,
    layers=24,
    width=2048,
    tokens=16_384,
    shared_weights=100_000_000,
    first_stage=250_000_000,
    spread_weights=1_200_000_000,
)


def test_a_ring_sends_twice_what_it_sums_but_for_one_share() -> None:
    assert on_the_wire({"all_reduce": 800}, 4) == 1200
    assert on_the_wire({"all_gather": 800, "reduce_scatter": 400, "send": 10, "receive": 10}, 4) == 910


def test_volumes_by_hand() -> None:
    shape = Shape(
        weights=100, block_weights=80, layers=2, width=3, tokens=5, shared_weights=7, first_stage=60, spread_weights=40
    )
    assert volume(shape, "DDP") == {"all_reduce": 404}
    assert volume(shape, "FSDP2") == {"all_gather": 720, "all_reduce": 4, "reduce_scatter": 400}
    assert volume(shape, "tensor") == {"all_reduce": 480}
    assert volume(shape, "pipeline") == {"all_reduce": 28, "receive": 60, "send": 60}
    assert volume(shape, "hybrid", 4) == {"all_gather": 720, "all_reduce": 104, "reduce_scatter": 400}
    assert volume(shape, "FSDP2 + tensor", 4) == {"all_gather": 480, "all_reduce": 484, "reduce_scatter": 280}
    assert volume(shape, "DDP + pipeline") == {"all_reduce": 272, "receive": 60, "send": 60}
    with pytest.raises(ValueError, match="no formula for the plan 'magic'"):
        volume(shape, "magic")


def test_a_pipeline_that_is_filled_and_emptied_computes_for_a_part_of_the_time() -> None:
    nothing_sent = Shape(weights=100, block_weights=80, layers=2, width=0, tokens=5)
    assert efficiency(nothing_sent, "pipeline", 8, Machine(), micro_batches=32) == (32 / 39, 32 / 39)


def test_groups_inside_of_a_machine_leave_little_for_the_wires_between() -> None:
    inside, between = exchanges(LARGE, "hybrid", 64, Machine())
    assert inside[1:] == (8, 3e11)
    assert between == ({"all_reduce": 4 * LARGE.weights // 8 + 4}, 8, 4e10)


def test_the_table_in_the_docs_is_that_of_the_formulas() -> None:
    lines = ["| plan | 8 GPUs | 64 GPUs | 1,024 GPUs |", "|---|---|---|---|"]
    for plan in ("DDP", "FSDP2", "hybrid", "FSDP2 + tensor", "DDP + pipeline"):
        shares = [efficiency(LARGE, plan, ranks, Machine()) for ranks in (8, 64, 1024)]
        lines.append(f"| {plan} | " + " | ".join(f"{low:.0%} to {high:.0%}" for low, high in shares) + " |")
    table = "\n".join((BEGIN, "", *lines, "", END))
    text = PAGE.read_text()
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    if os.environ.get("TREADLE_WRITE_DOCS") == "1":
        PAGE.write_text(before + table + after)
    assert before + table + after == PAGE.read_text(), "run this test with TREADLE_WRITE_DOCS=1 to write the table"
