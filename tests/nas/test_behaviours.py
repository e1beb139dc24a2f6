"""Every behaviour that spaces, DARTS and exports must have is carried by a test that names it."""

import re
from pathlib import Path

import pytest

AREAS = ("layer_choice", "input_choice", "darts", "export")
"""What `test_<area>_<number>_...` begins with; each area has ten behaviours."""


@pytest.mark.parametrize("area", AREAS)
def test_each_of_the_ten_behaviours_of_an_area_has_a_test(area: str) -> None:
    texts = [path.read_text() for path in Path(__file__).parent.glob("test_*.py")]
    named = {int(number) for text in texts for number in re.findall(rf"^def test_{area}_(\d+)_", text, re.MULTILINE)}
    assert named == set(range(1, 11))
