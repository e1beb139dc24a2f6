"""Samplers by RecBole's names draw what was not used."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.recsys.trainer.runs import graph, interactions, settings
from treadle.errors import ConfigError, DataError
from treadle.recsys import Config, compat, create_dataset, get_model

with compat.recbole_names():
    from recbole.sampler import KGSampler, RepeatableSampler, Sampler


def dataset(folder: Path, model: str = "BPR", **tables: Any) -> Any:
    config = Config(get_model(model), "toy", config_dict=settings(folder))
    return create_dataset(config, **{"inter": interactions(), **tables})


def test_items_that_a_user_has_used_are_not_drawn(tmp_path: Path) -> None:
    data = dataset(tmp_path)
    users, items = (ids.numpy() for ids in data.user_item_pairs())
    used = set(zip(users.tolist(), items.tolist(), strict=True))
    asked = np.arange(1, 25)
    drawn = Sampler("train", data).set_phase("train").sample_by_user_ids(asked, None, 40)
    assert drawn.shape == (24 * 40,)
    assert set(zip(np.tile(asked, 40).tolist(), drawn.tolist(), strict=True)) & used == set()
    # Of 30 items a user has used 12; 40 draws reach nearly all others.
    assert len({(user, item) for user, item in zip(np.tile(asked, 40).tolist(), drawn.tolist(), strict=True)}) > 350


def test_draws_are_those_of_the_seed(tmp_path: Path) -> None:
    data = dataset(tmp_path)
    first, second = (Sampler("train", data).sample_by_user_ids([1, 2, 3], None, 5) for _ in range(2))
    assert first.equal(second)


def test_by_popularity_what_nobody_used_is_never_drawn(tmp_path: Path) -> None:
    table = {"user_id": ["a", "b", "c", "a"], "item_id": ["i", "j", "i", "k"], "timestamp": [1, 2, 3, 4]}
    data = dataset(tmp_path, inter=table)
    drawn = RepeatableSampler("train", data, distribution="popularity").sample_by_user_ids(None, [1] * 200, 1)
    assert sorted(set(drawn.tolist())) == [2, 3]


def test_entities_that_follow_a_head_are_not_drawn(tmp_path: Path) -> None:
    data = dataset(tmp_path, "CKE", **graph())
    heads, _, tails = (ids.numpy() for ids in data.triples())
    drawn = KGSampler(data).sample_by_entity_ids(heads, 3).numpy()
    known = set(zip(heads.tolist(), tails.tolist(), strict=True))
    assert set(zip(np.tile(heads, 3).tolist(), drawn.tolist(), strict=True)) & known == set()


def test_a_user_who_has_used_everything_is_named(tmp_path: Path) -> None:
    table = {"user_id": ["a", "a", "b"], "item_id": ["i", "j", "i"], "timestamp": [1, 2, 3]}
    with pytest.raises(DataError, match="there is nothing left to draw for 1: it has used every id"):
        Sampler("train", dataset(tmp_path, inter=table)).sample_by_user_ids([1], None, 1)


def test_a_phase_or_distribution_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    data = dataset(tmp_path)
    with pytest.raises(ConfigError, match="there is no phase 'test'; there are \\['train'\\]"):
        Sampler("train", data).set_phase("test")
    with pytest.raises(ConfigError, match="distribution='even' does not exist"):
        Sampler("train", data, distribution="even")
    with pytest.raises(ConfigError, match="there are 2 phases, and 1 data sets"):
        Sampler(["train", "valid"], data)
