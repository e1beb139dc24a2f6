"""Search over trials: how good its strategies are on NAS-Bench-201, and what a trial costs that does nothing.

    python -m benchmarks.nas.search --write

Parts are `--part quality`, `--part signal` and `--part cost`; the last is about milliseconds, and wants a machine that
is not busy.

The tables of NAS-Bench-201 are looked for in the folder `nasbench201` of `$TREADLE_DATA`. The objective is the test
accuracy on CIFAR-100 after 200 epochs; a query is a trial that was not tried before. With `--part signal` strategies
see the accuracy on validation data after 12 epochs, and are judged by the best test accuracy after 200 of what they
tried.
"""

import argparse
import csv
import gzip
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.provenance import provenance
from benchmarks.results import write_section
from treadle import nas
from treadle.data.location import data_folder

OPERATIONS = ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")
EDGES = ("1_0", "2_0", "2_1", "3_0", "3_1", "3_2")
"""The places of a cell: `i_j` is what lies between state j and state i."""
COLUMN = "CIFAR100TestAccuracy200Epochs"
STRATEGIES = ("random", "grid", "tpe", "evolution", "surrogate", "nsga2")
BY_HAND = "evolution, written by hand"
BARS = {"evolution": 73.3}
SIGNALLED: dict[str, tuple[int, float]] = {"surrogate": (100, 73.3), "tpe": (200, 73.4), "evolution": (200, 73.5)}
"""Strategies that see accuracy after 12 epochs: the queries of each, and what the best cell among them must have."""
MILLISECONDS = 10.0
"""What a trial that does nothing may take."""
PACKAGES = ("treadle", "optuna", "torch")
SECTION = "nas-search"

Table = dict[tuple[str, ...], float]


def read_table(folder: Path) -> Table:
    """Return the accuracy of every cell by its operations, in the order of `EDGES`."""
    with gzip.open(folder / "nats_bench.csv.gz", "rt", encoding="utf-8", newline="") as file:
        return {operations_of(row["ArchitectureString"]): float(row[COLUMN]) for row in csv.DictReader(file)}


def operations_of(text: str) -> tuple[str, ...]:
    """Return the operations of a cell from its text.

    >>> operations_of("|none~0|+|skip_connect~0|none~1|+|none~0|nor_conv_1x1~1|none~2|")
    ('none', 'skip_connect', 'none', 'none', 'nor_conv_1x1', 'none')
    """
    return tuple(part.partition("~")[0] for part in text.replace("+", "").split("|") if part)


# Quality ------------------------------------------------------------------------------------------------------


def best_of(strategy: Any, table: Table, queries: int, seed: int) -> float:
    """Return the best accuracy that a search has found after so many queries."""

    def look_up(cell: Mapping[str, str]) -> float:
        return table[tuple(cell[edge] for edge in EDGES)]

    space = {edge: nas.one_of(*OPERATIONS) for edge in EDGES}
    search = nas.Search(space, look_up, strategy=strategy, trials=queries, seed=seed, store="memory")
    return float(search.run()["best"]["values"]["default"])


def best_by_hand(table: Table, queries: int, seed: int, population: int = 20, sample: int = 5) -> float:
    """Return the best accuracy of regularised evolution as one would write it down, without a framework."""
    chance = random.Random(seed)
    history: list[tuple[str, ...]] = []
    tried: set[tuple[str, ...]] = set()
    while len(tried) < queries:
        if len(history) < population:
            cell = tuple(chance.choice(OPERATIONS) for _ in EDGES)
        else:
            parent = max(chance.sample(history[-population:], sample), key=table.__getitem__)
            place = chance.randrange(len(EDGES))
            other = chance.choice([name for name in OPERATIONS if name != parent[place]])
            cell = (*parent[:place], other, *parent[place + 1 :])
        history.append(cell)
        tried.add(cell)
    return max(table[cell] for cell in tried)


def qualities(table: Table, queries: int, seeds: int, strategies: Sequence[str]) -> dict[str, list[float]]:
    """Return the best accuracy of each seed, by strategy."""
    ways: dict[str, Callable[[int], float]] = {
        name: lambda seed, name=name: best_of(name, table, queries, seed)  # type: ignore[misc]
        for name in strategies
    }
    ways[BY_HAND] = lambda seed: best_by_hand(table, queries, seed)
    found: dict[str, list[float]] = {}
    for name, way in ways.items():
        found[name] = [way(seed) for seed in range(seeds)]
        print(f"{name}: mean {statistics.mean(found[name]):.2f} of {[round(value, 2) for value in found[name]]}")
    return found


