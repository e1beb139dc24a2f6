"""What two runs have recorded, compared bit for bit: their metrics and their checkpoints."""

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from treadle.checkpoint import CheckpointStore, Policy
from treadle.config.dict_diff import Difference, differences
from treadle.errors import CheckpointError
from treadle.events import names
from treadle.runs.provenance import file_checksum
from treadle.runs.reader import read_config, read_json, read_lines

# In what the surroundings of a run differ from those of its repetition: versions, device, settings, code, data


KINDS = ("environment", "determinism", "packages", "processes", "seed", "identity")
"""What of two manifests is compared as it is."""
OWN_SETTINGS = ("run_dir", "train.output_dir", "train.resume", "train.start_iter", "resume")
"""Settings that a repetition has of its own."""


def environment_changes(run: Path, again: Path) -> list[str]:
    """Return, in words, what differs between where a run and its repetition were made.

    Args:
        run: The folder of the run.
        again: The folder of its repetition; empty if that did not come to train.
    """
    then, now = (read_json(folder / "manifest.json") for folder in (run, again))
    found: list[str] = []
    if now:
        found += [*_facts(then, now), *_settings(read_config(run), read_config(again))]
    folder = Path(str(then.get("folder") or os.getcwd()))
    for kind in ("code", "files"):
        found += list(_changed(then.get(kind), folder, kind))
    if now:
        found += _git(then.get("git"), now.get("git"))
    return found


def _facts(then: Any, now: Any) -> Iterator[str]:
    """Yield in what the facts of two manifests differ, of those that the older one has."""
    known = [kind for kind in KINDS if kind in then]
    for found in differences({kind: then[kind] for kind in known}, {kind: now.get(kind) for kind in known}):
        yield _changed_value(found)


def _settings(then: Any, now: Any) -> Iterator[str]:
    """Yield in what the settings of two runs differ; what one of them lacks is none."""
    for found in differences(then, now):
        if found.name not in OWN_SETTINGS:
            yield f"settings.{_changed_value(found)}"


def _changed_value(found: Difference) -> str:
    return f"{found.name}: {_shown_value(found.first)} then, {_shown_value(found.second)} now"


def _changed(saved: Any, folder: Path, kind: str) -> Iterator[str]:
    """Yield which files are not what they were when the run was made."""
    for name, checksum in (saved if isinstance(saved, dict) else {}).items():
        now = file_checksum(str(folder / name))
        if now is None:
            yield f"{kind}: {name} is gone"
        elif now != checksum:
            yield f"{kind}: {name} has changed"


def _git(then: Any, now: Any) -> list[str]:
    if not isinstance(then, dict) or not isinstance(now, dict) or then.get("commit") == now.get("commit"):
        return []
    return [f"git: commit {str(then.get('commit'))[:10]} then, {str(now.get('commit'))[:10]} now"]


def _shown_value(value: Any) -> str:
    return "absent" if value is None else str(value)


MEASURED = {names.WALL_TIME, *names.MEASURED, "epoch"}
"""What a run says of the machine and the moment, and not of the training."""
NOT_STATE = ("history", "metrics_file")
"""What of a checkpoint holds clocks; the metrics are compared by themselves."""
SHOWN = 5
"""How many differences of a kind are told one by one."""


@dataclass
class Comparison:
    """What was compared, and in what it differs.

    Attributes:
        values: How many metrics were compared.
        checkpoints: The steps whose checkpoints were compared.
        tensors: How many tensors there were in them.
        differences: What differs, in words.
    """

    values: int = 0
    checkpoints: list[int] = field(default_factory=list)
    tensors: int = 0
    differences: list[str] = field(default_factory=list)

    @property
    def compared(self) -> bool:
        """Whether there was anything to compare."""
        return bool(self.values or self.checkpoints)


def open_store(run: Path) -> CheckpointStore:
    """Return the checkpoints of a run, to be read."""
    return CheckpointStore(run / "checkpoints", Policy(keep_last=None))


def find_damage(store: CheckpointStore, step: int) -> str | None:
    """Return, in words, in what a checkpoint is not what was written; None if it is whole."""
    try:
        store.manifest(step, verify=True)
    except CheckpointError as error:
        return str(error)
    return None


def recorded_steps(run: Path) -> list[int]:
    """Return the steps of which a run has metrics that can be compared, in order."""
    return sorted({int(line["step"]) for line in read_lines(run / "metrics.jsonl") if _told(line)})


def compare(run: Path, again: Path, *, after: int, to: int) -> Comparison:
    """Compare what a run recorded in the steps behind `after`, up to `to`, with what its repetition did."""
    found = Comparison()
    _compare_metrics(found, run, again, after, to)
    _compare_checkpoints(found, run, again, after, to)
    return found


