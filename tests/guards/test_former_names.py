"""Modules are found by the names that they had before they got their rooms, and are the same modules."""

import importlib
import subprocess
import sys

import pytest

from treadle.config.former_names import FORMER


@pytest.mark.parametrize("former", sorted(FORMER))
def test_a_former_name_gives_the_module_as_it_is_called_now(former: str) -> None:
    pytest.importorskip("optuna")
    now = importlib.import_module(f"treadle.{FORMER[former]}")
    before = importlib.import_module(f"treadle.{former}")
    if hasattr(now, "__path__"):
        names = [name for name in getattr(now, "__all__", []) if hasattr(now, name)]
        assert all(getattr(before, name) is getattr(now, name) for name in names)
    else:
        assert before is now
        assert now.__spec__ is not None
        assert now.__spec__.name == f"treadle.{FORMER[former]}"


def test_a_module_below_a_former_name_is_not_loaded_a_second_time() -> None:
    from treadle.nas.spaces.darts import DartsSpace as Before  # type: ignore[import-not-found]

    from treadle.nas.zoo.darts import DartsSpace

    assert Before is DartsSpace


@pytest.mark.parametrize("name", ["treadle.nothing", "treadle.report.nothing", "treadle.trainer.nothing"])
def test_what_never_was_is_missing_by_its_own_name(name: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=name.rpartition(".")[2]):
        importlib.import_module(name)


def test_a_former_name_works_in_a_fresh_process_whatever_was_imported_before() -> None:
    program = """
from treadle.freezing import Layer
from treadle.steps import StepModel
from treadle.optim.freezing import Layer as now
assert Layer is now and StepModel.__module__ == "treadle.lightning.module"
"""
    subprocess.run([sys.executable, "-c", program], check=True)
