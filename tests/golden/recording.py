"""What a program of the golden file did, without clocks: events, metrics, keys of its state, its end, its console."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tests.interrupting import MEASURED, tensors_of
from treadle.callback import EVENTS, TrainerCallback
from treadle.checkpoint import CheckpointStore, Policy

CLOCKS = [
    (r"\d{2,4}[-/]\d{2}[-/]\d{2,4} \d{2}:\d{2}:\d{2}(,\d+)?", "DATE"),
    (r"\b\d+:\d{2}:\d{2}\b", "TIME"),
    (r"\b\d+(\.\d+)? ?(ms|s|seconds)\b", "SECONDS"),
    (r"(time: |memory: )\S+", r"\1N"),
    # Which module says it is no matter of what is said.
    (r"\[\d\d/\d\d TIME treadle[\w.]*\] ", ""),
    (r"\b[\d.,]+ (it|samples|steps|tokens)/s", "SPEED"),
    (r"  waits for data \d+%", ""),
    (r"\b\d+m\d\ds\b", "SECONDS"),
    (r"(samples|steps|tokens)_per_second[ :=]+[\d.e+]+", r"\1_per_second N"),
    (r"process \d+", "process N"),
    (r"-[A-Z][a-z]{2}-\d{2}-\d{4}_\d{2}-\d{2}-\d{2}(-\d+)?", "-MOMENT"),
    (r"\x1b\[[0-9;]*m", ""),
]
"""What of a line says when and how fast, and not what: patterns, and what stands in their place."""
OF_THE_MACHINE = ("command", "note this", "mark of the user", "treadle_version", "torch_version")


class EventLog(TrainerCallback):
    """Takes note of every event, in order, with the step that it came at."""

    def __init__(self) -> None:
        self.calls: list[str] = []


def _recorded(event: str) -> Callable[..., None]:
    def record(self: EventLog, trainer: Any, **kwargs: Any) -> None:
        self.calls.append(event)

    return record


for _event in EVENTS:
    setattr(EventLog, _event, _recorded(_event))


@dataclass
class Record:
    """What is compared of a program.

    Attributes:
        events: What callbacks or hooks were told of, in order; runs of the same are counted.
        metrics: The rows of `metrics.jsonl`, without clocks.
        keys: Every place in the state of the newest checkpoint, with its kind.
        config: The settings in the folder of the run.
        end: For each tensor at the end its sum and norm, and a digest of all bits.
        console: What was printed.
    """

    events: list[str] = field(default_factory=list)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    config: list[str] = field(default_factory=list)
    end: dict[str, Any] = field(default_factory=dict)
    console: list[str] = field(default_factory=list)


def counted(calls: Iterable[str]) -> list[str]:
    """Return a list of words with repeated runs of one to six words counted.

    >>> counted(["a", "b", "c", "b", "c", "d", "d"])
    ['a', '2 x b c', '2 x d']
    """
    rest, found = list(calls), []
    while rest:
        best = (1, 1)
        for length in range(1, 13):
            times = 1
            while rest[times * length : (times + 1) * length] == rest[:length]:
                times += 1
            if times > 1 and times * length > best[0] * best[1]:
                best = (length, times)
        length, times = best
        found.append(rest[0] if times == 1 else f"{times} x {' '.join(rest[:length])}")
        rest = rest[length * times :]
    return found


def digest(value: Any) -> str:
    """Return a checksum over the bits of every tensor, and over all else in words, of a tree of states."""
    found = hashlib.sha256()
    for place, leaf in sorted(tensors_of(value).items()):
        found.update(place.encode())
        if isinstance(leaf, Tensor):
            found.update(str(leaf.dtype).encode())
            found.update(leaf.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        else:
            found.update(repr(leaf).encode())
    return found.hexdigest()


def end_of(model: nn.Module, *optimizers: Any) -> dict[str, Any]:
    """Return the end of a training: of each tensor of the model sum and norm, and a checksum over all bits."""
    state = model.state_dict()
    numbers = {
        name: [round(float(value.double().sum()), 6), round(float(value.double().norm()), 6)]
        for name, value in state.items()
        if isinstance(value, Tensor)
    }
    return {"numbers": numbers, "bits": digest([state, *(one.state_dict() for one in optimizers)])}


def keys_in(run_dir: Path) -> list[str]:
    """Return every place in the newest checkpoint of a run, with its kind."""
    store = CheckpointStore(run_dir / "checkpoints", Policy())
    state = store.read(store.steps()[-1], rank=0)
    found = []
    for place, leaf in tensors_of(state).items():
        kind = f"{leaf.dtype} {list(leaf.shape)}" if isinstance(leaf, Tensor) else type(leaf).__name__
        # Series and samples have one place for each of their numbers.
        found.append(re.sub(r"\.\d+", ".#", place.lstrip(".")) + f": {re.sub(r'[0-9]+', '#', kind)}")
    return [name for name, _ in groupby(sorted(set(found)))]


def plain_config(run_dir: Path) -> list[str]:
    """Return the lines of a run's `config.yaml`, its own folder named RUN."""
    kept = (run_dir / "config.yaml").read_text(encoding="utf-8").replace(str(run_dir), "RUN")
    kept = kept.replace(str(run_dir.parent), "FOLDER")
    return [line for line in kept.splitlines() if not any(word in line for word in OF_THE_MACHINE)]


def plain_console(text: str, *folders: Path) -> list[str]:
    """Return the lines of a console without clocks, and without where the run is."""
    for place, folder in enumerate(sorted(map(str, folders), key=len, reverse=True)):
        text = text.replace(folder, f"FOLDER{place}")
    for pattern, instead in CLOCKS:
        text = re.sub(pattern, instead, text)
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def rows_in(run_dir: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """Return the rows of metrics, without clocks."""
    rows = [json.loads(line) for line in (run_dir / name).read_text(encoding="utf-8").splitlines()]
    return [{key: value for key, value in row.items() if key not in MEASURED} for row in rows]


class Console:
    """Collects what is printed while entered.

    Attributes:
        text: What was printed so far.
    """

    def __init__(self) -> None:
        self.text = ""
        self._stream = StringIO()
        self._redirect = redirect_stdout(self._stream)

    def __enter__(self) -> "Console":
        self._redirect.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._redirect.__exit__(*exception)
        self.text = self._stream.getvalue()


def bits_of_this_machine() -> str:
    """Return a checksum of products, sums and functions as this processor rounds them.

    Two machines that agree in it are taken to agree in the bits of all programs.
    """
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(2, 33, 33, generator=generator)
    half = (left.bfloat16() @ right.bfloat16()).float()
    values = [left @ right, half, left.softmax(1), left.exp().sum(), nn.functional.gelu(left), left.norm(), left.tanh()]
    return digest([*values, torch.backends.cpu.get_cpu_capability(), torch.__version__.partition("+")[0]])
