"""What holds for every model of users and items."""

import copy
import re
from typing import Any

import pytest
import torch

from tests.guards.no_sync import no_sync
from tests.recsys.models.building import assert_close_in_bf16, assert_one_row_is_enough, train_steps
from tests.recsys.models.tiny_ratings import (
    EVERY,
    FITTED,
    PAIRWISE,
    TRAINED,
    Built,
    all_scores,
    build,
    every_pair,
    fitted,
)
from treadle.recsys import InputType, Interaction, ModelType, get_model, model_names
from treadle.recsys.config.defaults import packaged

every_trained = pytest.mark.parametrize("variant", TRAINED)
every_fitted = pytest.mark.parametrize("variant", FITTED)
every_model = pytest.mark.parametrize("variant", EVERY)
PLAIN = [name for name in TRAINED if TRAINED[name] == (name, {})]


def ready(variant: str, **settings: Any) -> Built:
    return fitted(variant, **settings) if variant in FITTED else build(variant, **settings)


@every_trained
def test_the_loss_falls_in_thirty_steps(variant: str) -> None:
    losses = train_steps(build(variant), 30, rate=0.05)
    assert losses[-1] < 0.95 * losses[0]


@every_trained
def test_gradients_reach_every_parameter_that_learns(variant: str) -> None:
    built = build(variant)
    built.model.train()
    built.model.calculate_loss(built.batch()).backward()
    learns = {name: one for name, one in built.model.named_parameters() if one.requires_grad}
    assert learns
    assert [name for name, one in learns.items() if one.grad is None or not one.grad.any()] == []


def test_only_parts_that_nothing_uses_or_trains_are_frozen() -> None:
    frozen = {
        variant: {name.split(".")[0] for name, one in build(variant).model.named_parameters() if not one.requires_grad}
        for variant in TRAINED
    }
    assert {variant: names for variant, names in frozen.items() if names} == {
        "NeuMF without MLP": {"user_mlp_embedding", "item_mlp_embedding", "mlp_layers"},
        "NeuMF without GMF": {"user_mf_embedding", "item_mf_embedding"},
        "RecVAE": {"prior"},
        "RecVAE without gamma": {"prior"},
    }


@every_model
def test_predict_agrees_with_full_sort_predict(variant: str) -> None:
    built = ready(variant)
    if variant in TRAINED:
        train_steps(built, 3)
    built.model.eval()
    pairs = every_pair(built)
    users = torch.arange(1, built.model.n_users)
    with torch.no_grad():
        single = built.model.predict(pairs)
        together = built.model.full_sort_predict(Interaction({"user_id": users}))
    assert single.shape == (len(pairs),)
    assert together.shape == (len(users) * built.model.n_items,)
    torch.testing.assert_close(single.view(len(users), -1), together.view(len(users), -1)[:, 1:])


@every_trained
def test_the_same_seed_gives_the_same_training(variant: str) -> None:
    first = train_steps(build(variant), 3)
    torch.manual_seed(8)
    assert train_steps(build(variant), 3) == first


@every_trained
def test_loss_and_gradients_are_finite_and_close_in_bf16(variant: str) -> None:
    assert_close_in_bf16(build(variant))


@every_trained
def test_scores_are_finite_in_bf16(variant: str) -> None:
    built = build(variant)
    with torch.autocast("cpu", torch.bfloat16):
        assert all_scores(built).isfinite().all()


@every_trained
def test_a_loss_never_reads_the_device(variant: str) -> None:
    built = build(variant)
    built.model.train()
    batch = built.batch()
    with no_sync():
        built.model.calculate_loss(batch).backward()


@pytest.mark.parametrize("variant", TRAINED)
def test_a_prediction_never_reads_the_device(variant: str) -> None:
    built = build(variant)
    built.model.eval()
    with torch.no_grad(), no_sync():
        built.model.full_sort_predict(Interaction({"user_id": torch.tensor([3, 1])}))
        built.model.predict(Interaction({"user_id": torch.tensor([3, 3]), "item_id": torch.tensor([1, 2])}))


@every_model
def test_a_state_dict_brings_every_prediction_back(variant: str) -> None:
    built, other = ready(variant), build(variant)
    if variant in TRAINED:
        train_steps(built, 2)
        train_steps(other, 1)
    other.model.load_state_dict({name: value.clone() for name, value in built.model.state_dict().items()})
    assert torch.equal(all_scores(built), all_scores(other))


@every_trained
def test_training_goes_on_from_a_state_dict_as_if_it_had_not_stopped(variant: str) -> None:
    straight, resumed = build(variant), build(variant)
    straight.model.start_epoch(1)
    straight.model.train()
    straight.model.calculate_loss(straight.batch())
    resumed.model.load_state_dict(copy.deepcopy(straight.model.state_dict()))
    resumed.model.start_epoch(1)
    resumed.model.train()
    losses = []
    for built in (straight, resumed):
        torch.manual_seed(5)
        losses.append(built.model.calculate_loss(built.train.batch_at(1, 0)).item())
    assert losses[0] == losses[1]


