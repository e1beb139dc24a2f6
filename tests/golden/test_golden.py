"""Programs do what they did: the golden file is compared, and is recorded anew only where a change is meant."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.golden.programs import GOLDEN, PROGRAMS, run
from tests.golden.recording import bits_of_this_machine

CONTENTS = json.loads(GOLDEN.read_text(encoding="utf-8"))
SAME_BITS = CONTENTS["machine"] == bits_of_this_machine()
"""Whether this processor rounds as the one that the file was recorded on; otherwise numbers are compared closely."""
CLOSE = 2e-2
"""How far numbers may be apart on a processor that rounds otherwise, half precision included."""
NOISE = {"core": ("0.bias", "1.running_mean"), "search proxyless": ("architecture.alpha",)}
"""Tensors that on another processor may be anything, by how the names of programs begin; all others are compared.

The bias in front of a normalisation, which takes it away again, has a gradient that is nothing but rounding, and
Adam makes steps of it as large as any; the mean that the normalisation keeps follows it. The two weights of the
proxyless search have gradients of nearly nothing: factors of 1 + 1e-7 on the weights of its layers move them by 6e-3,
and all else by 1e-6.
"""


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_does_what_it_did(name: str) -> None:
    expected = dict(CONTENTS["programs"][name])
    expected["keys"] = CONTENTS["keys"][expected["keys"]]
    found = json.loads(json.dumps(run(name)))
    for part in ("events", "keys", "config"):
        assert found[part] == expected[part]
    for part in ("metrics", "end", "console"):
        if SAME_BITS:
            assert found[part] == expected[part]
        elif part != "console":
            noise = [one for start, names in NOISE.items() if name.startswith(start) for one in names]
            assert_close(found[part], expected[part], part, noise)


def assert_close(found: Any, expected: Any, place: str, noise: Sequence[str] = ()) -> None:
    """Compare two trees whose numbers are rounded otherwise; checksums of bits are left out."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), place
        for key in expected.keys() - {"bits"}:
            if place != "end.numbers" or key.removeprefix("inner.") not in noise:
                assert_close(found[key], expected[key], f"{place}.{key}", noise)
    elif isinstance(expected, list):
        assert len(found) == len(expected), place
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_close(one, other, f"{place}.{number}")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=CLOSE, abs=CLOSE, nan_ok=True), place
    else:
        assert found == expected, place


def test_the_file_is_of_these_programs() -> None:
    assert list(CONTENTS["programs"]) == list(PROGRAMS)
    assert len(PROGRAMS) >= 60
