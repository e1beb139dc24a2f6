"""The programs to examine are what they say: each runs by itself, and few of them fail."""

import runpy
import warnings
from pathlib import Path

import pytest

from treadle.errors import LossError, NonFiniteError

HERE = Path(__file__).parent
FAULTS = sorted((HERE / "faults").glob("*.py"))
CLEAN = sorted((HERE / "clean").glob("*.py"))


def test_there_are_at_least_sixty_faults_of_many_kinds() -> None:
    kinds = [line for path in FAULTS for line in path.read_text().splitlines() if line.startswith("FAULT = ")]
    assert len(kinds) == len(FAULTS) >= 60
    assert len(set(kinds)) >= 20


FAILING = {
    "a_forward_pass_without_a_graph": (LossError, "a loss without a graph"),
    "a_last_batch_of_one_sample": (ValueError, "more than 1 value per channel"),
    "a_rate_of_fifty": (NonFiniteError, "loss"),
    "a_sample_that_is_infinite": (NonFiniteError, "loss"),
    "a_logarithm_of_zero": (NonFiniteError, "loss"),
    "everything_frozen": (LossError, "a loss without a graph"),
    "gaps_in_a_table": (NonFiniteError, "loss"),
    "labels_from_one": (IndexError, "out of bounds"),
}
"""Faults that end a program by themselves, with a message that does not say why."""


@pytest.mark.parametrize("program", [*FAULTS, *CLEAN], ids=lambda path: path.stem)
def test_a_program_runs_to_its_end_as_if_nothing_were_wrong(program: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if program.stem in FAILING:
            kind, text = FAILING[program.stem]
            with pytest.raises(kind, match=text):
                runpy.run_path(str(program), run_name="__main__")
        else:
            runpy.run_path(str(program), run_name="__main__")
