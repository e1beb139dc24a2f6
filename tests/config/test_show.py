"""A config as lines of Python, and what importing the package costs."""

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import treadle.config
from treadle.config import ConfigDict, LazyConfig, get_config
from treadle.config import LazyCall as L


def test_each_leaf_is_an_assignment_and_each_call_a_call() -> None:
    config = {
        "width": 4,
        "train": {"amp": {"enabled": True}, "sizes": (1,), "empty": {}, "none": None},
        "optim": L(torch.optim.AdamW)(lr=1e-4, betas=(0.9,), params=L("my.groups")("${model}", k={"a": [1]})),
        "odd key": {"x": 1},
        "kind": int,
        "made": L(L("my.maker")())(a="${width}"),
    }
    assert LazyConfig.to_py(config) == (
        "cfg.width = 4\n"
        "cfg.train.amp.enabled = True\n"
        "cfg.train.sizes = (1,)\n"
        "cfg.train.empty = {}\n"
        "cfg.train.none = None\n"
        "cfg.optim = torch.optim.AdamW(lr=0.0001, betas=(0.9,), params=my.groups('${model}', k={'a': [1]}))\n"
        "cfg['odd key'].x = 1\n"
        "cfg.kind = builtins.int\n"
        "cfg.made = (my.maker())(a='${width}')\n"
    )


def test_long_calls_are_broken_over_lines() -> None:
    config = {"a": {"b": L("some.module.function")(first="x" * 40, second=["y" * 40, "z" * 40], third={"k": "v" * 60})}}
    text = LazyConfig.to_py(config, prefix="")
    assert text == (
        "a.b = some.module.function(\n"
        f"    first='{'x' * 40}',\n"
        f"    second=['{'y' * 40}', '{'z' * 40}'],\n"
        f"    third={{'k': '{'v' * 60}'}},\n"
        ")\n"
    )


@pytest.mark.parametrize("name", ["common/train.py", "common/optim.py", "common/schedule.py"])
def test_the_lines_are_valid_python(name: str) -> None:
    tree = ast.parse(LazyConfig.to_py(get_config(name)))
    assert all(isinstance(statement, ast.Assign) for statement in tree.body)


def test_what_has_no_name_is_shown_as_it_is(write: Any) -> None:
    config = ConfigDict({"f": lambda: None, "m": [torch.zeros(1)]})
    assert LazyConfig.to_py(config).startswith("cfg.f = <function ")
    path = write("x.py", "from treadle.config import LazyCall as L\nclass Net: pass\nnet = L(Net)()")
    assert LazyConfig.to_py(LazyConfig.load(path)) == "cfg.net = Net()\n"


def loaded_by(program: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", program + "\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"],
        capture_output=True,
        text=True,
        cwd=Path(treadle.__file__).parents[1],
    )
    assert done.returncode == 0, done.stderr
    return {name.split(".")[0] for name in json.loads(done.stdout)}


def test_importing_the_package_loads_neither_torch_nor_omegaconf_nor_hydra() -> None:
    loaded = loaded_by("import treadle.config, treadle.config.resolution")
    assert loaded & {"torch", "numpy", "omegaconf", "hydra", "yaml"} == set()


def test_reading_and_saving_a_config_loads_no_torch(tmp_path: Path) -> None:
    program = f"""
from treadle.config import LazyConfig, get_config
config = get_config("common/train.py")
LazyConfig.apply_overrides(config, ["train.train_iter=5"])
LazyConfig.save(config, {str(tmp_path / "config.yaml")!r})
LazyConfig.load({str(tmp_path / "config.yaml")!r})
"""
    assert loaded_by(program) & {"torch", "numpy"} == set()


def test_the_package_lists_and_loads_its_names() -> None:
    assert dir(treadle.config) == treadle.config.__all__ == sorted(treadle.config.__all__)
    assert all(getattr(treadle.config, name) is not None for name in treadle.config.__all__)
    with pytest.raises(AttributeError, match=r"^module 'treadle\.config' has no attribute 'LazyCal'"):
        treadle.config.LazyCal  # noqa: B018
