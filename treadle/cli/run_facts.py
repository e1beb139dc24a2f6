"""What the folder of a run tells, read without torch."""

import json
import math
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treadle.run_status import FINISHED, STATUS, read_status

CHECKPOINTS = "checkpoints"
LOSSES = ("total_loss", "loss", "train_loss_epoch")
"""Under which names the doors report the loss, the first that is there counts."""

FALLBACK_METRIC = ("eval_loss_epoch", "min")
"""What is best at where the config does not say."""

UNFINISHED = "unfinished"


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


def find_runs(folder: Path) -> Iterator[Path]:
    """Yield the folders of runs in a folder and those below it; the folder itself may be one."""
    for place, folders, files in os.walk(folder):
        if CHECKPOINTS in folders or STATUS in files:
            yield Path(place)
            folders.clear()
        folders[:] = sorted(name for name in folders if not name.startswith("."))


def facts_of(run: Path, folder: Path) -> RunFacts:
    """Return what the folder of a run tells; what cannot be read is left out."""
    lines = _lines(run)
    manifest = _json(_newest(run) / "manifest.json")
    steps = [step for step in (manifest.get("step"), *(line.get("step") for line in lines[-1:])) if step is not None]
    metric, mode = _watched(run)
    values = [line[metric] for line in lines if _is_finite(line.get(metric))]
    files = list(_files(run))
    return RunFacts(
        name=str(run.relative_to(folder)) if run != folder else run.name or str(run),
        state=_state(run, manifest),
        step=max(steps, default=None),
        limit=manifest.get("planned", {}).get("steps"),
        loss=next((loss for line in reversed(lines) if (loss := _loss(line)) is not None), None),
        best_metric=metric if values else None,
        best=(max if mode == "max" else min)(values) if values else None,
        age=max(0.0, time.time() - max((file.st_mtime for file in files), default=time.time())),
        size=sum(file.st_size for file in files),
    )


def _state(run: Path, manifest: dict[str, Any]) -> str:
    status = read_status(run)
    if status is not None:
        return status.state
    finished = manifest.get("finished") or _pointed(run, "complete") == _pointed(run, "last") is not None
    return FINISHED if finished else UNFINISHED


def _newest(run: Path) -> Path:
    return run / CHECKPOINTS / (_pointed(run, "last") or "none")


def _pointed(run: Path, name: str) -> str | None:
    try:
        return (run / CHECKPOINTS / name).read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def _lines(run: Path) -> list[dict[str, Any]]:
    """Return the lines of metrics that are whole."""
    try:
        text = (run / "metrics.jsonl").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return [line for line in map(_parsed, text.splitlines()) if line]


def _parsed(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _loss(line: dict[str, Any]) -> float | None:
    value = next((line[name] for name in LOSSES if name in line), None)
    # What is no number in JSON is there as a word: "nan".
    return float(value) if isinstance(value, (int, float)) or value in ("nan", "inf", "-inf") else None


def _watched(run: Path) -> tuple[str, str]:
    """Return the metric that decides which checkpoint is best, and whether the largest or the smallest wins."""
    import yaml  # type: ignore[import-untyped]

    class Plain(yaml.SafeLoader):  # type: ignore[misc]
        """Reads tuples and paths, which say nothing here, as nothing."""

    Plain.add_multi_constructor("!", lambda loader, suffix, node: None)
    try:
        content = yaml.load((run / "config.yaml").read_text(encoding="utf-8"), Loader=Plain)
        evaluation = content["train"]["evaluation"]
        return str(evaluation["eval_metric"]), str(evaluation["eval_mode"])
    except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError):
        return FALLBACK_METRIC


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _is_finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _files(run: Path) -> Iterator[os.stat_result]:
    for path in run.rglob("*"):
        with suppress(OSError):  # a run that is under way writes and removes files
            if path.is_file():
                yield path.stat()
