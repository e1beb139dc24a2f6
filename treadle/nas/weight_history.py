"""How the weights of candidates went in the course of a search."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treadle.errors import ConfigError
from treadle.run_place import require_folder

SEARCH_FILE, METRICS_FILE = "search.json", "metrics.jsonl"
WEIGHT = "architecture"
"""What the names of the weights of candidates begin with, among the metrics of a run."""


def name_of(row: str, candidate: Any) -> str:
    """Return the name of a candidate's weight among the metrics of a run."""
    return f"{WEIGHT}/{row}/{candidate}"


@dataclass(frozen=True)
class WeightHistory:
    """What every candidate weighed after each epoch.

    Attributes:
        trainer: The name of the trainer.
        steps: How many updates had been made.
        rows: By row and candidate, what it weighed at each of these.
    """

    trainer: str
    steps: list[int]
    rows: dict[str, dict[str, list[float]]]


def weights_over_time(run_dir: str | Path) -> WeightHistory:
    """Return how the weights of candidates went in a search, from the folder of its run.

    Args:
        run_dir: The folder; the search need not have ended.

    Raises:
        ConfigError: The folder holds no search, or one without such weights.
    """
    require_folder(run_dir, "a search is read from its folder")
    folder = Path(run_dir)
    try:
        search = json.loads((folder / SEARCH_FILE).read_text(encoding="utf-8"))
        lines = (folder / METRICS_FILE).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError as error:
        raise ConfigError(
            f"{folder} is not the folder of a one-shot search: it has no {Path(error.filename).name}; pass the run_dir "
            "of a trainer that was fitted"
        ) from error
    # The last line may be half written.
    records = [(record["step"], record) for record in map(_parsed, lines) if record is not None]
    return collected(search["trainer"], search["rows"], records)


def collected(
    trainer: str, rows: Mapping[str, Sequence[Any]], records: Sequence[tuple[int, Mapping[str, Any]]]
) -> WeightHistory:
    """Return the history in the metrics of a run.

    Args:
        trainer: The name of the trainer.
        rows: The candidates of each row.
        records: Steps, each with its metrics by name.

    Raises:
        ConfigError: There is no weight in them.
    """
    if not rows:
        raise ConfigError(f"{trainer} learns no weights of candidates; there is nothing to follow")
    first = next(_names(rows))
    own = [(step, record) for step, record in records if first in record]
    if not own:
        raise ConfigError(f"{trainer} has not come to the end of an epoch, after which the weights are recorded")
    found = {
        row: {str(one): [record[name_of(row, one)] for _, record in own] for one in candidates}
        for row, candidates in rows.items()
    }
    return WeightHistory(trainer, [step for step, _ in own], found)


def _names(rows: Mapping[str, Sequence[Any]]) -> Iterator[str]:
    return (name_of(row, candidate) for row, candidates in rows.items() for candidate in candidates)


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        record: dict[str, Any] = json.loads(line)
    except ValueError:
        return None
    return record
