"""The best items of every user as one Parquet file: some users at a time, and resumed where it was."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from treadle.errors import ConfigError, DataError
from treadle.files.atomic_io import replace_file
from treadle.recsys.evaluation import NO_ITEM
from treadle.recsys.optional import pyarrow
from treadle.recsys.serve.answers import Answers

USERS_AT_ONCE = 20_000
"""The users of one part: of ten items each, some megabytes."""
PARTS = ".parts"
"""What the folder of the parts adds to the name of the file."""
FACTS = "parts.json"
Progress = Callable[[int, int], None]
"""Is told how many users are done, and how many there are."""


def recommend_to_file(
    recommender: Answers,
    path: str | os.PathLike[str],
    k: int = 10,
    *,
    exclude_seen: bool | None = None,
    of: str = "",
    users_at_once: int = USERS_AT_ONCE,
    progress: Progress = lambda done, total: None,
) -> Path:
    """Write the best items of every user of the data to a Parquet file, in the order of the data.

    Each part is complete on disk before the next is begun, in a folder beside the file. Killed at any moment, the same
    call does only what is left, and the file is the same. Memory holds one part.

    Args:
        recommender: What recommends.
        path: The file.
        k: How many items each user gets.
        exclude_seen: As for `recommend`.
        of: What tells the model from others, such as the checksum of its file: parts of another one are not taken.
        users_at_once: How many users are in a part.
        progress: Is told how far it is.

    Raises:
        ConfigError: The file is no Parquet, there are not so many items, or the parts beside it are those of another
            job.
        DataError: The file cannot be written.
    """
    target = Path(path)
    if target.suffix != ".parquet":
        raise ConfigError(f"{target}: the best items of every user are written to a .parquet file")
    if not 0 < k < len(recommender.items):
        raise ConfigError(f"k={k}: recommend at least one item, and at most the {len(recommender.items) - 1} there are")
    hides = not recommender.repeatable if exclude_seen is None else exclude_seen
    facts = {
        "of": of,
        "k": k,
        "exclude_seen": hides,
        "users_at_once": users_at_once,
        "users": recommender.users.fingerprint,
        "items": recommender.items.fingerprint,
    }
    try:
        return _Job(recommender, target, facts, users_at_once).run(progress)
    except OSError as error:
        raise DataError(f"cannot write {target}: {error}") from error


class _Job:
    def __init__(self, recommender: Answers, target: Path, facts: dict[str, Any], users_at_once: int) -> None:
        self._recommender, self._target, self._facts, self._step = recommender, target, facts, users_at_once
        self._folder = target.with_name(target.name + PARTS)
        self._total = len(recommender.users) - 1

    def run(self, progress: Progress) -> Path:
        self._open()
        files = []
        for number, first in enumerate(range(1, self._total + 1, self._step)):
            last = min(first + self._step, self._total + 1)
            files.append(self._folder / f"{number:06d}.parquet")
            if not files[-1].exists():
                self._write_part(files[-1], first, last)
            progress(last - 1, self._total)
        replace_file(self._target, lambda temporary: self._join(files, temporary))
        shutil.rmtree(self._folder)
        return self._target

    def _open(self) -> None:
        """Make the folder of the parts, or find out whether the one that is there is of the same job."""
        self._folder.mkdir(parents=True, exist_ok=True)
        file = self._folder / FACTS
        if not file.exists():
            replace_file(file, lambda temporary: temporary.write_text(json.dumps(self._facts)))
            return
        try:
            before = json.loads(file.read_text())
        except ValueError:
            before = {}
        different = [name for name, value in self._facts.items() if before.get(name) != value]
        if different:
            raise ConfigError(
                f"{self._folder} holds the parts of another job: {', '.join(different)} are others; remove the folder, "
                "or write to another file"
            )

    def _write_part(self, file: Path, first: int, last: int) -> None:
        recommender, k = self._recommender, self._facts["k"]
        ids = torch.arange(first, last, device=recommender.device)
        items, scores, _ = recommender.best_items(ids, k, exclude_seen=self._facts["exclude_seen"])
        there = (items != NO_ITEM).cpu().numpy()
        arrow = pyarrow()
        rows = np.repeat(np.arange(first, last), there.sum(axis=1))
        ranks = np.broadcast_to(np.arange(1, k + 1), there.shape)[there]
        columns = {
            recommender.users.field: _taken(recommender.users.arrow_tokens, rows),
            "rank": arrow.array(ranks.astype(np.int32)),
            "item": _taken(recommender.items.arrow_tokens, items.cpu().numpy()[there]),
            "score": arrow.array(scores.float().cpu().numpy()[there]),
        }
        replace_file(file, lambda temporary: arrow.parquet.write_table(arrow.table(columns), temporary))

    def _join(self, files: list[Path], temporary: Path) -> None:
        parquet = pyarrow().parquet
        with parquet.ParquetWriter(temporary, parquet.read_schema(files[0])) as writer:
            for file in files:
                writer.write_table(parquet.read_table(file))


def _taken(tokens: Any, places: np.ndarray[Any, Any]) -> Any:
    arrow = pyarrow()
    return tokens.take(arrow.array(places)).cast(arrow.string())
