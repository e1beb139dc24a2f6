"""A program is examined in processes of its own: what differs between them cannot be repeated."""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from treadle.doctor.examining import STEPS, Examination
from treadle.doctor.finding import Finding
from treadle.errors import ConfigError

HASH_SEEDS = ("1", "2", "3")
"""Sets of words have their own order with each of them; of two words, one order in two."""


def examine_apart(program: Path, steps: int = STEPS) -> Examination:
    """Examine a program in processes of its own, and return what is wrong with it.

    Raises:
        ConfigError: The program cannot be examined; the message is that of its process.
    """
    first = _examined(program, steps, HASH_SEEDS[0])
    # One after the other: a start takes seconds, and the first difference is enough.
    others = (_examined(program, steps, seed) for seed in HASH_SEEDS[1:] if first.seeded)
    first.findings += next((found for other in others if (found := differences(first, other))), [])
    return first


def differences(first: Examination, second: Examination) -> list[Finding]:
    """Return what keeps two runs of one program from being the same; nothing where no seed asks for it."""
    if not first.seeded or first == second:
        return []
    if first.weights != second.weights:
        return [
            Finding(
                "not_repeatable",
                "the trainer has a seed, but the weights are others each time: they were drawn before; call "
                "torch.manual_seed before the model is built",
            )
        ]
    pairs = enumerate(zip(first.losses, second.losses, strict=False), 1)
    place = next((number for number, (one, other) in pairs if one != other), None)
    if place is None:
        return []
    return [
        Finding(
            "not_repeatable",
            f"two runs with one seed differ from micro-batch {place} on ({first.losses[place - 1]:.8g} and "
            f"{second.losses[place - 1]:.8g}): something draws from a generator that nobody seeds, reads the clock, or "
            "depends on the order of a set",
        )
    ]


def _examined(program: Path, steps: int, hash_seed: str) -> Examination:
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "examination.json"
        command = [sys.executable, "-m", "treadle.doctor", str(program), str(steps), str(result)]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["it said nothing"]
            raise ConfigError(f"{program} cannot be examined: {lines[-1]}")
        return loaded(json.loads(result.read_text(encoding="utf-8")))


def loaded(content: dict[str, Any]) -> Examination:
    """Return what `saved` made plain data of."""
    return Examination(**{**content, "findings": [Finding(**finding) for finding in content["findings"]]})


def saved(examination: Examination) -> dict[str, Any]:
    """Return an examination as plain data."""
    return asdict(examination)
