"""The benchmark of loaders: everybody draws the same samples, and whoever does not ends it."""

import argparse
import gc
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.loop import data as benchmark

OPTIONS = argparse.Namespace(rounds=2, samples=70, seed=0)


def case_of(shape: str) -> benchmark.Case:
    return next(case for case in benchmark.make_cases(OPTIONS) if case.shape == shape)


def test_every_contender_gives_every_sample_once_and_has_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "collect", int)  # it takes longer than all the rest
    table = benchmark.table_of(case_of("image, 1x28x28"), OPTIONS)
    assert [line.split("|")[1].strip() for line in table.splitlines()[4:]] == [one.name for one in benchmark.CONTENDERS]


def test_a_contender_that_leaves_samples_out_ends_the_benchmark() -> None:
    case = case_of("row of 64")

    def half() -> Iterator[Any]:
        yield case.inputs[:32], case.targets[:32]

    with pytest.raises(SystemExit, match="randperm and index_select: an epoch of row of 64 is not every sample once"):
        benchmark.require_parity(benchmark.CONTENDERS[5], case, half())


def test_a_loader_that_takes_a_fifth_of_a_step_is_called_its_bottleneck() -> None:
    torch_loader = benchmark.CONTENDERS[0]
    rounds = [{torch_loader.name: 26.0}, {torch_loader.name: 26.0}]
    assert benchmark.as_line(torch_loader, rounds, 100.0).endswith(
        "| 1.00 | 1.00-1.00 | 38462 | 26.0 | 21% bottleneck |"
    )
    assert benchmark.as_line(torch_loader, rounds, 110.0).endswith("| 19% |")
