"""The programs to examine are what they say: each runs by itself, and only one of them fails."""

import runpy
import warnings
from pathlib import Path

import pytest

from treadle.errors import NonFiniteError

HERE = Path(__file__).parent
FAULTS = sorted((HERE / "faults").glob("*.py"))
CLEAN = sorted((HERE / "clean").glob("*.py"))


def test_there_are_at_least_thirty_faults_of_many_kinds() -> None:
    kinds = [line for path in FAULTS for line in path.read_text().splitlines() if line.startswith("FAULT = ")]
    assert len(kinds) == len(FAULTS) >= 30
    assert len(set(kinds)) >= 12


@pytest.mark.parametrize("program", [*FAULTS, *CLEAN], ids=lambda path: path.stem)
def test_a_program_runs_to_its_end_as_if_nothing_were_wrong(program: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if program.stem == "a_logarithm_of_zero":
            with pytest.raises(NonFiniteError):
                runpy.run_path(str(program), run_name="__main__")
        else:
            runpy.run_path(str(program), run_name="__main__")
