"""What the page of a benchmark shows: models, metrics with their intervals, costs, and the lists of some users."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from treadle.errors import ConfigError
from treadle.recsys.bench.leaderboard import DONE, Leaderboard, LeaderboardRow, Record
from treadle.recsys.bench.users import read_lists, read_values, user_lists
from treadle.recsys.evaluation import Comparison, PerUser, compare_models, mean_intervals
from treadle.runs.reader import read_json

DRAWS = 2 * 10**7
"""How many users are drawn for an interval, all resamples together."""
MOST, LEAST = 2000, 200
"""How often users are drawn again, where there are few of them, and where there are many."""


def read_leaderboard(folder: Path) -> Leaderboard:
    """Return the leaderboard of a benchmark as its folder has it.

    Raises:
        ConfigError: The folder holds no benchmark.
    """
    written = read_json(folder / "leaderboard.json")
    if not written:
        raise ConfigError(f"{folder} holds no benchmark; give the --folder of treadle recsys bench")
    records = [one for path in sorted((folder / "runs").glob("*")) if (one := Record.read(path)) is not None]
    return Leaderboard(
        records,
        dataset=str(written["dataset"]),
        shared=written["protocol"],
        bigger=bool(written.get("bigger", True)),
        remarks=written.get("remarks", ()),
    )


def summarize(folder: Path, board: Leaderboard, users: Sequence[str] | None = None) -> dict[str, Any]:
    """Return all that the page of a benchmark shows, as plain data.

    Args:
        folder: Its folder.
        board: Its leaderboard.
        users: Whom to show, by their tokens; their lists are then made by the models that were kept.

    Raises:
        ConfigError: None of these users is tested.
    """
    runs = {line.model: _user_values(folder, line) for line in board.lines}
    number = max((len(one.users) for one in runs.values() if one is not None), default=1)
    resamples = min(MOST, max(LEAST, DRAWS // number))
    deciding = board.metric
    compared = _against_best(runs, board, deciding, resamples)
    models = [_model(line, runs[line.model], board, compared.get(line.model), resamples) for line in board.lines]
    return {
        "title": board.title(),
        "metric": deciding,
        "bigger": board.bigger,
        "metrics": board.metrics,
        "models": models,
        "notes": [*board.notes(), *_notes(models, resamples, deciding)],
        "protocol": {name: _text(value) for name, value in board.shared.items()},
        "failed": [[one.model, str(one.seed), " ".join(one.error.split())] for one in board.failed],
        **_lists(folder, board, users),
    }


def _user_values(folder: Path, line: LeaderboardRow) -> PerUser | None:
    """Return the values of each user, as means over the seeds; None where some training has not kept them."""
    found = [read_values(_place(folder, one), one.test_print) for one in line.records]
    kept = [one for one in found if one is not None]
    if not kept or len(kept) < len(found) or any(tokens != kept[0][0] for tokens, _ in kept):
        return None
    first = kept[0][1]
    values = {name: torch.stack([one.values[name] for _, one in kept]).mean(dim=0) for name in first.values}
    return PerUser(first.users, values, first.split)


def _place(folder: Path, record: Record) -> Path:
    return folder / "runs" / f"{record.model}-{record.seed}"


def _against_best(
    runs: Mapping[str, PerUser | None], board: Leaderboard, metric: str, resamples: int
) -> dict[str, Comparison]:
    """Return how each model differs from the best one in the metric that decides, adjusted for their number."""
    kept = {name: run for name, run in runs.items() if run is not None and metric in run.values}
    best = board.lines[0].model if board.lines else None
    if best not in kept:
        return {}
    like = kept[best]
    same = {name: run for name, run in kept.items() if len(run.users) == len(like.users) and run.split == like.split}
    if len(same) < 2:
        return {}
    found = compare_models(same, [metric], baseline=best, resamples=resamples)
    return {one.runs[1]: one for one in found}


def _model(
    line: LeaderboardRow, run: PerUser | None, board: Leaderboard, compared: Comparison | None, resamples: int
) -> dict[str, Any]:
    metrics: dict[str, dict[str, Any]] = {}
    for name in board.metrics:
        value = line.value(name)
        metrics[name] = {"mean": _number(value), "shown": line.shown(name), "interval": None}
        if run is None or name not in run.values or not bool((~run[name].isnan()).any()):
            continue
        found = mean_intervals(run, [name], resamples=resamples)[name]
        # Where users weigh differently, or have several rows, the mean over users is another number.
        if math.isclose(found.mean, value, rel_tol=1e-6, abs_tol=1e-9):
            metrics[name]["interval"] = [found.low, found.high]
    return {
        "model": line.model,
        "metrics": metrics,
        "p": None if compared is None else compared.adjusted,
        "difference": None if compared is None else [compared.difference, *compared.interval],
        "seconds": _number(line.typical("seconds_per_epoch")),
        "memory": _number(line.typical("memory_mib")),
        "epochs": _number(line.typical("epochs")),
        "parameters": line.records[0].parameters,
        "seeds": len(line.records),
    }


def _notes(models: Sequence[Mapping[str, Any]], resamples: int, metric: str) -> list[str]:
    notes = []
    if any(one["metrics"][name]["interval"] for one in models for name in one["metrics"]):
        notes.append(
            f"Intervals hold 95 % of the means of {resamples:,} draws of users (bootstrap), of the mean over seeds; "
            "they do not say how far another seed, or another split, would be."
        )
    if any(one["p"] is not None for one in models):
        notes.append(
            f"p is the probability of so large a difference from the best model in {metric} by chance: the paired "
            f"permutation test over users with {resamples:,} exchanges, adjusted by Holm for the number of models."
        )
    return notes


def _lists(folder: Path, board: Leaderboard, users: Sequence[str] | None) -> dict[str, Any]:
    """Return the lists of users, model by model; the first seed of each."""
    labels: dict[str, str] = {}
    shown: dict[str, Any] = {}
    for line in board.lines:
        record = line.records[0]
        place = _place(folder, record)
        found = read_lists(place) if users is None else _made_lists(place, record, users)
        labels |= found.get("labels", {})
        for user, lists in found.get("users", {}).items():
            own = shown.setdefault(
                user, {**{name: lists[name] for name in ("history", "earlier", "wanted")}, "lists": {}}
            )
            own["lists"][line.model] = lists["recommended"]
    if users is not None and not shown:
        raise ConfigError(f"none of the users {list(users)} is in the test of {board.dataset!r}; give tokens of others")
    return {"users": shown, "labels": labels}


def _made_lists(place: Path, record: Record, users: Sequence[str]) -> dict[str, Any]:
    """Return the lists that the kept model of a training gives some users."""
    from treadle.recsys.quick_start import load_data_and_model

    file = next(iter(sorted(place.glob("*.pth"))), None)
    if record.state != DONE or file is None:
        return {}
    config, model, _, _, _, test_data = load_data_and_model(file)
    return user_lists(model, test_data, config["device"], users)


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else str(value)
