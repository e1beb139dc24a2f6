"""The vectors of users and items that are exported, and by which items are similar: for each kind of model its own."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.recsys.models.building import fill
from tests.recsys.suites.every_model import make, shop
from tests.recsys.trainer.runs import Run
from treadle.errors import ConfigError
from treadle.recsys import Config, Interaction, Recommender, create_dataset, data_preparation, get_model


def ready(folder: Path, model: str, **given: Any) -> tuple[Run, Recommender]:
    """Return a model with weights that differ from each other, and what recommends with it."""
    run = make(folder, model, **given)
    fill(run.model)
    run.model.eval()
    return run, run.trainer.recommender(run.train)


@torch.no_grad()
def scores_of_all(run: Run) -> Tensor:
    """Return the scores of all items for every user but padding."""
    users = torch.arange(1, run.train.dataset.user_num)
    found: Tensor = run.model.full_sort_predict(Interaction({"user_id": users})).view(len(users), -1)
    return found


@pytest.mark.parametrize(
    ("left_out", "parts"),
    [({}, ("mf", "mlp")), ({"mlp_train": False}, ("mf",)), ({"mf_train": False}, ("mlp",))],
    ids=["both", "factors", "network"],
)
def test_neumf_has_the_embeddings_of_the_parts_that_it_trains(
    tmp_path: Path, left_out: dict[str, Any], parts: tuple[str, ...]
) -> None:
    run, found = ready(tmp_path, "NeuMF", **left_out)
    for of, vectors in (("item", found.item_vectors()), ("user", found.user_vectors())):
        tables = [getattr(run.model, f"{of}_{part}_embedding").weight for part in parts]
        assert torch.equal(vectors, torch.cat(tables, dim=1))


@pytest.mark.parametrize("model", ["NGCF", "GCMC"])
def test_what_recommends_looks_at_a_model_in_training_without_its_dropout(tmp_path: Path, model: str) -> None:
    run, found = ready(tmp_path, model)
    vectors, items = found.item_vectors(), found.recommend_all(3).items
    run.model.train()
    before = torch.get_rng_state()
    assert torch.equal(found.item_vectors(), vectors)
    assert (found.recommend_all(3).items == items).all()
    assert (found.similar_items("i1", 3).items == found.similar_items("i1", 3).items).all()
    assert run.model.training
    assert torch.equal(torch.get_rng_state(), before)


def test_the_vectors_of_gcmc_are_what_its_decoder_compares(tmp_path: Path) -> None:
    run, found = ready(tmp_path, "GCMC")
    both = found.user_vectors()[1:], found.item_vectors()
    with torch.no_grad():
        logits = torch.einsum("ui,cij,vj->cuv", both[0], run.model.class_matrices(), both[1])
    torch.testing.assert_close(logits.softmax(dim=0)[1], scores_of_all(run))


@pytest.mark.parametrize("model", ["CDAE", "MultiVAE", "RecVAE"])
def test_the_vectors_of_an_autoencoder_are_its_last_layer_and_what_goes_into_it(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Some users at a time, and fewer in the end.
    monkeypatch.setattr("treadle.recsys.models.abstract_recommender.USERS_AT_ONCE", 5)
    run, found = ready(tmp_path, model)
    last = {"CDAE": "out_layer", "MultiVAE": "decoder", "RecVAE": "decoder"}[model]
    layer = getattr(run.model, last)
    bias = (layer[-1] if model == "MultiVAE" else layer).bias.detach()
    logits = found.user_vectors()[1:] @ found.item_vectors().T + bias
    torch.testing.assert_close(logits.sigmoid() if model == "CDAE" else logits, scores_of_all(run))


@pytest.mark.parametrize("model", ["FM", "WideDeep", "DeepFM", "DCN", "DCNv2"])
def test_a_model_of_fields_has_the_embeddings_of_ids(tmp_path: Path, model: str) -> None:
    run, found = ready(tmp_path, model)
    batch = run.train.batch_at(0, 0)
    with torch.no_grad():
        embedded = run.model.concat_embed_input_fields(batch)
    for field, vectors in (("item_id", found.item_vectors()), ("user_id", found.user_vectors())):
        place = run.model.field_names.index(field)
        assert torch.equal(vectors[batch[field]], embedded[:, place])
        assert len(vectors) == run.train.dataset.num(field)


@pytest.mark.parametrize("model", ["DIN", "DIEN"])
def test_a_model_of_interests_has_the_embeddings_of_all_fields_of_items(tmp_path: Path, model: str) -> None:
    run, found = ready(tmp_path, model, numerical_features=["price"])
    vectors, data = found.item_vectors(), run.train.dataset
    size = run.model.embedding_size
    assert vectors.shape == (data.item_num, 2 * size)
    table = run.model.embedding_layer.tables["item"]
    assert torch.equal(vectors[:, :size], table.field_vectors("item_id").detach())
    assert found.similar_items("i4", k=2)["i4"]


REASONS = {
    "Pop": ": it only counts how often each item is used",
    "EASE": ": it goes by similarities of whole items, which similar_items shows",
    "LR": ": it has a single weight for each user and item",
}


@pytest.mark.parametrize("model", REASONS)
@pytest.mark.parametrize("of", ["item", "user"])
def test_a_model_without_vectors_says_why(tmp_path: Path, model: str, of: str) -> None:
    run = make(tmp_path, model)
    with pytest.raises(ConfigError) as error:
        run.trainer.export_embeddings(tmp_path / "vectors.csv", of, data=run.train)
    assert str(error.value) == f"{model} has no vectors of {of}s{REASONS[model]}"


def test_trees_have_no_vectors(tmp_path: Path) -> None:
    config = Config("XGBoost", "tiny", config_dict={"use_gpu": False})
    train, _, _ = data_preparation(config, create_dataset(config, **shop()))
    found = Recommender(get_model("XGBoost")(config, train.dataset), train.dataset, torch.device("cpu"))
    with pytest.raises(ConfigError, match="XGBoost has no vectors of items: its trees divide rows by their values"):
        found.similar_items("i4", k=2)


def test_a_model_whose_users_are_their_histories_says_what_would_give_them_vectors(tmp_path: Path) -> None:
    run = make(tmp_path, "SASRec")
    with pytest.raises(ConfigError) as error:
        run.trainer.export_embeddings(tmp_path / "vectors.csv", "user", data=run.train)
    assert str(error.value) == (
        "SASRec has no vectors of users; give it a method user_vectors() that returns one for each id"
    )
