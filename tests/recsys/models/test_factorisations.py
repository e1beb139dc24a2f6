"""BPR, NeuMF, DMF and SimpleX against their formulas."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.recsys.models.building import fill, train_steps
from tests.recsys.models.tiny_ratings import all_scores, build, every_pair
from treadle.checkpoint import export_torch, write_file
from treadle.errors import CheckpointError, ConfigError
from treadle.recsys import Interaction


def pairs(**columns: Any) -> Interaction:
    return Interaction({name: torch.tensor(values) for name, values in columns.items()})


def test_bpr_is_the_log_sigmoid_of_the_difference_of_two_products() -> None:
    model = build("BPR", embedding_size=2).model
    with torch.no_grad():
        model.user_embedding.weight[1] = torch.tensor([1.0, 2.0])
        model.item_embedding.weight[1:4] = torch.tensor([[0.5, 0.25], [1.0, -1.0], [0.0, 3.0]])
    # Products 1, -1 and 6: differences 2 and -5.
    loss = model.calculate_loss(pairs(user_id=[1, 1], item_id=[1, 1], neg_item_id=[2, 3]))
    expected = -(torch.tensor(2.0).sigmoid().log() + torch.tensor(-5.0).sigmoid().log()) / 2
    torch.testing.assert_close(loss, expected)
    assert model.predict(pairs(user_id=[1, 1], item_id=[1, 3])).tolist() == [1.0, 6.0]


def neumf_by_hand(model: Any, user: int, item: int) -> Tensor:
    factors = model.user_mf_embedding.weight[user] * model.item_mf_embedding.weight[item]
    hidden = torch.cat([model.user_mlp_embedding.weight[user], model.item_mlp_embedding.weight[item]])
    for layer in model.mlp_layers.mlp_layers:
        if isinstance(layer, torch.nn.Linear):
            hidden = (layer.weight @ hidden + layer.bias).relu()
    parts = [factors] * model.mf_train + [hidden] * model.mlp_train
    return (model.predict_layer.weight[0] @ torch.cat(parts) + model.predict_layer.bias[0]).sigmoid()


@pytest.mark.parametrize("variant", ["NeuMF", "NeuMF without MLP", "NeuMF without GMF"])
def test_neumf_is_a_weighted_product_beside_a_network(variant: str) -> None:
    model = build(variant).model.eval()
    fill(model)
    found = model.predict(pairs(user_id=[3, 5], item_id=[2, 7]))
    torch.testing.assert_close(found, torch.stack([neumf_by_hand(model, 3, 2), neumf_by_hand(model, 5, 7)]))


def test_neumf_is_trained_by_cross_entropy() -> None:
    model = build("NeuMF").model.eval()
    fill(model)
    batch = pairs(user_id=[1, 2], item_id=[3, 4], label=[1.0, 0.0])
    chances = model.predict(batch)
    torch.testing.assert_close(model.calculate_loss(batch), -(chances[0].log() + (1 - chances[1]).log()) / 2)


def test_neumf_scores_users_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    built = build("NeuMF")
    together = all_scores(built)
    monkeypatch.setattr("treadle.recsys.models.general_recommender.neumf.PAIRS", 1)
    torch.testing.assert_close(all_scores(built), together)


@pytest.mark.parametrize("kind", ["treadle", "torch"])
def test_neumf_starts_from_its_parts_at_half_their_weight(tmp_path: Path, kind: str) -> None:
    write = write_file if kind == "treadle" else lambda path, state: export_torch(state, path)
    logits = []
    for variant in ("NeuMF without MLP", "NeuMF without GMF"):
        part = build(variant)
        fill(part.model, seed=len(logits))
        write(tmp_path / variant, {"state_dict": part.model.state_dict()})
        logits.append(all_scores(part)[1:, 1:].logit())
    paths = {"mf_pretrain_path": tmp_path / "NeuMF without MLP", "mlp_pretrain_path": tmp_path / "NeuMF without GMF"}
    whole = build("NeuMF", use_pretrain=True, **{name: str(path) for name, path in paths.items()})
    torch.testing.assert_close(all_scores(whole)[1:, 1:].logit(), sum(logits) / 2, rtol=1e-4, atol=1e-4)


def test_neumf_says_what_is_wrong_with_its_parts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="use_pretrain needs mf_pretrain_path and mlp_pretrain_path"):
        build("NeuMF", use_pretrain=True)
    with pytest.raises(ConfigError, match="mf_train and mlp_train are both False"):
        build("NeuMF", mf_train=False, mlp_train=False)
    path = tmp_path / "weights"
    write_file(path, build("NeuMF without MLP", mf_embedding_size=3).model.state_dict())
    with pytest.raises(CheckpointError, match="the weights of mf_pretrain_path and mlp_pretrain_path do not fit"):
        build("NeuMF", use_pretrain=True, mf_pretrain_path=str(path), mlp_pretrain_path=str(path))
    (tmp_path / "other").write_text("nothing")
    with pytest.raises(CheckpointError):
        build("NeuMF", use_pretrain=True, mf_pretrain_path=str(tmp_path / "other"), mlp_pretrain_path=str(path))


def dmf_by_hand(built: Any, ratings: Tensor) -> tuple[Tensor, Tensor]:
    """Return the vectors of all users and items, by two dense networks."""
    model = built.model
    users, items = ratings @ model.user_linear.weight.double(), ratings.T @ model.item_linear.weight.double()
    for layer in (one for one in model.user_fc_layers.mlp_layers if isinstance(one, torch.nn.Linear)):
        users = (users @ layer.weight.double().T + layer.bias.double()).relu()
    for layer in (one for one in model.item_fc_layers.mlp_layers if isinstance(one, torch.nn.Linear)):
        items = (items @ layer.weight.double().T + layer.bias.double()).relu()
    return users, items


@pytest.mark.parametrize(("variant", "field"), [("DMF", None), ("DMF with ratings", "rating")])
def test_dmf_is_the_cosine_of_two_networks_over_rows_and_columns(variant: str, field: str | None) -> None:
    built = build(variant)
    fill(built.model)
    users, items = dmf_by_hand(built, built.matrix(field))
    expected = functional.normalize(users, dim=1) @ functional.normalize(items, dim=1).T
    torch.testing.assert_close(all_scores(built).double(), expected, rtol=1e-4, atol=1e-5)


def test_dmf_with_an_inner_product_is_its_sigmoid() -> None:
    built = build("DMF with an inner product")
    fill(built.model)
    users, items = dmf_by_hand(built, built.matrix())
    torch.testing.assert_close(all_scores(built).double(), (users @ items.T).sigmoid(), rtol=1e-4, atol=1e-5)


def test_dmf_is_trained_by_the_papers_normalised_cross_entropy() -> None:
    built = build("DMF with ratings")
    fill(built.model)
    assert built.model.max_rating == 5
    batch = pairs(user_id=[1, 2, 3], item_id=[1, 2, 4], label=[1.0, 1.0, 0.0], rating=[5.0, 2.0, 3.0])
    chances = built.model.predict(batch).clamp(1e-6, 1 - 1e-6)
    target = torch.tensor([1.0, 0.4, 0.0])
    expected = functional.binary_cross_entropy(chances, target)
    torch.testing.assert_close(built.model.calculate_loss(batch), expected, rtol=1e-4, atol=1e-5)


def test_dmf_wants_networks_of_the_same_length() -> None:
    with pytest.raises(ConfigError, match=r"user_hidden_size_list=\[8\] and item_hidden_size_list=\[4\] must end"):
        build("DMF", user_hidden_size_list=[8], item_hidden_size_list=[4])


def test_simplex_pulls_positives_to_a_cosine_of_one_and_pushes_negatives_below_the_margin() -> None:
    built = build("SimpleX", margin=0.2, negative_weight=3, gamma=0.25, reg_weight=0.0)
    fill(built.model)
    model = built.model.eval()
    history = built.matrix()[2] > 0
    common = model.item_emb.weight[history].mean(dim=0) @ model.UI_map.weight.T
    user = 0.25 * model.user_emb.weight[2] + 0.75 * common
    cosines = functional.cosine_similarity(user, model.item_emb.weight[[3, 5, 6]], dim=1)
    loss = model.calculate_loss(pairs(user_id=[2], item_id=[3], neg_item_id=[[5, 6]]))
    expected = (1 - cosines[0]) + 3 * (cosines[1:] - 0.2).relu().mean()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(model.predict(pairs(user_id=[2, 2, 2], item_id=[3, 5, 6])), cosines)


@pytest.mark.parametrize("kind", ["user_attention", "self_attention"])
def test_simplex_weighs_the_items_of_a_user_by_attention(kind: str) -> None:
    built = build("SimpleX", aggregator=kind, gamma=0.0)
    fill(built.model)
    model = built.model.eval()
    items = model.item_emb.weight[built.matrix()[2] > 0]
    keys = model.W_k(items)
    scores = keys @ model.user_emb.weight[2] if kind == "user_attention" else model.W_q(keys)[:, 0]
    expected = model.UI_map(scores.softmax(dim=0) @ items)
    torch.testing.assert_close(model.represented(torch.tensor([2]))[0][0], expected)


def test_simplex_reads_no_more_items_than_history_len() -> None:
    assert build("SimpleX", history_len=2).model.known.history.shape[1] == 2
    with pytest.raises(ConfigError, match="aggregator='meen' does not exist for SimpleX; did you mean 'mean'"):
        build("SimpleX", aggregator="meen")


def test_simplex_keeps_padding_at_zero() -> None:
    built = build("SimpleX")
    train_steps(built, 3)
    assert not built.model.item_emb.weight[0].any()
    assert built.model.predict(every_pair(built)).isfinite().all()
