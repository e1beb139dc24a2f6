"""What a reader needs to repeat a measurement: the date, the command, the machine and the versions."""

import os
import platform
import shlex
import sys
from collections.abc import Iterable
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def processor() -> str:
    """Return the processor's model name and the number of cores this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{_model_name()}, {cores} cores"


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the installed version of each package, or "not installed"."""
    return {package: _version(package) for package in packages}


def provenance(module: str, packages: Iterable[str], **facts: object) -> str:
    """Return a Markdown list of where a section's figures come from.

    Args:
        module: the benchmark's name, as in `python -m benchmarks.<module>`.
        packages: the distributions whose versions matter.
        facts: further lines, by their label; underscores become spaces.
    """
    lines = {
        "date": date.today().isoformat(),
        "command": f"`{shlex.join(['python', '-m', f'benchmarks.{module}', *sys.argv[1:]])}`",
        **{label.replace("_", " "): str(fact) for label, fact in facts.items()},
        "processor": processor(),
        "python": platform.python_version(),
        "packages": ", ".join(f"{package} {found}" for package, found in versions(packages).items()),
    }
    return "\n".join(f"- {label}: {value}" for label, value in lines.items())


def _model_name() -> str:
    # platform.processor() is empty or just the architecture on Linux.
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
