"""What users rely on changes only on purpose: names and signatures, dependencies, size, what an import costs."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from benchmarks.docs.public_api import SNAPSHOT, snapshot
from benchmarks.package.environments import ROOT, requirements

CORE = {"hydra-core", "numpy", "omegaconf", "pyyaml", "rich", "safetensors", "torch", "torchmetrics", "typer"}
PACKAGES_OF_TRAINER = {"numpy", "safetensors", "torch", "torchgen", "typing_extensions"}
"""What `from treadle import Trainer` loads of other people's, besides what torch finds by itself."""
FOUND_BY_TORCH = {"_cython_3_2_4", "_distutils_hack", "cython_runtime", "dill", "tqdm", "__mp_main__"}
MOST_BYTES = 6 * 2**20
"""Of all files of the package, as they are installed."""


def test_public_names_and_signatures_are_those_of_the_snapshot() -> None:
    assert snapshot() == SNAPSHOT.read_text(encoding="utf-8"), "if this is meant: make api, and a line in CHANGELOG.md"


def test_the_core_needs_nine_packages_and_no_more() -> None:
    assert {one.split(">")[0] for one in requirements()} == CORE


def _modules_after(line: str) -> set[str]:
    program = f"import json, sys\n{line}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def test_import_treadle_loads_one_module_and_nothing_of_others() -> None:
    loaded = _modules_after("import treadle") - _modules_after("")
    others = {name.partition(".")[0] for name in loaded} - set(sys.stdlib_module_names)
    assert others - FOUND_BY_TORCH == {"treadle"}
    assert {name for name in loaded if name.startswith("treadle")} == {"treadle"}


@pytest.mark.slow
def test_a_trainer_loads_torch_and_no_package_that_a_step_does_not_need() -> None:
    loaded = _modules_after("from treadle import Trainer")
    others = {name.partition(".")[0] for name in loaded} - set(sys.stdlib_module_names) - FOUND_BY_TORCH
    assert others - PACKAGES_OF_TRAINER == {"treadle", "__main__"}
    packs = ("treadle.engine", "treadle.recsys", "treadle.nas", "treadle.search", "treadle.tools", "treadle.cli")
    assert not {name for name in loaded if name.startswith(packs)}
    assert len([name for name in loaded if name.startswith("treadle")]) < 200


def test_the_installed_package_stays_small() -> None:
    files = [path for path in (ROOT / "treadle").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert sum(path.stat().st_size for path in files) < MOST_BYTES


def test_the_version_is_the_same_everywhere() -> None:
    import treadle

    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert table["version"] == treadle.__version__
    assert f"version: {treadle.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_workflows_call_the_commands_that_people_call() -> None:
    made = {line.partition(":")[0] for line in (ROOT / "Makefile").read_text().splitlines() if line[:1].isalpha()}
    called = {
        word
        for path in sorted(Path(ROOT, ".github", "workflows").glob("*.yml"))
        for line in path.read_text().splitlines()
        if "run: make " in line
        for word in [line.split("run: make ")[1].split()[0]]
    }
    assert called == {"test", "docs", "package-test"}
    assert {"docs", "package-test"} <= made