# A short training as signal -----------------------------------------------------------------------------------


def read_signals(folder: Path) -> Table:
    """Return the accuracy of every cell on validation data after 12 epochs."""
    with gzip.open(folder / "mini_nasbench201_12epochs.csv.gz", "rt", encoding="utf-8", newline="") as file:
        return {operations_of(row["cellstr"]): float(row["cifar100-val"]) for row in csv.DictReader(file)}


def best_by_signal(strategy: str, signals: Table, table: Table, queries: int, seed: int) -> tuple[float, float]:
    """Return the best score among the cells that a search has tried, and the score of the one it takes for the best."""

    def look_up(cell: Mapping[str, str]) -> float:
        return signals[tuple(cell[edge] for edge in EDGES)]

    space = {edge: nas.one_of(*OPERATIONS) for edge in EDGES}
    results = nas.Search(space, look_up, strategy=strategy, trials=queries, seed=seed, store="memory").run()
    cells = [tuple(trial["parameters"][edge] for edge in EDGES) for trial in results["trials"]]
    chosen = tuple(results["best"]["parameters"][edge] for edge in EDGES)
    return max(table[cell] for cell in cells), table[chosen]


def signal_section(signals: Table, table: Table, options: Any) -> str:
    """Return the section on strategies that see short trainings."""
    rows = []
    for name, (queries, bar) in SIGNALLED.items():
        found = [best_by_signal(name, signals, table, queries, seed) for seed in range(options.seeds)]
        best, chosen = ([pair[place] for pair in found] for place in (0, 1))
        print(name, best, chosen, flush=True)
        mean = statistics.mean(best)
        rows.append(
            f"| {name} | {queries} | {mean:.2f} | {min(best):.2f} | {statistics.mean(chosen):.2f} | {bar}: "
            f"{_met(round(mean, 2) >= bar)} |"
        )
    return "\n".join(
        [
            "## Search over trials: NAS-Bench-201, by short trainings",
            "",
            provenance("nas.search", PACKAGES, seeds=options.seeds),
            "",
            "Strategies see the accuracy on CIFAR-100's validation data after 12 epochs. The score of a cell is its "
            f"test accuracy after 200; the best has {max(table.values()):.2f}, and the one that short trainings take "
            f"for the best {table[max(signals, key=signals.__getitem__)]:.2f}.",
            "",
            "| strategy | queries | best score among them, mean | worst seed | that of the signal's best, mean | bar |",
            "|---|--:|--:|--:|--:|---|",
            *rows,
        ]
    )


# What a trial costs -------------------------------------------------------------------------------------------


class Spent(NamedTuple):
    """Milliseconds of a trial."""

    clock: float
    waiting: float
    processor: float


def milliseconds(trials: int, strategy: str) -> Spent:
    """Return what a trial takes that does nothing, with the durable store."""
    space = {edge: nas.one_of(*OPERATIONS) for edge in EDGES}
    with tempfile.TemporaryDirectory() as folder:
        search = nas.Search(space, lambda cell: 0.0, strategy=strategy, trials=trials, run_dir=folder, duplicates="run")
        before = _clocks()
        found = search.run()
        spent = [1000 * (after - begun) / trials for begun, after in zip(before, _clocks(), strict=True)]
        search.close()
    assert len(found["trials"]) == trials
    return Spent(*spent)


def _clocks() -> tuple[float, float, float]:
    return time.perf_counter(), _waited(), time.process_time()


def _waited() -> float:
    """Return the seconds that this process was ready to run and had no core; 0 where the system does not tell."""
    told = Path("/proc/self/schedstat")
    return int(told.read_text().split()[1]) / 1e9 if told.exists() else 0.0


def costs(trials: int, rounds: int, strategies: Sequence[str]) -> dict[str, list[Spent]]:
    """Return the milliseconds of a trial, round by round, by strategy; the first round of each is left out."""
    found = {name: [milliseconds(trials, name) for _ in range(rounds + 1)][1:] for name in strategies}
    for name, rows in found.items():
        print(f"{name}: {statistics.median(row.clock for row in rows):.2f} ms a trial")
    return found


# The section --------------------------------------------------------------------------------------------------


