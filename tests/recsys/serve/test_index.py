"""An index finds nearly all of the best items, and gives them their exact scores."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.recsys.serve.ready import ready
from treadle.errors import CheckpointError, ConfigError
from treadle.recsys.serve.exported import export_recommender
from treadle.recsys.serve.index import IndexedRecommender, VectorIndex, indexed
from treadle.recsys.serve.saved import load_recommender

pytest.importorskip("faiss", reason="the extra index is not installed")


def clustered(number: int, seed: int) -> torch.Tensor:
    """Return vectors around some centres."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(20, 16, generator=generator)
    generator.manual_seed(seed)
    owner = torch.randint(20, (number,), generator=generator)
    return centres[owner] + 0.3 * torch.randn(number, 16, generator=generator)


def test_an_index_looks_into_as_many_lists_as_the_recall_needs(tmp_path: Path) -> None:
    items, users = clustered(3001, 1), clustered(100, 2)
    index = VectorIndex.build(items, users, recall=0.99)
    assert index.recall >= 0.99
    assert 1 <= index.probes < 70
    best = (users @ items[1:].T).topk(10, dim=1).indices + 1
    found = index.search(users, 10)
    shared = [len(set(one) & set(other)) for one, other in zip(found.tolist(), best.tolist(), strict=True)]
    assert np.mean(shared) >= 9.8
    again = VectorIndex.load(index.save(tmp_path / "one.index"), items, index.recall)
    assert torch.equal(again.search(users, 10), found)
    with pytest.raises(CheckpointError, match="is an index of 3,000 vectors of 16 numbers, and there are 2,000 of 16"):
        VectorIndex.load(tmp_path / "one.index", items[:2001], 1.0)
    (tmp_path / "one.index").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match=r"one\.index is no index: "):
        VectorIndex.load(tmp_path / "one.index", items, 1.0)


ASKED: list[dict[str, Any]] = [
    {"users": ["u3", "u4"], "k": 3},
    {"users": ["u3"], "history": ["i1", "i2"], "exclude": ["i0"], "k": 4},
    {"users": ["u3", "nobody"], "k": 3},
    {"users": "u3", "filter": ["i1", "i4", "i7"], "k": 2},
    {"users": "u3", "k": 12},
]


@pytest.mark.parametrize("name", ["BPR", "SimpleX"])
def test_lists_by_an_index_that_looks_everywhere_are_the_exact_ones(name: str) -> None:
    recommender = ready(name)[1]
    found = IndexedRecommender(recommender)
    for asked in ASKED:
        wanted, lists = recommender.recommend(**asked), found.recommend(**asked)
        assert lists.items.tolist() == wanted.items.tolist()
        np.testing.assert_allclose(lists.scores, wanted.scores, rtol=1e-5, atol=1e-6)
        assert lists.cold.tolist() == wanted.cold.tolist()
    assert found.similar_items("i4", k=2)["i4"] == recommender.similar_items("i4", k=2)["i4"]


def test_an_index_is_kept_beside_the_model_and_made_anew_for_another(tmp_path: Path) -> None:
    recommender = ready("BPR")[1]
    load = indexed(load_recommender)
    folder = export_recommender(recommender, tmp_path / "out")
    first = load(folder)
    (kept,) = tmp_path.glob("out.*.index")
    written = kept.stat().st_mtime_ns
    assert load(folder).recommend("u3", k=3)["u3"] == first.recommend("u3", k=3)["u3"]
    assert kept.stat().st_mtime_ns == written
    with torch.no_grad():
        recommender.model.item_embedding.weight.mul_(2)
    export_recommender(recommender, folder)
    with torch.no_grad():
        recommender.model.item_embedding.weight.div_(2)
    load(folder)
    (other,) = tmp_path.glob("out.*.index")
    assert other != kept


def test_a_model_whose_scores_are_no_products_has_no_index() -> None:
    with pytest.raises(ConfigError, match="an index is of vectors, and this model's score is no inner product"):
        IndexedRecommender(ready("EASE")[1])
