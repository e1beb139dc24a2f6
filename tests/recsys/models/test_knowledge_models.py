"""What holds for every model with a knowledge graph."""

import copy
import re

import pytest
import torch

from tests.guards.no_sync import no_sync
from tests.recsys.models.building import assert_close_in_bf16, train_steps
from tests.recsys.models.tiny_graph import PLAIN, TRAINED, Built, build
from tests.recsys.models.tiny_ratings import all_scores, every_pair
from treadle.recsys import InputType, Interaction, KGDataLoaderState, ModelType, Recommender, get_model, model_names
from treadle.recsys.config.defaults import packaged
from treadle.recsys.models.item_scores import ModelScores

every = pytest.mark.parametrize("variant", TRAINED)
plain = pytest.mark.parametrize("variant", PLAIN)
WITHOUT_PENALTY = {"CKE": {"reg_weights": [0.0, 0.0]}, "KGAT": {"reg_weight": 0.0}, "KGIN": {"reg_weight": 0.0}}
"""Settings without penalties on embeddings, which are not a mean over pairs."""


def scores(built: Built) -> torch.Tensor:
    """Return the score of every pair."""
    built.model.eval()
    with torch.no_grad():
        found: torch.Tensor = built.model.predict(every_pair(built))
    return found


@every
def test_the_loss_falls_in_thirty_steps(variant: str) -> None:
    losses = train_steps(build(variant), 30, rate=0.05)
    # Some losses begin near 0, or below it.
    assert losses[-1] < losses[0] - 0.05


@every
def test_gradients_reach_every_parameter(variant: str) -> None:
    built = build(variant)
    built.model.train()
    built.loss(built.batch()).backward()
    assert [name for name, one in built.model.named_parameters() if one.grad is None or not one.grad.any()] == []


@every
def test_predict_agrees_with_the_scores_of_all_items(variant: str) -> None:
    built = build(variant)
    train_steps(built, 3)
    single = scores(built)
    users = torch.arange(1, built.model.n_users)
    ranked = ModelScores(built.model, built.train.dataset, torch.device("cpu"))
    with torch.no_grad():
        together = ranked.all_items(Interaction({"user_id": users}))
    assert together.shape == (len(users), built.model.n_items)
    torch.testing.assert_close(single.view(len(users), -1), together[:, 1:])


@every
def test_the_same_seed_gives_the_same_training(variant: str) -> None:
    first = train_steps(build(variant), 3)
    torch.manual_seed(8)
    assert train_steps(build(variant), 3) == first


@every
def test_loss_and_gradients_are_finite_and_close_in_bf16(variant: str) -> None:
    assert_close_in_bf16(build(variant), apart=0.02)


@every
def test_scores_are_finite_in_bf16(variant: str) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert scores(build(variant)).isfinite().all()


@every
def test_neither_loss_nor_prediction_reads_the_device(variant: str) -> None:
    built = build(variant)
    built.model.train()
    batch = built.batch()
    with no_sync():
        built.loss(batch).backward()
    built.model.eval()
    with torch.no_grad(), no_sync():
        built.model.predict(Interaction({"user_id": torch.tensor([3, 3]), "item_id": torch.tensor([1, 2])}))


@every
def test_a_state_dict_brings_every_prediction_back(variant: str) -> None:
    built, other = build(variant), build(variant)
    train_steps(built, 2)
    if hasattr(built.model, "update_attentive_A"):
        built.model.update_attentive_A()
    other.model.load_state_dict(copy.deepcopy(built.model.state_dict()))
    assert torch.equal(scores(built), scores(other))


@every
def test_a_batch_of_one_row_can_be_trained_on(variant: str) -> None:
    built = build(variant)
    built.model.train()
    loss = built.loss(built.batch()[:1])
    loss.backward()
    assert loss.isfinite()


@every
def test_double_precision_is_kept(variant: str) -> None:
    built = build(variant)
    built.model.double()
    assert built.loss(built.batch()).dtype == torch.float64
    assert scores(built).dtype == torch.float64


@plain
def test_every_packaged_setting_of_a_model_is_read(variant: str) -> None:
    of_trainers = {"train_rec_step", "train_kg_step", "kge_interval", "kge_learning_rate"}
    assert set(packaged(f"model/{variant}") or {}) - of_trainers <= build(variant).config._read


@plain
def test_a_model_is_known_by_its_name_and_says_what_it_takes(variant: str) -> None:
    model = get_model(variant)
    assert model.__name__ == variant
    assert variant in model_names()
    assert model.type is ModelType.KNOWLEDGE
    assert isinstance(model.input_type, InputType)
    assert isinstance(model.batch_state, KGDataLoaderState)
    assert re.search(r"\",\s+20[012]\d", str(model.__doc__)), "the paper is cited, with its year"


@pytest.mark.parametrize("variant", ["CKE", "CFKG", "CFKG by distances", "KGAT", "KGIN", "KTUP with mixed preferences"])
def test_several_negatives_weigh_as_the_mean_of_their_pairs(variant: str) -> None:
    sampled = {"distribution": "uniform", "sample_num": 3}
    built = build(variant, train_neg_sample_args=sampled, **WITHOUT_PENALTY.get(variant, {}))
    built.model.eval()
    batch = built.batch()
    single = []
    for place in range(3):
        one = Interaction(batch)
        one["neg_item_id"] = batch["neg_item_id"][:, place]
        single.append(_first(built.model.calculate_loss(one)))
    torch.testing.assert_close(_first(built.model.calculate_loss(batch)), torch.stack(single).mean())


def _first(losses: torch.Tensor | tuple[torch.Tensor, ...]) -> torch.Tensor:
    return losses[0] if isinstance(losses, tuple) else losses


@plain
def test_items_have_vectors_to_compare_and_export(variant: str) -> None:
    built = build(variant)
    recommender = Recommender(built.model, built.train.dataset, torch.device("cpu"))
    assert len(recommender.item_vectors()) == built.model.n_items
    assert len(recommender.similar_items("i3", k=2)["i3"]) == 2


@pytest.mark.parametrize("variant", ["CKE", "KGAT", "KGIN", "MKR"])
def test_products_of_vectors_are_what_items_are_ranked_by(variant: str) -> None:
    built = build(variant)
    built.model.eval()
    recommender = Recommender(built.model, built.train.dataset, torch.device("cpu"))
    products = recommender.user_vectors() @ recommender.item_vectors().T
    ranked = all_scores(built)
    torch.testing.assert_close(ranked, products.sigmoid() if variant == "MKR" else products)


@pytest.mark.parametrize("variant", ["KGAT", "KGIN", "MKR", "CKE"])
def test_all_scores_are_of_all_items(variant: str) -> None:
    built = build(variant)
    assert all_scores(built).shape == (built.model.n_users, built.model.n_items)
