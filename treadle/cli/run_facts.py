"""What the folder of a run tells, read without torch."""

import math
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treadle.run_reading import find_runs, newest_of, read_config, read_json, read_lines, state_of

__all__ = ["RunFacts", "facts_of", "find_runs"]

LOSSES = ("total_loss", "loss", "train_loss_epoch")
"""Under which names the doors report the loss, the first that is there counts."""

FALLBACK_METRIC = ("eval_loss_epoch", "min")
"""What is best at where the config does not say."""


@dataclass(frozen=True)
class RunFacts:
    """A run in a list.

    Attributes:
        name: Its folder, from the folder that is listed.
        state: What it is doing, or how it ended.
        step: The last step it reported or saved; None if there is none.
        limit: How many steps it is to make; None if that is not known.
        loss: The last loss it reported.
        best_metric: What the best checkpoint is best at.
        best: The best value of it.
        age: Seconds since something was written.
        size: The bytes of all its files.
    """

    name: str
    state: str
    step: int | None
    limit: int | None
    loss: float | None
    best_metric: str | None
    best: float | None
    age: float
    size: int


def facts_of(run: Path, folder: Path) -> RunFacts:
    """Return what the folder of a run tells; what cannot be read is left out."""
    lines = read_lines(run / "metrics.jsonl")
    manifest = read_json(newest_of(run) / "manifest.json")
    steps = [step for step in (manifest.get("step"), *(line.get("step") for line in lines[-1:])) if step is not None]
    metric, mode = _watched(run)
    values = [line[metric] for line in lines if _is_finite(line.get(metric))]
    files = list(_files(run))
    return RunFacts(
        name=str(run.relative_to(folder)) if run != folder else run.name or str(run),
        state=state_of(run, manifest),
        step=max(steps, default=None),
        limit=manifest.get("planned", {}).get("steps"),
        loss=next((loss for line in reversed(lines) if (loss := _loss(line)) is not None), None),
        best_metric=metric if values else None,
        best=(max if mode == "max" else min)(values) if values else None,
        age=max(0.0, time.time() - max((file.st_mtime for file in files), default=time.time())),
        size=sum(file.st_size for file in files),
    )


def _loss(line: dict[str, Any]) -> float | None:
    value = next((line[name] for name in LOSSES if name in line), None)
    # What is no number in JSON is there as a word: "nan".
    return float(value) if isinstance(value, (int, float)) or value in ("nan", "inf", "-inf") else None


def _watched(run: Path) -> tuple[str, str]:
    """Return the metric that decides which checkpoint is best, and whether the largest or the smallest wins."""
    try:
        evaluation = read_config(run)["train"]["evaluation"]
        return str(evaluation["eval_metric"]), str(evaluation["eval_mode"])
    except (KeyError, TypeError):
        return FALLBACK_METRIC


def _is_finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _files(run: Path) -> Iterator[os.stat_result]:
    for path in run.rglob("*"):
        with suppress(OSError):  # a run that is under way writes and removes files
            if path.is_file():
                yield path.stat()
