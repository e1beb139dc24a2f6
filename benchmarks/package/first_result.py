"""Seconds from nothing to the page of a first run: `python -m benchmarks.package.first_result [--write]`.

What a newcomer waits for: an empty environment, `pip install` of the wheel with what the demonstration needs, `treadle
demo digits`, and the page. Packages come from pip's cache if they are there, so the seconds of the download, which are
those of a line and not of a program, are left out by a first installation that is not counted.
"""

import argparse
import os
import sys
import tempfile
import time
import venv
from pathlib import Path

from benchmarks.package.environments import EXTRA, build, clean_environment, run
from benchmarks.provenance import provenance
from benchmarks.results import write_section

TORCH = "torch==2.13.0"
"""The version that is measured, as constraints.txt has it."""


def measure(folder: Path, wheel: Path) -> dict[str, float]:
    """Return the seconds of each step, in a folder that is empty."""
    own = folder / "environment"
    python = own / "bin" / "python"
    env = clean_environment(python)
    seconds: dict[str, float] = {}

    def step(name: str, *command: object) -> str:
        began = time.monotonic()
        said = run(*command, cwd=folder, env=env)
        seconds[name] = time.monotonic() - began
        return said

    step("python -m venv", sys.executable, "-m", "venv", own)
    named = f"treadle[{EXTRA}] @ {wheel.as_uri()}"
    step("pip install", python, "-m", "pip", "install", "--quiet", named, TORCH)
    said = step("treadle demo digits", python.with_name("treadle"), "demo", "digits")
    page = folder / "runs" / "demo-digits" / "report.html"
    began = time.monotonic()
    assert page.read_bytes().lower().count(b"</html>") == 1, page
    seconds["read the page"] = time.monotonic() - began
    step("again, to go on", python.with_name("treadle"), "demo", "digits")
    print(said)
    return seconds


def main() -> None:
    """Measure, and print or write what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the section of RESULTS.md")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        wheel = build(Path(temporary)).wheel
        warm = Path(temporary) / "warm"
        venv.create(warm, with_pip=True)
        run(warm / "bin" / "python", "-m", "pip", "install", "--quiet", f"treadle[{EXTRA}] @ {wheel.as_uri()}", TORCH)
        empty = Path(temporary) / "empty"
        empty.mkdir()
        seconds = measure(empty, wheel)
    rows = {**seconds, "**from nothing to the page**": sum(list(seconds.values())[:4])}
    lines = [f"| {name} | {value:.1f} |" for name, value in rows.items()]
    table = "\n".join(["| step | seconds |", "|---|--:|", *lines])
    load = f"{os.getloadavg()[0]:.0f} processes wanted the cores at the end"
    where = provenance("package.first_result", (), torch=TORCH, machine=load)
    section = f"## Time to the first result\n\n{where}\n\n{table}\n"
    print(section)
    if asked.write:
        write_section("first-result", section)


if __name__ == "__main__":
    main()
