"""What a writer needs is looked for when it is built."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from treadle.errors import MissingDependencyError
from treadle.writers import MlflowWriter, TensorboardWriter, TensorboardXWriter, WandbWriter


@pytest.mark.parametrize(
    ("package", "build", "writer"),
    [
        ("tensorboard", lambda: TensorboardWriter("tb"), "TensorboardWriter"),
        ("tensorboard", lambda: TensorboardXWriter("tb"), "TensorboardWriter"),
        ("wandb", WandbWriter, "WandbWriter"),
        ("mlflow", MlflowWriter, "MlflowWriter"),
    ],
)
def test_without_the_package_the_extra_is_named(
    package: str, build: Callable[[], Any], writer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError) as caught:
        build()
    assert str(caught.value) == f"{writer} needs {package}; pip install 'treadle[{package}]'"


def test_importing_and_building_writers_loads_none_of_the_packages() -> None:
    for package in ("tensorboard", "wandb", "mlflow"):
        pytest.importorskip(package, reason=f"the extra {package} is not installed")
    program = """
import sys
from treadle.writers import MlflowWriter, TensorboardWriter, WandbWriter
TensorboardWriter("tb"), WandbWriter(), MlflowWriter()
assert not {"tensorboard", "wandb", "mlflow"} & set(sys.modules)
"""
    folder = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
