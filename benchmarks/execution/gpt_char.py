"""The character GPT of examples/language_model, trained through the config-driven door: how well, and how fast.

python -m benchmarks.execution.gpt_char --execution compile

Without a CUDA device, with another --config or with changes it prints, and leaves RESULTS.md as it is.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.provenance import provenance
from benchmarks.results import write_section
from treadle.config import LazyConfig
from treadle.engine import DefaultTrainer, default_argument_parser, default_setup

CONFIG = Path(__file__).parents[2] / "examples" / "language_model" / "gpt_char.py"
TARGET = 1.48
PUBLISHED = 1.4697
SECTION = "gpt-char"
PACKAGES = ("torch", "triton", "omegaconf", "hydra-core", "numpy")

EXECUTIONS: dict[str, list[str]] = {
    "eager": ["train.execution=eager"],
    "compile": ["train.execution=compile"],
    "graph": ["train.execution=graph"],
    "graph+compile": ["train.execution=graph", "graph.enabled=True"],
}
"""What each way of executing a step is in the config; the door itself says which of them it has."""


@dataclass(frozen=True)
class Report:
    """What one run says of itself.

    Attributes:
        best: The smallest validation loss.
        best_iteration: After how many iterations it was measured.
        last: The validation loss at the end.
        iterations: How many iterations were run.
        steps_per_second: The median over the reports of the run; None if there was none.
        tokens_per_second: The same in tokens.
        mfu: The same as a share of the device's peak; None where the peak is not known.
        memory_mib: The most memory that was taken.
        seconds: From building the trainer to the end of the last evaluation, compilation included.
    """

    best: float
    best_iteration: int
    last: float
    iterations: int
    steps_per_second: float | None
    tokens_per_second: float | None
    mfu: float | None
    memory_mib: float | None
    seconds: float


def main(arguments: Sequence[str] | None = None) -> Report:
    """Run the benchmark and write its section."""
    options = parse_options(arguments)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run" if options.run_dir is None else options.run_dir
        trainer, seconds = train(options, run)
        report = read_report(run / "metrics.json", trainer.cfg.train.train_iter, seconds)
    section = as_section(report, trainer, options)
    print(section)
    if torch.cuda.is_available() and options.config == CONFIG and not options.changes:
        write_section(SECTION, section)
    else:
        print("RESULTS.md left as it is.")
    return report


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.execution.gpt_char", description=__doc__.split("\n")[0])
    parser.add_argument("--execution", choices=EXECUTIONS, default="compile", help="how a step is executed")
    parser.add_argument("--config", type=Path, default=CONFIG, help="another config than the full setting")
    parser.add_argument("--run-dir", type=Path, help="keep the run in this folder; the same folder again goes on")
    parser.add_argument("changes", nargs="*", metavar="KEY=VALUE", help="changes to the config")
    return parser.parse_args(arguments)


def train(options: argparse.Namespace, run: Path) -> tuple[DefaultTrainer, float]:
    """Train as the config says; return the trainer and how many seconds it took."""
    config = LazyConfig.load(options.config)
    changes = [f"train.output_dir={run}", "train.resume=auto", *EXECUTIONS[options.execution], *options.changes]
    LazyConfig.apply_overrides(config, changes)
    default_setup(config, default_argument_parser().parse_args([]))
    began = time.perf_counter()
    trainer = DefaultTrainer(config)
    trainer.train()
    return trainer, time.perf_counter() - began


def read_report(metrics: Path, iterations: int, seconds: float) -> Report:
    """Return what the lines of a run's metrics say."""
    lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    # A line of iteration i is written after it; that of the final evaluation is numbered by how many there were.
    losses = [(line["val_loss"], min(line["iteration"] + 1, iterations)) for line in lines if "val_loss" in line]
    best, best_iteration = min(losses)

    def median(name: str) -> float | None:
        values = [line[name] for line in lines if name in line]
        return statistics.median(values) if values else None

    return Report(
        best=best,
        best_iteration=best_iteration,
        last=losses[-1][0],
        iterations=iterations,
        steps_per_second=median("steps_per_second"),
        tokens_per_second=median("tokens_per_second"),
        mfu=median("mfu"),
        memory_mib=max((line["peak_memory_mib"] for line in lines if "peak_memory_mib" in line), default=None),
        seconds=seconds,
    )


def as_section(report: Report, trainer: DefaultTrainer, options: argparse.Namespace) -> str:
    """Return the section for RESULTS.md."""
    model: Any = trainer.model
    train = trainer.cfg.train
    device = torch.cuda.get_device_name() if trainer.device.type == "cuda" else "CPU"
    head = provenance("gpt_char", PACKAGES, device=device, execution=options.execution, seed=train.seed)
    rows = {
        "validation loss, best": f"{report.best:.4f} after {report.best_iteration:,} iterations",
        "validation loss, at the end": f"{report.last:.4f} after {report.iterations:,} iterations",
        "steps/s": shown(report.steps_per_second, "{:.1f}"),
        "tokens/s": shown(report.tokens_per_second, "{:,.0f}"),
        "MFU": shown(report.mfu, "{:.3f}"),
        "peak memory": shown(report.memory_mib, "{:,.0f} MiB"),
        "whole run": f"{report.seconds:.0f} s, with compilation, evaluations and checkpoints",
    }
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    size = f"{model.count_parameters(positions=False) / 1e6:.2f}M parameters without positions"
    return f"""## Character GPT on tiny Shakespeare

{head}

Work: `{options.config.name}`: {len(model.trunk.blocks)} layers, context {model.context}, {size},
{train.global_batch_size} windows a step, {report.iterations:,} iterations, {trainer.core.precision.kind}.
Validation: every window of the last tenth of the text, once. Rates: medians over the run's own reports, without
warm-up, evaluations and checkpoints. MFU: (6N + 12LDT) tokens/s over the dense peak of the device in this
precision, as the trainer itself counts and reports it.

| | |
|---|---|
{table}

{verdict(report, options)}
"""


def shown(number: float | None, form: str) -> str:
    """Return a number in its form; a short run reports no rates, and a device of unknown peak no MFU."""
    return "not reported" if number is None else form.format(number)


def verdict(report: Report, options: argparse.Namespace) -> str:
    """Say whether the full setting came out as it should."""
    if options.config != CONFIG or options.changes:
        return "This is not the full setting: there is no bar for it."
    outcome = "meets" if report.best <= TARGET else "misses"
    return f"The bar is {TARGET} at best (nanoGPT publishes {PUBLISHED} for its setting): this run {outcome} it."


if __name__ == "__main__":
    main()
