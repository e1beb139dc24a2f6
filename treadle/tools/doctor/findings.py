"""What a doctor finds, and which finding is the cause of which other."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Finding:
    """Something that is wrong with a program.

    Attributes:
        kind: The kind of fault, such as "no_gradient".
        message: What is wrong, with the numbers that show it.
        remedy: What to do.
        file: The program's file it is in, if there is a line to point to.
        line: The line.
    """

    kind: str
    message: str
    remedy: str = ""
    file: str = ""
    line: int = 0

    @property
    def place(self) -> str:
        """The line as "file.py:12", or nothing."""
        return f"{Path(self.file).name}:{self.line}" if self.line else ""


@dataclass(frozen=True)
class Note:
    """Something that was measured, and is no fault.

    Attributes:
        kind: What was measured: "memory", "graph".
        message: The numbers, in words.
    """

    kind: str
    message: str


@dataclass
class Examination:
    """What a few steps of a program showed.

    Attributes:
        findings: What is wrong.
        losses: The losses of the steps, to compare two runs by.
        weights: A number for the weights before the first step.
        seeded: Whether the run is meant to be the same each time.
        steps: How many steps were looked at.
        device: The kind of device it trained on.
        notes: What was measured; two runs of one program need not agree in it.
    """

    findings: list[Finding] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    weights: float = 0.0
    seeded: bool = False
    steps: int = 0
    device: str = "cpu"
    notes: list[Note] = field(default_factory=list, compare=False)


_FOLLOWS_FROM_NUMBERS = ("not_finite", "diverges", "no_gradient", "no_learning", "accumulation", "unrelated_labels")
EXPLAINS: dict[str, tuple[str, ...]] = {
    "bad_values": (*_FOLLOWS_FROM_NUMBERS, "input_scale", "loss_inputs", "fails"),
    "constant_data": ("unrelated_labels", "repeated_data", "evaluation_data", "input_scale", "data_order"),
    "input_scale": ("not_finite", "diverges", "no_gradient", "accumulation"),
    "loss_inputs": ("constant_data", "accumulation", "no_gradient", "diverges", "unrelated_labels"),
    "weight_decay": ("diverges", "no_learning", "not_finite"),
    "diverges": ("not_finite", "no_gradient", "accumulation"),
    "frozen": ("fails", "no_gradient", "not_optimized", "no_learning"),
    "batch_norm": ("fails", "accumulation"),
    "dropout": ("no_gradient", "diverges"),
    "not_repeatable": ("not_recordable", "accumulation"),
    "blocks_device": ("not_recordable",),
    "memory_grows": ("not_recordable",),
    "repeated_data": ("evaluation_data",),
    "data_order": ("diverges",),
    "fails": ("no_learning",),
    "bad_labels": ("fails", "not_finite", "diverges", "accumulation"),
}
"""Kinds of findings, and which others follow from each: these are not told beside it."""


def without_effects(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings that no other one explains.

    >>> found = [Finding("not_finite", "the loss is nan"), Finding("bad_values", "3 samples have nan in them")]
    >>> [finding.kind for finding in without_effects(found)]
    ['bad_values']
    """
    found = list(findings)
    explained = {effect for finding in found for effect in EXPLAINS.get(finding.kind, ())}
    return [finding for finding in found if finding.kind not in explained]
