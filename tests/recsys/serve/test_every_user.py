"""The best items of every user in a file: in parts, resumed, and the same as the lists of users."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
import torch

from tests.recsys.serve.ready import ready
from treadle.errors import ConfigError, DataError
from treadle.recsys.serve.every_user import recommend_to_file


class Stopping:
    """A recommender that is killed after so many parts, and counts those that it makes."""

    def __init__(self, recommender: Any, parts: int = 1000) -> None:
        self._recommender, self._left, self.asked = recommender, parts, []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._recommender, name)

    def best_items(self, users: torch.Tensor, k: int, *, exclude_seen: bool) -> Any:
        if not self._left:
            raise KeyboardInterrupt
        self._left -= 1
        self.asked.append(users.tolist())
        return self._recommender.best_items(users, k, exclude_seen=exclude_seen)


@pytest.mark.parametrize("name", ["EASE", "SASRec"])
def test_a_file_of_every_user_has_the_lists_of_users(tmp_path: Path, name: str) -> None:
    recommender = ready(name)[1]
    table = parquet.read_table(recommend_to_file(recommender, tmp_path / "top.parquet", 3, users_at_once=5))
    rows = list(zip(*(table[column].to_pylist() for column in ("user_id", "rank", "item", "score")), strict=True))
    wanted = recommender.recommend(recommender.users.tokens[1:].tolist(), k=3)
    assert [row[:3] for row in rows] == [(one.query, one.rank, one.item) for one in wanted]
    assert [row[3] for row in rows] == pytest.approx([one.score for one in wanted])
    assert sorted(one.name for one in tmp_path.iterdir()) == ["top.parquet"]


def test_a_job_that_was_killed_does_only_what_is_left(tmp_path: Path) -> None:
    recommender = ready("EASE")[1]
    whole = recommend_to_file(recommender, tmp_path / "whole.parquet", 3, users_at_once=5).read_bytes()
    told: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        recommend_to_file(Stopping(recommender, 2), tmp_path / "top.parquet", 3, users_at_once=5)
    assert not (tmp_path / "top.parquet").exists()
    # What was being written when it was killed is not taken for a part.
    (tmp_path / "top.parquet.parts" / "000002.parquet.part").write_text("half")
    again = Stopping(recommender)
    path = recommend_to_file(
        again, tmp_path / "top.parquet", 3, users_at_once=5, progress=lambda done, total: told.append(done)
    )
    assert again.asked == [list(range(11, 16)), [16]]
    assert told == [5, 10, 15, 16]
    assert path.read_bytes() == whole


def test_parts_of_another_job_are_not_taken(tmp_path: Path) -> None:
    recommender = ready("EASE")[1]
    with pytest.raises(KeyboardInterrupt):
        recommend_to_file(Stopping(recommender, 1), tmp_path / "top.parquet", 3, users_at_once=5, of="one model")
    with pytest.raises(ConfigError, match="holds the parts of another job: of, k are others; remove the folder, or"):
        recommend_to_file(recommender, tmp_path / "top.parquet", 4, users_at_once=5, of="another")


def test_a_file_that_cannot_be_is_refused(tmp_path: Path) -> None:
    recommender = ready("EASE")[1]
    with pytest.raises(ConfigError, match=r"top\.csv: the best items of every user are written to a \.parquet"):
        recommend_to_file(recommender, tmp_path / "top.csv")
    with pytest.raises(ConfigError, match="k=0: recommend at least one item"):
        recommend_to_file(recommender, tmp_path / "top.parquet", 0)
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot write"):
        recommend_to_file(recommender, tmp_path / "file" / "top.parquet")
