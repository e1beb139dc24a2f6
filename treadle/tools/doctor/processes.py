"""A program is examined in processes of its own: what differs between them cannot be repeated.

This module needs no torch: the command that waits for these processes loads nothing that they load again.
"""

import ast
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from treadle.errors import ConfigError
from treadle.tools.doctor.findings import Examination, Finding, Note, without_effects

STEPS = 12
"""Updates that are looked at unless somebody asks for others."""
HASH_SEEDS = ("1", "2", "3")
"""Sets of words have their own order with each of them; of two words, one order in two."""
ONCE = "once:"
"""What stands before the number of steps where the program is to be run once only."""
TIME = "time:"
"""What a process is asked for that only times the steps; behind it stands their execution."""
WORTH_IT = 1.1
NO_GPU = Note(
    "no_gpu", "trained on a CPU: head-room of memory, the largest micro-batch and the gain of graphs are told on a GPU"
)


def examine_in_processes(program: Path, steps: int = STEPS, arguments: Sequence[str] = ()) -> Examination:
    """Examine a program in processes of its own, and return what is wrong with it; see `examine`.

    A process imports what training needs once, and forks: both halves run the program. Where it depends on the order
    of sets, which a fork inherits, further processes follow, each with another order.

    Raises:
        ConfigError: The program cannot be examined; the message is that of its process.
    """
    result = _result(program, str(steps), HASH_SEEDS[0], arguments)
    first, *others = map(from_json, result["examinations"])
    # One after the other: a start takes seconds, and the first difference is enough.
    fresh = first.seeded and (not others or any(map(uses_hash_order, result["files"])))
    found = next((found for other in others if (found := differences(first, other))), [])
    for seed in HASH_SEEDS[1:] if fresh and not found else ():
        other = from_json(_result(program, f"{ONCE}{steps}", seed, arguments)["examinations"][0])
        if found := differences(first, other):
            break
    first.findings = without_effects([*first.findings, *found])
    first.notes.append(_graph(program, arguments) if first.device == "cuda" else NO_GPU)
    return first


def uses_hash_order(file: str) -> bool:
    """Whether a program of the user's has sets or hashes, whose order is another one in each process."""
    try:
        tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, UnicodeDecodeError):
        return False
    return any(
        isinstance(node, (ast.Set, ast.SetComp))
        or (isinstance(node, ast.Name) and node.id in ("set", "frozenset", "hash"))
        or (isinstance(node, ast.Attribute) and node.attr in ("keys", "items") and _is_combined(node, tree))
        for node in ast.walk(tree)
    )


def _is_combined(node: ast.Attribute, tree: ast.Module) -> bool:
    """Whether keys of two dicts are combined, which makes a set."""
    operands = [side for one in ast.walk(tree) if isinstance(one, ast.BinOp) for side in (one.left, one.right)]
    return any(isinstance(side, ast.Call) and side.func is node for side in operands)


def _graph(program: Path, arguments: Sequence[str]) -> Note:
    """Return what `execution="graph"` would give: measured, in two more processes."""
    try:
        asked = [f"{TIME}{how}" for how in ("", "graph")]
        usual, replayed = (_result(program, one, arguments=arguments)["milliseconds"] for one in asked)
    except ConfigError as error:
        return Note("graph", f"what execution='graph' would give is not known: {error}")
    if usual is None or replayed is None:
        return Note("graph", "what execution='graph' would give is not known: the run has too few steps to tell")
    return Note("graph", describe_speedup(usual, replayed))


def describe_speedup(usual: float, replayed: float) -> str:
    """Return what recording would give.

    >>> describe_speedup(1.5, 0.1)
    "a step takes 1.50 ms, and 0.10 ms with execution='graph': 15.0 times as fast"
    >>> describe_speedup(2.0, 1.9)
    "a step takes 2.00 ms, and 1.90 ms with execution='graph': not worth it"
    """
    gain = usual / replayed
    verdict = f"{gain:.1f} times as fast" if gain >= WORTH_IT else "not worth it"
    return f"a step takes {usual:.2f} ms, and {replayed:.2f} ms with execution='graph': {verdict}"


def differences(first: Examination, second: Examination) -> list[Finding]:
    """Return what keeps two runs of one program from being the same; nothing where no seed asks for it."""
    if not first.seeded or first == second:
        return []
    if first.weights != second.weights:
        return [
            Finding(
                "not_repeatable",
                "the trainer has a seed, but the weights are others each time: they were drawn before",
                "call torch.manual_seed before the model is built",
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
            f"{second.losses[place - 1]:.8g})",
            "look for a generator that nobody seeds, the clock, or the order of a set; sorted(...) gives sets an order",
        )
    ]


def _result(program: Path, asked: str, hash_seed: str = HASH_SEEDS[0], arguments: Sequence[str] = ()) -> dict[str, Any]:
    """Return what a process of its own finds: an examination of so many steps, or a timing."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [sys.executable, "-m", "treadle.tools.doctor", str(program), asked, str(result), *arguments]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["it said nothing"]
            raise ConfigError(f"{program} cannot be examined: {lines[-1]}")
        content: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        return content


def describe_failure(error: Exception, program: Path) -> str:
    """Return what a program failed with, in one line, with the last of its own lines that was at work."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg} ({error.filename}, line {error.lineno})"
    own = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == program]
    return f"{text} ({program}, line {own[-1]})" if own else text


def from_json(content: dict[str, Any]) -> Examination:
    """Return what `to_json` made plain data of."""
    findings = [Finding(**finding) for finding in content["findings"]]
    return Examination(**{**content, "findings": findings, "notes": [Note(**note) for note in content["notes"]]})


def to_json(examination: Examination) -> dict[str, Any]:
    """Return an examination as plain data."""
    return asdict(examination)
