"""What the benchmarks of recommenders share: their command lines, where their figures come from, and their files."""

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.provenance import provenance


def section_parser(program: str, description: str, sections: Iterable[str]) -> argparse.ArgumentParser:
    """Return a parser with what all of them have."""
    known = ",".join(sections)
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{program}", description=description.split("\n")[0])
    parser.add_argument("--sections", default=known, help=f"some of {known.replace(',', ', ')}, by commas")
    parser.add_argument("--out", type=Path, help="the folder for results")
    parser.add_argument("--seed", type=int, default=2020, help="of weights, batches and all that is drawn")
    parser.add_argument("--epochs", type=int, help="another number of epochs")
    parser.add_argument("--precision", default="fp32", help="fp32, bf16 or fp16")
    parser.add_argument("--execution", default="auto", help="auto, eager, compile or graph")
    parser.add_argument("--smoke", action="store_true", help="made-up data on the CPU, to see that it runs")
    parser.add_argument("--write-results", type=Path, nargs="+", metavar="JSON", help="write these into RESULTS.md")
    return parser


def parse_sections(
    parser: argparse.ArgumentParser, sections: Iterable[str], arguments: Sequence[str] | None
) -> argparse.Namespace:
    """Read the command line, and check that the sections exist."""
    parsed = parser.parse_args(arguments)
    parsed.sections = parsed.sections.split(",")
    unknown = sorted(set(parsed.sections) - set(sections))
    if unknown:
        parser.error(f"--sections: {unknown} are unknown; use some of {list(sections)}")
    return parsed


def chosen_device(parsed: argparse.Namespace) -> torch.device:
    """Return where to train: on a GPU where there is one, unless only to see that it runs."""
    return torch.device("cuda" if torch.cuda.is_available() and not parsed.smoke else "cpu")


def where_from(program: str, packages: Sequence[str], device: torch.device) -> str:
    """Return the facts of this run in Markdown."""
    facts = {"device": torch.cuda.get_device_name(), "CUDA": torch.version.cuda} if device.type == "cuda" else {}
    # Folders are of this machine, and of no use to whoever measures again.
    return re.sub(r" --(out|run-dir)[ =][^\s`]+", "", provenance(program, packages, **facts))


def show_section(out: Path | None, name: str, section: str) -> None:
    """Write a section in Markdown beside its figures, and print it."""
    if out is not None:
        (out / f"{name}.md").write_text(section + "\n", encoding="utf-8")
    print(f"\n{section}\n", flush=True)


def complete_section(out: Path | None, name: str) -> dict[str, Any] | None:
    """Return what was found of a section before, if it came to its end."""
    place = None if out is None else out / f"{name}.json"
    if place is None or not place.exists():
        return None
    data: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
    return data if data.get("complete") else None


def read_sections(files: Iterable[Path], prefix: str, sections: Iterable[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the findings of each file; who names another one, or that of a smoke test, is told so."""
    for file in files:
        name = file.stem.removeprefix(f"{prefix}-")
        if name not in sections:
            sys.exit(f"{file}: a section's results are called one of {[f'{prefix}-{one}.json' for one in sections]}")
        data: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if data["smoke"]:
            sys.exit(f"{file} is of a smoke test; its figures mean nothing")
        yield name, data
