"""The benchmark of data sets of your own: everybody draws the same samples, and whoever does not ends it."""

import argparse
import gc

import pytest

from benchmarks.loop import own_data as benchmark

OPTIONS = argparse.Namespace(rounds=2, samples=40, steps=3, seed=0)


@pytest.mark.parametrize("kind", benchmark.KINDS, ids=lambda kind: kind.name)
def test_every_kind_of_data_has_its_line_and_its_bar(kind: benchmark.Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "collect", int)  # it takes longer than all the rest
    cells = [cell.strip() for cell in benchmark.line_of(kind, 8, 0, OPTIONS).strip("|").split("|")]
    assert cells[:2] == [kind.name, "8"]
    assert cells[-1].startswith("" if kind.bar is None else str(kind.bar))


def test_a_side_that_leaves_samples_out_ends_the_benchmark() -> None:
    data = benchmark.Rows(40)
    half = [(data.inputs[:20], data.targets[:20])]
    with pytest.raises(SystemExit, match="treadle, rows, draws nothing: an epoch is not every sample once"):
        benchmark.require_every_sample("treadle", benchmark.KINDS[0], data, half)


def test_a_side_that_collates_otherwise_ends_the_benchmark() -> None:
    data = benchmark.Rows(40)
    with pytest.raises(SystemExit):
        benchmark.require_every_sample("treadle", benchmark.KINDS[0], data, [(data.inputs + 1, data.targets)])


def test_every_run_has_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "collect", int)
    table = benchmark.table_of_runs(OPTIONS)
    assert [line.split("|")[1].strip() for line in table.splitlines()[4:]] == list(benchmark.RUNS)


def test_workers_that_live_have_had_of_the_cpu() -> None:
    draw = benchmark.by_torch(benchmark.Rows(16), 8, 1)
    assert sum(len(targets) for _, targets in draw(0)) == 16
    assert benchmark.cpu_of_workers() > 0
    del draw
