"""What execution costs and gains: steps one by one, compiled and captured, by hand, by Treadle and by its peers.

Sections: `small` (MLP and CNN, microseconds per step), `gpt2` (tokens per second), `fashion` (seconds to 91%), and
`cpu`, which needs no GPU. The first three need one; `--smoke` runs any of them in tiny sizes without. Each section
writes `<out>/<section>.json` and `.md` as it goes. `--write-results` puts such files into RESULTS.md.
"""

import argparse
import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from benchmarks.docs.readme import fill
from benchmarks.execution import cpu as execution_cpu
from benchmarks.execution import fashion, gpt2
from benchmarks.execution import small as execution_small
from benchmarks.execution.report import TITLES, as_markdown, readme_table
from benchmarks.execution.session import Findings, Options
from benchmarks.provenance import provenance
from benchmarks.results import write_section
from treadle.data.location import VARIABLE

SECTIONS: dict[str, Callable[[Findings], None]] = {
    "small": execution_small.measure,
    "gpt2": gpt2.measure,
    "fashion": fashion.measure,
    "cpu": execution_cpu.measure,
}
BUDGETS = {"small": 180.0, "gpt2": 140.0, "fashion": 80.0, "cpu": 900.0}
PACKAGES = ("torch", "triton", "treadle", "accelerate", "lightning", "pytorch-lightning", "transformers", "numpy")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the sections that were asked for, or write what was measured into RESULTS.md."""
    parsed = parse_arguments(arguments)
    if parsed.write_results:
        write_results(parsed.write_results)
        return
    options = Options(parsed.device, parsed.smoke, parsed.seed, parsed.out)
    settle_data_folder()
    prepare_process(options)
    for name in parsed.sections:
        run_section(name, options, parsed.budget_s[name])


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.execution.compare", description=__doc__)
    parser.add_argument("--sections", default="small,gpt2,fashion", help=f"some of {', '.join(SECTIONS)}, by commas")
    parser.add_argument("--budget-s", default="", help="seconds for each section: 90, or small=90,gpt2=120")
    parser.add_argument("--out", type=from_here, help="the folder for results")
    parser.add_argument("--seed", type=int, default=0, help="of weights, data and the order of turns")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes on the CPU, nothing captured or compiled")
    parser.add_argument("--write-results", type=Path, nargs="+", metavar="JSON", help="write these into RESULTS.md")
    parsed = parser.parse_args(arguments)
    parsed.sections = parsed.sections.split(",")
    unknown = sorted(set(parsed.sections) - set(SECTIONS))
    if unknown:
        parser.error(f"--sections: {unknown} are unknown; use some of {list(SECTIONS)}")
    try:
        parsed.budget_s = parse_budgets(parsed.budget_s)
    except ValueError as error:
        parser.error(f"--budget-s: {error}")
    needs_gpu = not parsed.smoke and not parsed.write_results and set(parsed.sections) != {"cpu"}
    if needs_gpu and not torch.cuda.is_available():
        parser.error(f"{parsed.sections} need a GPU, and there is none; use --sections cpu, or --smoke")
    parsed.device = torch.device("cuda", 0) if needs_gpu else torch.device("cpu")
    return parsed


def from_here(path: str) -> Path:
    """Return a path that stays the same when the working directory changes: everybody runs in a folder of his own."""
    return Path(path).expanduser().absolute()


def settle_data_folder() -> None:
    """Have the environment name the folder of data sets by its whole path."""
    if os.environ.get(VARIABLE):
        os.environ[VARIABLE] = str(from_here(os.environ[VARIABLE]))


def parse_budgets(text: str) -> dict[str, float]:
    """Return the seconds of every section.

    >>> parse_budgets("fashion=60")["fashion"], parse_budgets("30")["small"]
    (60.0, 30.0)
    """
    budgets = dict(BUDGETS)
    for part in filter(None, text.split(",")):
        name, _, seconds = part.rpartition("=")
        if name and name not in SECTIONS:
            raise ValueError(f"{name!r} is no section; use some of {list(SECTIONS)}")
        budgets |= dict.fromkeys([name] if name else SECTIONS, float(seconds))
    return budgets


def prepare_process(options: Options) -> None:
    """Let many models be compiled in one process, and allow kernels that repeat themselves."""
    # Every model is another one to the compiler, which gives up after eight of them; the time is not ours to measure.
    torch._dynamo.config.recompile_limit = 256
    torch._dynamo.config.accumulated_recompile_limit = 4096
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    warnings.simplefilter("ignore")
    if options.device.type == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call]
    else:
        os.environ.update(CUDA_VISIBLE_DEVICES="", ACCELERATE_USE_CPU="true")


def run_section(name: str, options: Options, budget_s: float) -> None:
    """Measure one section; print it and write it, whatever came of it."""
    findings = Findings(name, options, budget_s, where_from(options))
    findings.say(f"begins, for {budget_s:.0f} s")
    try:
        SECTIONS[name](findings)
    finally:
        findings.save()
        section = as_markdown(name, findings.data)
        if options.out is not None:
            (options.out / f"{name}.md").write_text(section + "\n", encoding="utf-8")
        print(f"\n{section}\n", flush=True)


def where_from(options: Options) -> str:
    """Return the facts of this run in Markdown."""
    facts: dict[str, object] = {}
    if options.device.type == "cuda":
        facts = {"device": torch.cuda.get_device_name(), "CUDA": torch.version.cuda}
    # The folder is one of this machine, and of no use to whoever measures again.
    return re.sub(r" --out[ =][^\s`]+", "", provenance("execution", PACKAGES, **facts))


def write_results(files: Sequence[Path]) -> None:
    """Put what was measured into RESULTS.md, each section into its own."""
    for file in files:
        name = file.stem
        if name not in TITLES:
            sys.exit(f"{file}: a section's results are called one of {[f'{title}.json' for title in TITLES]}")
        data = json.loads(file.read_text(encoding="utf-8"))
        if data["smoke"]:
            sys.exit(f"{file} is of a smoke test; its figures mean nothing")
        write_section(f"execution-{name}", as_markdown(name, data))
        if name == "small":
            fill("execution", readme_table(data))
        print(f"RESULTS.md: section execution-{name} written from {file.name}")


if __name__ == "__main__":
    main()