def _compare_metrics(found: Comparison, run: Path, again: Path, after: int, to: int) -> None:
    old, new = (_metrics(folder, after, to) for folder in (run, again))
    places = sorted(old.keys() | new.keys())
    found.values = len(old)
    wrong = [place for place in places if not _same_number(old.get(place), new.get(place))]
    for step, name in wrong[:SHOWN]:
        then, now = (repr(values.get((step, name), "nothing")) for values in (old, new))
        found.differences.append(f"metrics, step {step}: {name} was {then}, is {now}")
    if len(wrong) > SHOWN:
        found.differences.append(f"metrics: {len(wrong)} of {len(places)} values differ, from step {wrong[0][0]} on")


def _metrics(run: Path, after: int, to: int) -> dict[tuple[int, str], Any]:
    lines = [line for line in read_lines(run / "metrics.jsonl") if after < int(line.get("step", -1)) <= to]
    return {(int(line["step"]), name): value for line in lines for name, value in _told(line).items()}


def _told(line: dict[str, Any]) -> dict[str, Any]:
    """Return what a line of metrics says of the training."""
    hidden = MEASURED | {"step"}
    return {name: value for name, value in line.items() if name not in hidden and names.STEP_PART not in name}


def _same_number(left: Any, right: Any) -> bool:
    return type(left) is type(right) and bool(left == right)


def _compare_checkpoints(found: Comparison, run: Path, again: Path, after: int, to: int) -> None:
    old, new = open_store(run), open_store(again)
    present = new.steps()
    for step in old.steps():
        # Those that the first step was made from are a given, not a result; what a run begins with is one.
        if step > to or step < after or (step == after and step > 0) or find_damage(old, step):
            continue
        found.checkpoints.append(step)
        if step not in present:
            found.differences.append(f"step {step}: the run was saved there, its repetition was not")
            continue
        _compare_states(found, step, old, new)


def _compare_states(found: Comparison, step: int, old: CheckpointStore, new: CheckpointStore) -> None:
    wrong = []
    for rank in range(int(old.manifest(step)["ranks"])):
        then, now = (_state(store, step, rank) for store in (old, new))
        found.tensors += sum(isinstance(value, Tensor) for value in then.values())
        wrong += [(name, then.get(name), now.get(name)) for name in [*then, *(key for key in now if key not in then)]]
    wrong = [(name, one, other) for name, one, other in wrong if not bitwise_equal(one, other)]
    for name, one, other in wrong[:SHOWN]:
        found.differences.append(f"checkpoint, step {step}: {name} {_how(one, other)}")
    if len(wrong) > SHOWN:
        found.differences.append(f"checkpoint, step {step}: {len(wrong)} entries differ in all")


def _state(store: CheckpointStore, step: int, rank: int) -> dict[str, Any]:
    try:
        tracked = store.read(step, rank=rank)["tracked"]
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{store.address(step)} holds no state of a run") from error
    kept = {name: value for name, value in tracked.items() if name not in NOT_STATE}
    return dict(_leaves(kept))


def _leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield everything in a tree of states, with its place."""
    items: Any = ()
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    else:
        yield place, value
    for key, item in items:
        yield from _leaves(item, f"{place}.{key}" if place else str(key))


def bitwise_equal(left: Any, right: Any) -> bool:
    """Whether two values are the same, to the last bit; a nan is the same as itself.

    >>> bitwise_equal(torch.tensor([0.0]), torch.tensor([-0.0])), bitwise_equal(float("nan"), float("nan"))
    (False, True)
    """
    if not isinstance(left, Tensor) or not isinstance(right, Tensor):
        both = isinstance(left, float) and isinstance(right, float) and math.isnan(left) and math.isnan(right)
        return both or (type(left) is type(right) and bool(left == right))
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    return torch.equal(_bytes(left), _bytes(right))


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def _how(old: Any, new: Any) -> str:
    """Return, in words, how two values that are not the same differ."""
    if not isinstance(old, Tensor) or not isinstance(new, Tensor):
        return f"was {_word(old)}, is {_word(new)}"
    if old.shape != new.shape or old.dtype != new.dtype:
        return f"was {tuple(old.shape)} {old.dtype}, is {tuple(new.shape)} {new.dtype}"
    each = (_bytes(old) != _bytes(new)).view(max(1, old.numel()), -1).any(dim=1)
    count = f"differs in {int(each.sum())} of {old.numel()} values"
    if not old.is_floating_point():
        return count
    distance = (old.double() - new.double()).abs().nan_to_num(nan=math.inf).max()
    return f"{count}, by up to {float(distance):.3g}"


def _word(value: Any) -> str:
    if value is None:
        return "absent"
    return f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)[:80]
