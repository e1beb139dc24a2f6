"""DIN and DIEN: attention to a history, interests that evolve, and what comes with them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.recsys.models.tiny_shop import INTEREST, LENGTH, Built, build, fill
from treadle.errors import ConfigError
from treadle.recsys.data.sequential_dataset import DIENDataset
from treadle.recsys.models.layers.interest import GRU_TYPES, AttentionGRU, InterestEvolvingLayer

WIDTH = 24
"""The embeddings of an item: three fields of length 8."""


def made(folder: Path, name: str, **settings: Any) -> Built:
    built = build(folder, name, **settings)
    fill(built.model)
    built.model.eval()
    return built


def network(layers: Any, vector: Tensor) -> Tensor:
    """Return the output of linear layers with a sigmoid behind each."""
    for layer in layers:
        if isinstance(layer, torch.nn.Linear):
            vector = torch.sigmoid(layer.weight @ vector + layer.bias)
    return vector


def test_an_item_is_all_its_fields(tmp_path: Path) -> None:
    layer = made(tmp_path, "DIN").model.embedding_layer
    table = layer.tables["item"]
    item = 4
    kinds = table.known.kinds[item]
    pairs = table.known.sizes[item]
    pairs = pairs[pairs[:, 1] > 0]
    expected = [
        table.token_embedding_table.embedding.weight[item],
        table.token_seq_embedding_table[0].weight[kinds[kinds > 0]].mean(0),
        (table.float_seq_embedding_table[0].weight[pairs[:, 1].long()] * pairs[:, :1]).mean(0),
    ]
    torch.testing.assert_close(layer.joined("item", torch.tensor([[1, item]]))[0, 1], torch.cat(expected))


def test_din_weighs_each_item_by_how_it_goes_with_the_one_in_question(tmp_path: Path) -> None:
    model = made(tmp_path, "DIN").model
    items = model.embedding_layer.joined("item", torch.tensor([3, 5, 7, 9]))
    target, interest = items[3], torch.zeros(WIDTH)
    for item in items[:3]:
        together = torch.cat([target, item, target - item, target * item])
        hidden = network(model.attention.att_mlp_layers.mlp_layers, together)
        weight = (model.attention.dense.weight @ hidden + model.attention.dense.bias) / WIDTH**0.5
        interest = interest + weight * item
    features = torch.cat([interest, target, interest * target]).unsqueeze(0)
    expected = model.dnn_predict_layers(model.dnn_mlp_layers(features)).view(1)
    history = torch.tensor([[3, 5, 7, *[0] * (LENGTH - 3)]])
    found = model(torch.tensor([1]), history, torch.tensor([3]), torch.tensor([9]))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("kind", GRU_TYPES)
@pytest.mark.parametrize("name", INTEREST)
def test_items_behind_the_end_of_a_history_change_nothing(tmp_path: Path, name: str, kind: str) -> None:
    built = made(tmp_path, name, **({"gru_type": kind} if name == "DIEN" else {}))
    row, filled = built.row(3, 5, 7, target=9), built.row(3, 5, 7, target=9)
    filled["item_id_list"][0, 3:] = 11
    torch.testing.assert_close(built.model.predict(filled), built.model.predict(row))


def test_the_auxiliary_loss_tells_the_next_item_from_another_and_leaves_padding_out(tmp_path: Path) -> None:
    extractor = made(tmp_path, "DIEN").model.interset_extractor
    generator = torch.Generator().manual_seed(2)
    keys, others = (torch.randn(2, 5, WIDTH, generator=generator) for _ in range(2))
    lengths = torch.tensor([4, 2])
    states, loss = extractor(keys, lengths, others)
    linear = [layer for layer in extractor.auxiliary_net.mlp_layers if isinstance(layer, torch.nn.Linear)]
    losses = []
    for row, step in [(0, 0), (0, 1), (0, 2), (1, 0)]:
        for items, chosen in ((keys, 1.0), (others, 0.0)):
            hidden = network(linear[:-1], torch.cat([states[row, step], items[row, step + 1]]))
            logit = (linear[-1].weight @ hidden + linear[-1].bias).squeeze()
            losses.append(functional.binary_cross_entropy(logit.sigmoid(), torch.tensor(chosen)))
    first, second = torch.stack(losses[:6]).mean(), torch.stack(losses[6:]).mean()
    torch.testing.assert_close(loss, (first + second) / 2)


def test_histories_of_one_item_have_no_auxiliary_loss(tmp_path: Path) -> None:
    extractor = made(tmp_path, "DIEN").model.interset_extractor
    keys = torch.randn(2, 5, WIDTH)
    assert extractor(keys, torch.tensor([1, 1]), keys)[1].item() == 0


def test_the_loss_of_dien_is_that_of_the_labels_and_alpha_times_the_auxiliary_one(tmp_path: Path) -> None:
    built = made(tmp_path, "DIEN", alpha=0.25)
    batch = built.batch()
    columns = ("user_id", "item_id_list", "neg_item_id_list", "item_length", "item_id")
    logits, auxiliary = built.model(*(batch[name] for name in columns))
    expected = functional.binary_cross_entropy_with_logits(logits, batch["label"]) + 0.25 * auxiliary
    torch.testing.assert_close(built.model.calculate_loss(batch), expected)
    torch.testing.assert_close(built.model.predict(batch), logits.sigmoid())


def test_augru_moves_its_state_as_far_as_attention_and_gate_let_it() -> None:
    torch.manual_seed(0)
    layer = AttentionGRU(3, 4, gated=True)
    inputs, attention = torch.randn(1, 5, 3), torch.tensor([0.2, 0.5, 0.3, 0.0, 0.0]).view(1, 5, 1)
    state = torch.zeros(4)
    for step in range(3):
        own = (layer.weight_ih @ inputs[0, step] + layer.bias_ih).view(3, 4)
        other = (layer.weight_hh @ state + layer.bias_hh).view(3, 4)
        reset, update = torch.sigmoid(own[0] + other[0]), torch.sigmoid(own[1] + other[1])
        new = torch.tanh(own[2] + reset * other[2])
        moved = attention[0, step] * update
        state = (1 - moved) * state + moved * new
    torch.testing.assert_close(layer(inputs, attention)[0], state)


def test_agru_has_attention_in_the_place_of_its_gate() -> None:
    torch.manual_seed(0)
    layer = AttentionGRU(3, 4, gated=False)
    assert layer.weight_ih.shape == (8, 3)
    inputs = torch.randn(1, 1, 3)
    own = (layer.weight_ih @ inputs[0, 0] + layer.bias_ih).view(2, 4)
    expected = 0.4 * torch.tanh(own[1] + torch.sigmoid(own[0]) * layer.bias_hh[4:])
    torch.testing.assert_close(layer(inputs, torch.tensor([[[0.4]]]))[0], expected)


def test_a_gru_with_full_attention_and_gate_is_torchs() -> None:
    torch.manual_seed(0)
    layer, reference = AttentionGRU(3, 4, gated=True), torch.nn.GRU(3, 4, batch_first=True)
    with torch.no_grad():
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            # Torch's gate says how much of the old state stays, this one how much of the new comes.
            sign = torch.ones(12, *[1] * (getattr(layer, name).dim() - 1))
            sign[4:8] = -1
            getattr(layer, name).copy_(getattr(reference, f"{name}_l0") * sign)
    inputs = torch.randn(2, 6, 3)
    torch.testing.assert_close(layer(inputs, torch.ones(2, 6, 1)), reference(inputs)[0][:, -1])


@pytest.mark.parametrize("kind", GRU_TYPES)
def test_attention_over_interests_adds_up_to_one(kind: str) -> None:
    torch.manual_seed(0)
    layer = InterestEvolvingLayer(None, 3, 3, [12, 8], gru=kind)
    layer.attention_layer.return_seq_weight = True
    weights = layer.attention_layer(torch.randn(2, 3), torch.randn(2, 5, 3), torch.tensor([5, 2]))
    torch.testing.assert_close(weights.sum(2), torch.ones(2, 1))
    assert not weights[1, 0, 2:].any()


def test_dien_reads_its_own_kind_of_data_and_both_are_evaluated_by_labels(tmp_path: Path) -> None:
    built = build(tmp_path, "DIEN")
    assert type(built.train.dataset) is DIENDataset
    assert "neg_item_id_list" in built.batch()
    for name in INTEREST:
        config = build(tmp_path, name).config
        assert (config["metrics"], config["valid_metric"]) == (["AUC", "LogLoss"], "AUC")


def test_a_kind_of_gru_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="gru_type='AUGRUU' does not exist for DIEN; did you mean 'AUGRU'"):
        build(tmp_path, "DIEN", gru_type="AUGRUU")


def test_a_pooling_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pooling_mode='median' must be 'mean', 'sum' or 'max'"):
        build(tmp_path, "DIN", pooling_mode="median")
