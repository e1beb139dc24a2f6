"""Builds the package, installs it into empty environments, and uses it there: `make package-test`.

Each environment has one Python, and the oldest or the newest dependencies that pyproject.toml allows. A torch that
brings CUDA along takes some GB for each; `--keep DIR` keeps the environments for the next time.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.package.environments import (
    NEWEST,
    OLDEST,
    Built,
    build,
    clean_environment,
    environment,
    find_python,
    run,
)
from benchmarks.package.readme import PAGES, SKIPPED, commands, prepare, run_command
from benchmarks.provenance import provenance
from benchmarks.results import write_section

MATRIX = ("3.11-oldest", "3.12-newest", "3.13-newest")
CHECK = Path(__file__).with_name("check.py")
RULE = "|---|---|---|--:|---|---|"
SHOWN = ("torch", "numpy", "torchmetrics", "safetensors", "hydra-core")
"""The packages whose versions the results name."""


def main() -> int:
    """Go through the matrix, print what worked, and return how many environments failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", default=MATRIX, metavar="PYTHON-DEPENDENCIES", help=f"such as {MATRIX[0]}")
    parser.add_argument("--keep", type=Path, help="a folder for the environments, which are used again")
    parser.add_argument("--quick", action="store_true", help="without the commands of the README")
    parser.add_argument("--write", action="store_true", help="write the section of RESULTS.md")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        built = build(Path(temporary))
        for file in (built.wheel, built.source):
            print(f"{file.name}: {file.stat().st_size / 2**20:.2f} MiB", flush=True)
        rows: list[Row] = []
        for row in asked.rows:
            version, _, dependencies = row.partition("-")
            if dependencies not in (OLDEST, NEWEST):
                parser.error(f"{row!r} must be a Python, a hyphen, and {OLDEST} or {NEWEST}: {MATRIX[0]}")
            python = find_python(version)
            if python is None:
                print(f"{row}: not tested, there is no Python {version} here")
                rows.append(Row(row, {}, 0, 0, ["not tested: there is no such Python here"]))
                continue
            folder = (asked.keep or Path(temporary)) / row
            rows.append(_tried(row, environment(folder, python, built, dependencies), quick=asked.quick))
        if asked.write:
            write_section("package", _section(rows, built))
    return sum(bool(row.problems) and bool(row.versions) for row in rows)


class Row(NamedTuple):
    """What became of an environment.

    Attributes:
        name: Its Python and its dependencies.
        versions: What was installed, and whether steps can be compiled; empty if nothing was tried.
        commands: How many commands of the pages were run.
        worked: How many of these worked.
        problems: What did not work.
    """

    name: str
    versions: dict[str, Any]
    commands: int
    worked: int
    problems: list[str]


def _section(rows: list[Row], built: Built) -> str:
    """Return the section of the results."""
    lines = []
    for row in rows:
        known = row.versions
        packages = ", ".join(f"{name} {known[name]}" for name in SHOWN if name in known)
        compiled = str(known.get("compile", "-")).partition(":")[0]
        verdict = "works" if not row.problems else f"**fails**: {row.problems[0].splitlines()[0]}"
        commands = f"{row.worked} of {row.commands}" if row.commands else "-"
        lines.append(
            f"| {row.name} | {known.get('python', '-')} | {packages or '-'} | {commands} | {compiled} | {verdict} |"
        )
    sizes = ", ".join(f"{file.name} {file.stat().st_size / 2**20:.2f} MiB" for file in (built.wheel, built.source))
    head = "| environment | Python | versions | commands that work | a compiled step | as a whole |"
    text = (
        "The wheel in environments that have nothing else, outside of the repository: a run, its resume to the same "
        f"bits, and the commands of {' and '.join(PAGES)} that need no clone, in an empty folder."
    )
    if "--keep" in sys.argv:
        # Where environments are kept says nothing of what was tried.
        del sys.argv[(place := sys.argv.index("--keep")) : place + 2]
    where = provenance("package", (), built=sizes)
    return f"## The package in empty environments\n\n{text}\n\n{where}\n\n" + "\n".join([head, RULE, *lines, ""])


def _tried(row: str, python: Path, *, quick: bool) -> Row:
    began, problems = time.monotonic(), []
    with tempfile.TemporaryDirectory() as place:
        env = clean_environment(python, OMP_NUM_THREADS="1")
        said: dict[str, Any] = {}
        try:
            said = json.loads(run(python, CHECK, cwd=Path(place), env=env).splitlines()[-1])
        except RuntimeError as error:
            problems.append(str(error))
        prepare(Path(place))
        shown = [] if quick else [one.text for one in commands() if one.text not in SKIPPED]
        worked = 0
        for text in shown:
            status, output, seconds = run_command(text, Path(place), python)
            print(f"  {row}: {'ok' if status == 0 else f'status {status}'} {seconds:6.1f} s  {text}", flush=True)
            worked += status == 0
            if status:
                problems.append(f"{text}\n{output[-3000:]}")
    verdict = "FAILS" if problems else "works"
    print(f"{row}: {verdict} ({time.monotonic() - began:.0f} s) {json.dumps(said)}", flush=True)
    for problem in problems:
        print(problem, file=sys.stderr)
    return Row(row, said, len(shown), worked, problems)


if __name__ == "__main__":
    sys.exit(main())
