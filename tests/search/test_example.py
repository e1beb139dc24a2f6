"""The program in `examples/nas/` that searches over trials runs, and the benchmark of searches counts rightly."""

import csv
import gzip
import itertools
import re
from pathlib import Path

import pytest

from benchmarks.nas import search as nas_search
from tests.conftest import RunExample

ROOT = Path(__file__).parents[2]


def test_search_trials_finds_a_network_and_runs_nothing_again(run_example: RunExample, tmp_path: Path) -> None:
    given = ("--trials", "3", "--epochs", "2", "--run-dir", "here")
    outputs = [run_example("nas/search_trials.py", *given) for _ in range(2)]
    assert outputs[0] == outputs[1]
    assert re.search(
        r"^trial \d: 0\.\d+ with \{'width': \d+, 'activation': '\w+', 'trainer.learning_rate': ", outputs[0]
    )
    assert re.search(r"^3 trials; the best network has \d+ parameters", outputs[0], re.MULTILINE)
    assert (tmp_path / "here" / "panels" / "parallel_coordinates.svg").read_text().startswith("<svg")


def write_table(folder: Path) -> None:
    """Write the table of a world in which the share of 3x3 convolutions is all that counts."""
    folder.mkdir()
    with gzip.open(folder / "nats_bench.csv.gz", "wt", newline="") as file:
        rows = csv.writer(file)
        rows.writerow([nas_search.COLUMN, "ArchitectureString"])
        for cell in itertools.product(nas_search.OPERATIONS, repeat=6):
            text = "|{}~0|+|{}~0|{}~1|+|{}~0|{}~1|{}~2|".format(*cell)
            rows.writerow([60 + 2 * cell.count("nor_conv_3x3"), text])


def test_the_benchmark_of_searches_reads_the_table_and_writes_a_section(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    write_table(tmp_path / "nasbench201")
    monkeypatch.setenv("TREADLE_DATA", str(tmp_path))
    common = ["--queries", "30", "--seeds", "2", "--trials", "5", "--rounds", "1"]
    nas_search.main([*common, "--only", "random", "evolution"])
    output = capsys.readouterr().out
    assert "15,625 cells; the best has 72.00% on CIFAR-100" in output
    assert re.search(r"^\| evolution \| \d\d\.\d\d \|.* 73.3: MISSED \|$", output, re.MULTILINE)
    assert re.search(
        r"^\| random \| [\d.]+ \| [\d.]+-[\d.]+ \| [\d.]+ \| [\d.]+ \| [\d.]+ \| 10: ", output, re.MULTILINE
    )


def test_evolution_by_hand_finds_the_best_cell_of_a_simple_world() -> None:
    table = {cell: float(cell.count("none")) for cell in itertools.product(nas_search.OPERATIONS, repeat=6)}
    assert nas_search.best_by_hand(table, 300, seed=0) == 6.0