@every_trained
def test_a_batch_of_one_row_can_be_trained_on(variant: str) -> None:
    assert_one_row_is_enough(build(variant))


@every_trained
def test_double_precision_is_kept(variant: str) -> None:
    built = build(variant)
    built.model.double()
    assert built.model.calculate_loss(built.batch()).dtype == torch.float64
    assert all_scores(built).dtype == torch.float64


@pytest.mark.parametrize("variant", PAIRWISE)
def test_several_negatives_weigh_as_the_mean_of_their_pairs(variant: str) -> None:
    sampled = {"distribution": "uniform", "sample_num": 3}
    built = build(variant, train_neg_sample_args=sampled, reg_weight=0.0)
    built.model.eval()  # without dropout
    batch = built.batch()
    assert batch["neg_item_id"].shape == (len(batch), 3)
    single = []
    for place in range(3):
        one = Interaction(batch)
        one["neg_item_id"] = batch["neg_item_id"][:, place]
        single.append(built.model.calculate_loss(one))
    torch.testing.assert_close(built.model.calculate_loss(batch), torch.stack(single).mean())


@pytest.mark.parametrize("variant", [*PLAIN, *FITTED])
def test_every_packaged_setting_of_a_model_is_read(variant: str) -> None:
    settings = set(packaged(f"model/{variant}") or {})
    # Those of a trainer, and one that RecBole has and nothing needs.
    elsewhere = {"n_enc_epochs", "n_dec_epochs", "sparse_feature", "mf_pretrain_path", "mlp_pretrain_path"}
    elsewhere |= {"learning_rate"}
    assert settings or variant == "Pop"
    config = build(variant).config
    assert settings - elsewhere <= config._read


@pytest.mark.parametrize("variant", [*PLAIN, *FITTED])
def test_a_model_is_known_by_its_name_and_says_what_it_takes(variant: str) -> None:
    model = get_model(variant)
    assert model.__name__ == variant
    assert variant in model_names()
    assert model.type is (ModelType.TRADITIONAL if variant in FITTED else ModelType.GENERAL)
    assert isinstance(model.input_type, InputType)
    assert re.search(r"\",\s+20[012]\d", str(model.__doc__)), "the paper is cited, with its year"


def test_recboles_name_of_slim_is_known() -> None:
    assert get_model("SLIMElastic") is get_model("SLIM")


@every_model
def test_a_user_without_history_and_an_item_without_users_have_scores(variant: str) -> None:
    # The validation part has the last item of each user; for a user with one item nothing is left to train on.
    table = {"user_id": ["a", "a", "a", "b", "b", "c"], "item_id": ["x", "y", "z", "x", "y", "w"]}
    table |= {"rating": [1, 2, 3, 4, 5, 5], "timestamp": [1, 2, 3, 1, 2, 1]}
    given = {"cold_users": "keep", "eval_args": {"split": {"RS": [0.5, 0.5, 0]}, "order": "TO", "group_by": "none"}}
    built = ready(variant, table=table, **given, **({"rank": 2} if variant == "GFCF" else {}))
    if variant in TRAINED:
        loss = built.model.calculate_loss(built.batch())
        loss.backward()
        assert loss.isfinite()
    assert all_scores(built)[1:, 1:].isfinite().all()


@every_fitted
def test_a_fitted_model_has_nothing_to_train(variant: str) -> None:
    built = fitted(variant)
    assert list(built.model.parameters()) == []
    assert built.model.calculate_loss(built.batch()).item() == 0


@every_fitted
def test_a_model_that_is_not_fitted_says_so(variant: str) -> None:
    with pytest.raises(ValueError, match=rf"{variant} is not fitted: call fit\(dataset\), or load a checkpoint"):
        all_scores(build(variant))


@every_fitted
def test_fitting_twice_is_the_same_to_the_bit(variant: str) -> None:
    first, second = fitted(variant), fitted(variant)
    assert torch.equal(all_scores(first), all_scores(second))


@pytest.mark.parametrize("variant", ["LightGCN", "NGCF", "GCMC", "SpectralCF", "SGL", "DMF"])
def test_an_evaluation_propagates_once_and_again_after_each_change(variant: str) -> None:
    built = build(variant)
    count = counted(built.model)
    all_scores(built)
    once = count[0]
    built.model.eval()
    with torch.no_grad():
        built.model.predict(every_pair(built))
        assert once
        assert count[0] == 2 * once  # `eval` forgets
        built.model.predict(every_pair(built))
        assert count[0] == 2 * once
        next(built.model.parameters()).mul_(1.1)
        built.model.predict(every_pair(built))
    assert count[0] == 3 * once


def counted(model: Any) -> list[int]:
    """Return a list whose number grows with each product with the graph."""
    from treadle.recsys.models.graph import Graph

    count = [0]

    class Counting(Graph):
        def forward(self, *arguments: Any, **named: Any) -> Any:
            count[0] += 1
            return super().forward(*arguments, **named)

        def mean_of_powers(self, *arguments: Any, **named: Any) -> Any:
            count[0] += 1
            return super().mean_of_powers(*arguments, **named)

    model.graph.__class__ = Counting
    return count
