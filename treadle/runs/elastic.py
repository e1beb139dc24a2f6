"""Going on with a run whose batches are shared out otherwise than before: samples position the data, not batches."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from treadle.errors import CheckpointError


class Split(NamedTuple):
    """How a run shares out its batches.

    Attributes:
        processes: How many processes it has.
        data: Over how many of them, or groups of them, the samples of a batch are shared.
        batch_size: Samples per micro-batch on each; None if the loader does not say.
    """

    processes: int
    data: int
    batch_size: int | None

    @classmethod
    def of_state(cls, state: dict[str, Any], now: "Split") -> "Split":
        """Return how the run that saved `state` did it; an older one had as many shares as processes.

        Raises:
            CheckpointError: No run can have done it so.
        """
        processes = state["processes"]
        data, size = state.get("data", processes), state.get("batch_size", now.batch_size)
        numbers = [processes, data] if size is None else [processes, data, size]
        if any(type(number) is not int or number < 1 for number in numbers) or processes % data:
            raise CheckpointError(
                f"the checkpoint says that its run had {processes!r} processes and shared batches of {size!r} samples "
                f"over {data!r} of them, which cannot be; it was edited: restore it, or resume from another checkpoint"
            )
        return cls(processes, data, size)


def batch_identity(split: dict[str, Any]) -> dict[str, Any]:
    """Return what of the batches must be the same for a run to go on: their size over all processes.

    >>> batch_identity({"per device": 4, "accumulation": 2, "processes": 3})
    {'global': 24}
    """
    if split.get("per device") is None:
        return split
    return {"global": split["per device"] * split["accumulation"] * split["processes"]}


def split_anew(state: dict[str, Any], then: Split, now: Split) -> dict[str, Any]:
    """Return the state of a run with its places in the data, and its count of samples, for the batches of now.

    Raises:
        CheckpointError: A place lies inside a batch of now, or cannot be counted in samples.
    """
    tracked = dict(state["tracked"])
    for name in [name for name in tracked if name.startswith("stream_")]:
        tracked[name] = _placed_anew(name, tracked[name], then, now)
    progress = tracked["progress"]
    tracked["progress"] = {**progress, "samples": progress["samples"] * then.data // now.data}
    return {**state, "processes": now.processes, "tracked": tracked}


def _placed_anew(name: str, place: dict[str, Any], then: Split, now: Split) -> dict[str, Any]:
    if name == "stream_evaluation" or not place["drawn"]:
        # An evaluation begins at the first batch each time.
        return {**place, "drawn": 0, "last": 0}
    if name != "stream_train" or then.batch_size is None or now.batch_size is None or not _is_shared(place):
        raise CheckpointError(
            f"the checkpoint was written by {then.processes} processes and this run has {now.processes}, but the place "
            f"in {name.removeprefix('stream_')!r} cannot be counted in samples; start {then.processes}"
        )
    seen, at_once = place["drawn"] * then.data * then.batch_size, now.data * now.batch_size
    if seen % at_once:
        raise CheckpointError(
            f"the checkpoint is after {seen} samples of epoch {place['epoch']}, inside a batch of {at_once} on "
            f"{now.processes} processes; use {then.processes} with batches of {then.batch_size}"
        )
    return {**place, "drawn": seen // at_once, "last": 0}


def _is_shared(place: dict[str, Any]) -> bool:
    """Whether a place in the data is the same for all processes, in samples: by number, or as a source says it."""
    return "source" not in place or (isinstance(place["source"], dict) and place["source"].get("shared") is True)


def joined_losses(states: Sequence[dict[str, Any]], copies: int, *, mine: bool) -> dict[str, Any]:
    """Return the sums of losses of all processes, for one of them to go on with; nothing for the others.

    Args:
        states: What each process that saved the run had summed up.
        copies: How many of these recorded the same losses.
        mine: Whether this process is the one to go on with them.
    """
    share = 1.0 / copies if mine else 0.0
    total, count = (share * sum(float(state[name]) for state in states) for name in ("total", "count"))
    taken = [share * sum(float(state["taken"][place]) for state in states) for place in (0, 1)]
    return {**states[0], "total": total, "count": count, "taken": taken, "bad": None}
