"""The benchmark of the character GPT: what it reads from a run, and what it writes."""

import json
from pathlib import Path

import pytest

from benchmarks.execution import gpt_char
from benchmarks.execution.gpt_char import CONFIG, Report, read_report, verdict

LINES = [
    {"iteration": 4, "steps_per_second": 10.0, "tokens_per_second": 100.0, "mfu": 0.1, "peak_memory_mib": 7.0},
    {"iteration": 9, "steps_per_second": 30.0, "tokens_per_second": 300.0, "mfu": 0.3, "val_loss": 1.5},
    {"iteration": 14, "steps_per_second": 20.0, "tokens_per_second": 200.0, "mfu": 0.2, "peak_memory_mib": 9.0},
    {"iteration": 20, "val_loss": 1.75},
]


def test_the_best_loss_the_median_rates_and_the_most_memory_are_reported(tmp_path: Path) -> None:
    (tmp_path / "metrics.json").write_text("\n".join(map(json.dumps, LINES)))
    assert read_report(tmp_path / "metrics.json", 20, 5.0) == Report(
        best=1.5,
        best_iteration=10,
        last=1.75,
        iterations=20,
        steps_per_second=20.0,
        tokens_per_second=200.0,
        mfu=0.2,
        memory_mib=9.0,
        seconds=5.0,
    )


@pytest.mark.parametrize(("best", "outcome"), [(1.48, "meets"), (1.481, "misses")])
def test_the_full_setting_meets_the_bar_or_misses_it(best: float, outcome: str, tmp_path: Path) -> None:
    (tmp_path / "metrics.json").write_text(json.dumps({"iteration": 1, "val_loss": best}))
    report = read_report(tmp_path / "metrics.json", 1, 0.0)
    assert verdict(report, gpt_char.parse_options([])).endswith(f"this run {outcome} it.")
    assert "no bar for it" in verdict(report, gpt_char.parse_options(["train.train_iter=1"]))


@pytest.mark.slow
def test_a_small_run_is_made_through_the_door_and_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "input.txt").write_text("the quick brown fox jumps over a log.\n" * 120)
    small = CONFIG.with_name("gpt_char_small.py")
    changes = [f"folder={tmp_path}", "model.context=16", "model.width=16", "train.train_iter=8", "train.log_period=4"]
    report = gpt_char.main(
        [
            "--execution",
            "eager",
            "--config",
            str(small),
            *changes,
            "train.peak_flops=1e12",
            "train.evaluation.eval_period=4",
        ]
    )
    printed = capsys.readouterr().out
    assert report.iterations == 8
    assert report.best == min(report.best, report.last)
    assert report.mfu is not None
    assert f"| validation loss, best | {report.best:.4f} after {report.best_iteration} iterations |" in printed
    assert "- execution: eager" in printed
    assert printed.endswith("RESULTS.md left as it is.\n")
