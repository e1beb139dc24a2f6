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
from typing import Any

from benchmarks.package.environments import NEWEST, OLDEST, build, clean_environment, environment, find_python, run
from benchmarks.package.readme import SKIPPED, commands, prepare, run_command

MATRIX = ("3.11-oldest", "3.12-newest", "3.13-newest")
CHECK = Path(__file__).with_name("check.py")


def main() -> int:
    """Go through the matrix, print what worked, and return how many environments failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", default=MATRIX, metavar="PYTHON-DEPENDENCIES", help=f"such as {MATRIX[0]}")
    parser.add_argument("--keep", type=Path, help="a folder for the environments, which are used again")
    parser.add_argument("--quick", action="store_true", help="without the commands of the README")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        built = build(Path(temporary))
        for file in (built.wheel, built.source):
            print(f"{file.name}: {file.stat().st_size / 2**20:.2f} MiB", flush=True)
        failed = 0
        for row in asked.rows:
            version, _, dependencies = row.partition("-")
            if dependencies not in (OLDEST, NEWEST):
                parser.error(f"{row!r} must be a Python, a hyphen, and {OLDEST} or {NEWEST}: {MATRIX[0]}")
            python = find_python(version)
            if python is None:
                print(f"{row}: not tested, there is no Python {version} here")
                continue
            folder = (asked.keep or Path(temporary)) / row
            failed += not _works(row, environment(folder, python, built, dependencies), quick=asked.quick)
    return failed


def _works(row: str, python: Path, *, quick: bool) -> bool:
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
        for text in shown:
            status, output, seconds = run_command(text, Path(place), python)
            print(f"  {row}: {'ok' if status == 0 else f'status {status}'} {seconds:6.1f} s  {text}", flush=True)
            if status:
                problems.append(f"{text}\n{output[-3000:]}")
    verdict = "FAILS" if problems else "works"
    print(f"{row}: {verdict} ({time.monotonic() - began:.0f} s) {json.dumps(said)}", flush=True)
    for problem in problems:
        print(problem, file=sys.stderr)
    return not problems


if __name__ == "__main__":
    sys.exit(main())