def quality_section(table: Table, found: Mapping[str, list[float]], options: Any) -> str:
    """Return the section on quality."""
    return "\n".join(
        [
            "## Search over trials: NAS-Bench-201",
            "",
            provenance("nas.search", PACKAGES, queries=f"{options.queries}, {options.seeds} seeds"),
            "",
            f"{len(table):,} cells; the best has {max(table.values()):.2f}% on CIFAR-100, all together "
            f"{statistics.mean(table.values()):.2f}% on average. A query is a cell that was not tried before.",
            "",
            "| strategy | best after the queries, mean | spread | worst seed | best seed | bar |",
            "|---|--:|--:|--:|--:|---|",
            *(_quality(name, values, found) for name, values in found.items()),
        ]
    )


def cost_section(spent: Mapping[str, list[Spent]], options: Any) -> str:
    """Return the section on what a trial costs."""
    facts = {"trials": f"{options.trials}, {options.rounds} rounds after one"}
    if hasattr(os, "getloadavg"):
        facts["load"] = f"{os.getloadavg()[0]:.0f} programs waited for the cores; own priority {os.nice(0)}"
    return "\n".join(
        [
            "## Search over trials: what a trial costs",
            "",
            provenance("nas.search", PACKAGES, **facts),
            "",
            "A trial that does nothing, in the process, with the journal on the disk; milliseconds, medians over the "
            "rounds, and their middle half. Waiting: ready to run, while other programs had the cores. The bar is for "
            "the clock; where others had the cores, the rest, with the waits for the disk in it, says what to expect "
            "of a machine of your own, but is no measurement of it.",
            "",
            "| strategy | by the clock | middle half | waiting | the rest | processor | bar |",
            "|---|--:|--:|--:|--:|--:|---|",
            *(_cost(name, rows) for name, rows in spent.items()),
        ]
    )


def _quality(name: str, values: list[float], found: Mapping[str, list[float]]) -> str:
    mean, bar = statistics.mean(values), ""
    if name in BARS:
        bar = f"{BARS[name]}: {_met(mean >= BARS[name])}"
    elif name == "tpe" and "random" in found:
        bar = f"above random: {_met(mean > statistics.mean(found['random']))}"
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"| {name} | {mean:.2f} | {spread:.2f} | {min(values):.2f} | {max(values):.2f} | {bar} |"


def _cost(name: str, rows: list[Spent]) -> str:
    clock, quarter = sorted(row.clock for row in rows), len(rows) // 4
    own = statistics.median(row.clock - row.waiting for row in rows)
    by_clock, without = _met(statistics.median(clock) <= MILLISECONDS), _met(own <= MILLISECONDS)
    bar = f"{MILLISECONDS:g}: {by_clock} by the clock, {without} without waiting" if name == "random" else ""
    numbers = [
        f"{statistics.median(clock):.2f}",
        f"{clock[quarter]:.2f}-{clock[-1 - quarter]:.2f}",
        f"{statistics.median(row.waiting for row in rows):.2f}",
        f"{own:.2f}",
        f"{statistics.median(row.processor for row in rows):.2f}",
    ]
    return f"| {name} | {' | '.join(numbers)} | {bar} |"


def _met(is_met: bool) -> str:
    return "met" if is_met else "MISSED"


def main(arguments: Sequence[str] | None = None) -> None:
    """Search, measure, and print the section."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", nargs="*", default=list(STRATEGIES), choices=STRATEGIES, help="which strategies")
    parser.add_argument("--part", choices=("both", "quality", "signal", "cost"), default="both")
    parser.add_argument("--write", action="store_true", help="write the sections of RESULTS.md")
    options = parser.parse_args(arguments)
    sections = {}
    if options.part == "signal":
        folder = data_folder("nasbench201")
        sections[f"{SECTION}-signal"] = signal_section(read_signals(folder), read_table(folder), options)
    if options.part in ("both", "quality"):
        table = read_table(data_folder("nasbench201"))
        found = qualities(table, options.queries, options.seeds, options.only)
        sections[SECTION] = quality_section(table, found, options)
    if options.part in ("both", "cost"):
        sections[f"{SECTION}-cost"] = cost_section(costs(options.trials, options.rounds, options.only), options)
    for name, section in sections.items():
        print(section)
        if options.write:
            write_section(name, section)


if __name__ == "__main__":
    main()
