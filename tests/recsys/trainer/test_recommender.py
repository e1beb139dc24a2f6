"""What a trained model is for: recommendations, similar items, vectors and tables."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.feather as feather
import pyarrow.parquet as parquet
import pytest
import torch

from tests.recsys.trainer.runs import EACH, ITEMS, USERS, Run, interactions, make
from treadle.errors import ConfigError, DataError
from treadle.recsys import Interaction, Recommender
from treadle.recsys.models.general_recommender import BPR

SEQUENTIAL: dict[str, Any] = {"hidden_size": 8, "inner_size": 8, "n_layers": 1, "n_heads": 2}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = make(tmp_path_factory.mktemp("trained"), learning_rate=0.05, epochs=5)
    run.fit(saved=False)
    return run


def seen(user: str) -> set[str]:
    table = interactions()
    return {item for owner, item in zip(table["user_id"], table["item_id"], strict=True) if owner == user}


def by_hand(run: Run, user: str, k: int, hidden: set[str]) -> list[str]:
    """Return the best items for a user, by sorting the scores of the model."""
    data = run.train.dataset
    ids = torch.tensor([data.token2id("user_id", user)])
    with torch.no_grad():
        scores = run.model.full_sort_predict(Interaction({"user_id": ids})).view(-1)
    order = sorted(range(1, data.item_num), key=lambda item: (-scores[item].item(), item))
    tokens = [str(data.id2token("item_id", item)) for item in order]
    return [token for token in tokens if token not in hidden][:k]


def test_a_user_gets_the_best_items_that_the_user_does_not_have(trained: Run) -> None:
    found = trained.trainer.recommend(["u3", "u7"], k=5)
    assert found["u3"] == by_hand(trained, "u3", 5, seen("u3"))
    assert found["u7"] == by_hand(trained, "u7", 5, seen("u7"))
    assert found.scores.shape == (2, 5)
    assert not found.cold.any()


def test_one_user_may_be_asked_for_by_itself(trained: Run) -> None:
    assert trained.trainer.recommend("u3", k=2)["u3"] == by_hand(trained, "u3", 2, seen("u3"))


def test_items_that_a_user_has_may_be_recommended_again(trained: Run) -> None:
    found = trained.trainer.recommend("u3", k=5, exclude_seen=False)
    assert found["u3"] == by_hand(trained, "u3", 5, set())


def test_an_unknown_user_gets_what_is_popular(trained: Run) -> None:
    found = trained.trainer.recommend(["u3", "somebody"], k=3)
    counts = torch.bincount(trained.train.dataset.inter_feat["item_id"], minlength=ITEMS + 1)
    best = counts.argsort(descending=True, stable=True)[:3].tolist()
    assert found["somebody"] == [str(trained.train.dataset.id2token("item_id", item)) for item in best]
    assert found.cold.tolist() == [False, True]
    assert str(found).splitlines()[1].startswith("somebody (popular): ")


def test_a_user_without_training_rows_gets_what_is_popular_and_new(tmp_path: Path) -> None:
    table = interactions()
    for name, value in (("user_id", "late"), ("item_id", "i0"), ("rating", 3.0), ("timestamp", 99.0)):
        table[name].append(value)
    split = {"split": {"TS": [0.8, 0.1, 0.1]}, "order": "TO", "group_by": "none"}
    run = make(tmp_path, table=table, eval_args=split, cold_users="keep", epochs=1)
    run.fit(saved=False)
    found = run.trainer.recommend("late", k=5)
    assert found.cold.tolist() == [True]
    assert "i0" not in found["late"]


def test_a_list_is_shorter_where_nothing_is_left(trained: Run) -> None:
    found = trained.trainer.recommend("u3", k=ITEMS)
    assert len(found["u3"]) == ITEMS - EACH
    assert found.items[0, -1] == ""


def test_more_items_than_there_are_is_refused(trained: Run) -> None:
    with pytest.raises(ConfigError, match="k=31: recommend at least one item, and at most the 30 there are"):
        trained.trainer.recommend("u3", k=31)


def test_a_model_of_sequences_goes_by_all_that_a_user_did(tmp_path: Path) -> None:
    run = make(tmp_path, "SASRec", MAX_ITEM_LIST_LENGTH=8, epochs=1, **SEQUENTIAL)
    run.fit(saved=False)
    found = run.trainer.recommend(["u3", "somebody"], k=4)
    data, table = run.train.dataset, interactions()
    history = [item for owner, item in zip(table["user_id"], table["item_id"], strict=True) if owner == "u3"][-8:]
    rows = {"item_id_list": torch.tensor([data.token2id("item_id", history).tolist()]), "item_length": [8]}
    run.model.eval()
    with torch.no_grad():
        scores = run.model.full_sort_predict(Interaction(rows)).view(-1)
    best = scores[1:].argsort(descending=True, stable=True)[:4] + 1
    assert found["u3"] == data.id2token("item_id", best).tolist()
    assert found.cold.tolist() == [False, True]


def test_recommending_changes_no_mode_and_no_random_generator(tmp_path: Path) -> None:
    run = make(tmp_path, "MultiVAE", mlp_hidden_size=[8], latent_dimension=4, epochs=1)
    run.fit(saved=False)
    before = torch.get_rng_state()
    first, second = (run.trainer.recommend("u1", k=3)["u1"] for _ in range(2))
    assert first == second
    assert run.model.training
    assert torch.equal(torch.get_rng_state(), before)


def test_before_a_fit_the_data_has_to_be_given(tmp_path: Path) -> None:
    run = make(tmp_path)
    with pytest.raises(ConfigError, match="call fit first, or pass data=train_data"):
        run.trainer.recommend("u1")
    assert len(run.trainer.recommend("u1", k=3, data=run.train)["u1"]) == 3


# Similar items ------------------------------------------------------------------------------------------------


def test_similar_items_are_those_with_the_nearest_vectors(trained: Run) -> None:
    found = trained.trainer.similar_items(["i4"], k=3)
    vectors = torch.nn.functional.normalize(trained.model.item_embedding.weight.detach(), dim=1)
    own = int(trained.train.dataset.token2id("item_id", "i4"))
    cosines = vectors @ vectors[own]
    cosines[[0, own]] = -2
    best = cosines.argsort(descending=True)[:3]
    assert found["i4"] == trained.train.dataset.id2token("item_id", best).tolist()
    assert found.scores[0].tolist() == pytest.approx(cosines[best].tolist(), abs=1e-6)


def test_a_closed_form_model_has_a_similarity_of_its_own(tmp_path: Path) -> None:
    run = make(tmp_path, "EASE")
    run.fit(saved=False)
    own = int(run.train.dataset.token2id("item_id", "i4"))
    weights = run.model.item_similarity[own].clone()
    weights[[0, own]] = -torch.inf
    best = weights.argsort(descending=True, stable=True)[:3]
    assert run.trainer.similar_items("i4", k=3)["i4"] == run.train.dataset.id2token("item_id", best).tolist()


@pytest.mark.parametrize("model", ["EASE", "SLIM", "ItemKNN", "GFCF"])
def test_an_item_is_as_similar_as_its_score_for_somebody_who_has_the_other_alone(tmp_path: Path, model: str) -> None:
    run = make(tmp_path, model, table=with_one_item())
    run.fit(saved=False)
    data = run.train.dataset
    user, own = int(data.token2id("user_id", "alone")), int(data.token2id("item_id", "i4"))
    scores = run.model.full_sort_predict(Interaction({"user_id": torch.tensor([user])})).view(-1)
    similar = run.model.item_similarities(torch.tensor([own, own]))
    torch.testing.assert_close(similar, scores.expand(2, -1))
    others = [item for item in scores.argsort(descending=True, stable=True).tolist() if item not in (0, own)]
    assert run.trainer.similar_items("i4", k=2)["i4"] == data.id2token("item_id", others[:2]).tolist()


def with_one_item() -> Any:
    """Return interactions that are split already; in the part for training somebody has a single item."""
    table = interactions()
    alone = {"user_id": "alone", "item_id": "i4", "rating": 3.0, "timestamp": 0.0}
    parts = [{name: column[first::4] for name, column in table.items()} for first in range(4)]
    train = {name: [*parts[0][name], *parts[1][name], *parts[2][name], alone[name]] for name in table}
    return [train, parts[3], parts[3]]


def test_neighbours_of_users_say_nothing_of_items(tmp_path: Path) -> None:
    run = make(tmp_path, "ItemKNN", knn_method="user")
    run.fit(saved=False)
    with pytest.raises(ConfigError, match="knn_method='user' knows how similar users are; for items, set it to 'item'"):
        run.trainer.similar_items("i4")


@pytest.mark.parametrize("model", ["SimpleX", "DMF"])
def test_the_vectors_of_two_towers_give_the_scores(tmp_path: Path, model: str) -> None:
    sizes = {"user_hidden_size_list": [8], "item_hidden_size_list": [8]} if model == "DMF" else {"embedding_size": 8}
    run = make(tmp_path, model, epochs=1, **sizes)
    run.fit(saved=False)
    run.model.eval()
    recommender = run.trainer.recommender()
    users, items = (
        torch.nn.functional.normalize(vectors, dim=1)
        for vectors in (recommender.user_vectors(), recommender.item_vectors())
    )
    rows = Interaction({"user_id": torch.arange(1, USERS + 1)})
    scores = run.model.full_sort_predict(rows).detach().view(USERS, -1)
    torch.testing.assert_close((users[1:] @ items.T)[:, 1:], scores[:, 1:])


def test_a_graph_is_asked_for_the_vectors_that_it_makes(tmp_path: Path) -> None:
    run = make(tmp_path, "LightGCN", epochs=1)
    run.fit(saved=False)
    with torch.no_grad():
        users, items = run.model.forward()
    recommender = run.trainer.recommender()
    assert torch.equal(recommender.item_vectors(), items)
    assert torch.equal(recommender.user_vectors(), users)


def test_an_unknown_item_is_refused_with_the_nearest(trained: Run) -> None:
    with pytest.raises(DataError, match="the data has no item_id 'x4'"):
        trained.trainer.similar_items("x4")
    with pytest.raises(ConfigError, match="k=40: an item has 29 others; ask for at least one of them"):
        trained.trainer.similar_items("i4", k=40)


class OwnVectors(BPR):
    def item_vectors(self) -> torch.Tensor:
        return torch.eye(self.n_items)


def test_a_model_may_say_what_its_vectors_are(tmp_path: Path) -> None:
    run = make(tmp_path, OwnVectors, embedding_size=8, epochs=1)
    run.fit(saved=False)
    assert torch.equal(run.trainer.recommender().item_vectors(), torch.eye(ITEMS + 1))


# Tables -------------------------------------------------------------------------------------------------------


def read(path: Path, delimiter: str = ",") -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines(), delimiter=delimiter))


def test_the_best_items_of_every_user_are_written_to_a_table(trained: Run, tmp_path: Path) -> None:
    path = trained.trainer.export_recommendations(tmp_path / "top.csv", k=3)
    rows = read(path)
    assert len(rows) == 3 * USERS
    assert [row["item"] for row in rows if row["user_id"] == "u7"] == trained.trainer.recommend("u7", k=3)["u7"]
    assert [row["rank"] for row in rows[:3]] == ["1", "2", "3"]
    table = parquet.read_table(trained.trainer.export_recommendations(tmp_path / "top.parquet", k=3))
    assert table.column("item").to_pylist() == [row["item"] for row in rows]


@pytest.mark.parametrize("of", ["item", "user"])
def test_vectors_are_written_with_their_tokens(trained: Run, tmp_path: Path, of: str) -> None:
    weights = getattr(trained.model, f"{of}_embedding").weight.detach()[1:].numpy()
    table = parquet.read_table(trained.trainer.export_embeddings(tmp_path / "vectors.parquet", of))
    assert np.array_equal(np.array(table.column("embedding").to_pylist(), np.float32), weights)
    assert table.column(f"{of}_id").to_pylist()[0] == f"{of[0]}0" or of == "item"
    arrow = feather.read_table(trained.trainer.export_embeddings(tmp_path / "vectors.arrow", of))
    assert arrow.to_pylist() == table.to_pylist()
    with np.load(trained.trainer.export_embeddings(tmp_path / "vectors.npz", of), allow_pickle=False) as arrays:
        assert np.array_equal(arrays["embeddings"], weights)
        assert arrays["tokens"].tolist() == table.column(f"{of}_id").to_pylist()
    rows = read(trained.trainer.export_embeddings(tmp_path / "vectors.tsv", of), "\t")
    assert float(rows[2]["e1"]) == pytest.approx(float(weights[2, 1]), rel=1e-6)
    assert [row[f"{of}_id"] for row in rows] == table.column(f"{of}_id").to_pylist()


def test_a_format_that_cannot_be_written_is_refused_before_any_work(trained: Run, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"top\.xls: \.xls is no format of a table; use one of"):
        trained.trainer.export_recommendations(tmp_path / "top.xls")
    with pytest.raises(ConfigError, match="of='items': there are vectors of 'item' and of 'user'"):
        trained.trainer.export_embeddings(tmp_path / "vectors.csv", "items")


def test_a_list_that_nobody_asked_for_is_refused(trained: Run) -> None:
    with pytest.raises(DataError, match="there is no list for 'u4'"):
        trained.trainer.recommend("u3")["u4"]


def test_data_without_users_cannot_be_recommended_from(trained: Run, monkeypatch: Any) -> None:
    data = trained.train.dataset.copy(trained.train.dataset.inter_feat)
    data.uid_field = None
    with pytest.raises(ConfigError, match="recommending needs USER_ID_FIELD and ITEM_ID_FIELD"):
        Recommender(trained.model, data, torch.device("cpu"))
