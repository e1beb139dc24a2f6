"""Building the wheel and the source distribution, and environments that have nothing but them."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
OLDEST, NEWEST = "oldest", "newest"
EXTRA = "demo"
"""The extra that the commands of the README need."""


def project() -> dict[str, object]:
    """Return the table `project` of pyproject.toml."""
    found: dict[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return found


def requirements(*extras: str) -> list[str]:
    """Return what the package needs by itself and with some extras, those that extras name of it included."""
    table = project()
    named = table["optional-dependencies"]
    assert isinstance(named, dict)
    direct = table["dependencies"]
    assert isinstance(direct, list)
    found = list(direct)
    for extra in extras:
        for one in named[extra]:
            inner = re.fullmatch(r"treadle\[([\w,]+)\]", one)
            found += requirements(*inner[1].split(","))[len(direct) :] if inner else [one]
    return found


def oldest(*extras: str) -> list[str]:
    """Return constraints by which the package gets the oldest version of everything that it says it works with."""
    bounds = [re.match(r"([\w-]+)(?:\[\w+\])?\s*>=\s*([\d.]+)", one) for one in requirements(*extras)]
    assert all(bounds), "each requirement has a lower bound"
    return [f"{bound[1]}=={bound[2]}" for bound in bounds if bound]


@dataclass(frozen=True)
class Built:
    """What was built.

    Attributes:
        wheel: The wheel.
        source: The source distribution.
    """

    wheel: Path
    source: Path


def build(folder: Path) -> Built:
    """Build both, and a wheel of the source distribution, which must hold the same files."""
    tools = folder / "tools"
    venv.create(tools, with_pip=True)
    python = tools / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "hatchling>=1.24")
    made = folder / "dist"
    run(python, "-m", "hatchling", "build", "-d", str(made), cwd=ROOT)
    (wheel,), (source,) = made.glob("*.whl"), made.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        archive.extractall(folder / "source", filter="data")
    (unpacked,) = (folder / "source").iterdir()
    run(python, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "again"), cwd=unpacked)
    (again,) = (folder / "again").glob("*.whl")
    assert files_of(wheel) == files_of(again), "the wheel of the source distribution is another one"
    return Built(wheel, source)


def files_of(wheel: Path) -> dict[str, int]:
    """Return the files of a wheel, with their sizes; the record of their checksums is left out."""
    with zipfile.ZipFile(wheel) as archive:
        return {one.filename: one.file_size for one in archive.infolist() if not one.filename.endswith("/RECORD")}


def find_python(version: str) -> Path | None:
    """Return the interpreter of a version such as "3.12", from PATH or from pyenv; None if there is none."""
    home = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    places = [shutil.which(f"python{version}"), *map(str, home.glob(f"{version}.*/bin/python"))]
    for place in filter(None, places):
        asked = subprocess.run([place, "-c", "import sys; print(sys.version)"], capture_output=True, text=True)
        if asked.stdout.startswith(f"{version}."):
            return Path(place)
    return None


def environment(folder: Path, python: Path, built: Built, dependencies: str) -> Path:
    """Return the interpreter of an environment that holds the wheel and what it needs, in those versions.

    One that is there already is used again: only what differs is installed.
    """
    own = folder / "bin" / "python"
    if not own.exists():
        run(python, "-m", "venv", str(folder))
    named = f"treadle[{EXTRA}] @ {built.wheel.as_uri()}"
    with_pip = (own, "-m", "pip", "install", "--quiet", "--no-warn-script-location")
    if dependencies == OLDEST:
        constraints = folder / "constraints.txt"
        constraints.write_text("\n".join(oldest(EXTRA)) + "\n")
        run(*with_pip, named, "--constraint", str(constraints))
    else:
        run(*with_pip, named, "--upgrade", "--upgrade-strategy", "eager")
    # The version is the same from build to build, and pip leaves alone what is there.
    run(*with_pip, "--force-reinstall", "--no-deps", str(built.wheel))
    run(own, "-m", "pip", "check")
    return own


def clean_environment(python: Path, **variables: str) -> dict[str, str]:
    """Return the variables of a shell in which an environment is active, and that knows nothing of the repository."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TREADLE", "VIRTUAL"))}
    path = os.pathsep.join([str(python.parent), os.environ.get("PATH", os.defpath)])
    return {**kept, "PATH": path, "VIRTUAL_ENV": str(python.parents[1]), **variables}


def run(*command: object, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """Run a command, and return what it printed.

    Raises:
        RuntimeError: It failed.
    """
    done = subprocess.run([str(one) for one in command], cwd=cwd, env=env, capture_output=True, text=True)
    if done.returncode:
        said = done.stdout[-4000:] + done.stderr[-4000:]
        raise RuntimeError(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{said}")
    return done.stdout


if __name__ == "__main__":
    sys.exit("run python -m benchmarks.package")
