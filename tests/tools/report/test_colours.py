"""The colours of the runs can be told apart, by people who see fewer colours too, on either ground."""

import re
from importlib.resources import files
from itertools import combinations

import numpy as np
import pytest

# How a screen looks without one kind of cone, in linear light (Machado, Oliveira and Fernandes, 2009).
SIGHTS = {
    "all cones": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "no red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "no blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
# From linear light to Oklab, in which the distance of two colours is about how unlike they look.
CONES = [[0.41222147, 0.53633254, 0.05144599], [0.2119035, 0.68069955, 0.10739696], [0.08830246, 0.28171884, 0.6299787]]
OKLAB = [
    [0.21045426, 0.79361779, -0.00407205],
    [1.9779985, -2.42859221, 0.45059371],
    [0.02590404, 0.78277177, -0.80867577],
]
LIGHT, DARK = "COLOURS", "LIGHT_COLOURS"


def asset(name: str) -> str:
    return (files("treadle.tools.report") / "assets" / name).read_text(encoding="utf-8")


def palette(name: str) -> list[str]:
    found = re.search(rf"const {name} = \[(.*?)\];", asset("page.js"), re.DOTALL)
    assert found is not None
    return re.findall("#[0-9a-f]{6}", found[1])


def ground(name: str) -> str:
    """Return what the curves are drawn on."""
    light, dark = re.findall("--raised: (#[0-9a-f]{6})", asset("page.css"))
    return light if name == LIGHT else dark


def linear(colour: str) -> np.ndarray:
    values = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def unlike(one: str, other: str, sight: str) -> float:
    """Return how far two colours are apart for somebody's eyes."""
    seen = [np.array(OKLAB) @ np.cbrt(CONES @ np.clip(SIGHTS[sight] @ linear(colour), 0, 1)) for colour in (one, other)]
    return float(np.linalg.norm(seen[0] - seen[1]))


def contrast(one: str, other: str) -> float:
    low, high = sorted(float(linear(colour) @ [0.2126, 0.7152, 0.0722]) + 0.05 for colour in (one, other))
    return high / low


@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize("name", [LIGHT, DARK])
def test_any_two_colours_are_unlike_for_any_eyes(name: str, sight: str) -> None:
    colours = palette(name)
    assert len(colours) == 12
    assert min(unlike(one, other, sight) for one, other in combinations(colours[:8], 2)) > 0.1
    assert min(unlike(one, other, sight) for one, other in combinations(colours, 2)) > 0.06


@pytest.mark.parametrize("name", [LIGHT, DARK])
def test_a_line_stands_out_from_its_ground(name: str) -> None:
    # What accessibility guidelines ask of lines in a drawing.
    assert min(contrast(colour, ground(name)) for colour in palette(name)) >= 3
