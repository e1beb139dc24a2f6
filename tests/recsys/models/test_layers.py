"""Layers that several models are made of."""

import itertools
import math

import pytest
import torch
from torch import nn

from treadle.errors import ConfigError
from treadle.recsys.models.layers import (
    AttLayer,
    BaseFactorizationMachine,
    BiGNNLayer,
    CNNLayers,
    Dice,
    MLPLayers,
    MultiHeadAttention,
    SequenceAttLayer,
    SparseDropout,
    TransformerEncoder,
    VanillaAttention,
    activation_layer,
)


def test_an_mlp_has_dropout_a_linear_layer_and_an_activation_for_each_pair_of_sizes() -> None:
    kinds = [type(one) for one in MLPLayers([6, 4, 2], dropout=0.1, activation="tanh").mlp_layers]
    assert kinds == [nn.Dropout, nn.Linear, nn.Tanh] * 2
    normalised = MLPLayers([6, 4, 2], bn=True, last_activation=False)
    expected = [nn.Dropout, nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Dropout, nn.Linear, nn.BatchNorm1d]
    assert all(isinstance(one, kind) for one, kind in zip(normalised.mlp_layers, expected, strict=True))
    assert MLPLayers([6, 4], activation="none")(torch.zeros(3, 6)).shape == (3, 4)


def test_an_mlp_can_start_small() -> None:
    torch.manual_seed(0)
    linear = MLPLayers([200, 100], init_method="norm").mlp_layers[1]
    assert isinstance(linear, nn.Linear)
    assert linear.weight.std().item() == pytest.approx(0.01, rel=0.03)
    assert not linear.bias.any()


@pytest.mark.parametrize(
    ("name", "kind"), [("ReLU", nn.ReLU), ("leakyrelu", nn.LeakyReLU), ("swish", nn.SiLU), ("gelu", nn.GELU)]
)
def test_activations_are_found_by_name_in_any_case(name: str, kind: type) -> None:
    assert isinstance(activation_layer(name), kind)


def test_an_activation_that_does_not_exist_is_an_error() -> None:
    assert activation_layer("none") is activation_layer(None) is None
    with pytest.raises(ConfigError, match="there is no activation 'sigmod'; did you mean 'sigmoid'"):
        activation_layer("sigmod")
    with pytest.raises(ConfigError, match="the activation 'dice' needs emb_dim"):
        activation_layer("dice")


def test_dice_is_gated_by_the_standardised_input() -> None:
    dice = Dice(2).train()
    with torch.no_grad():
        dice.alpha.copy_(torch.tensor([0.5, -1.0]))
    given = torch.tensor([[1.0, 4.0], [3.0, 0.0]])
    gate = torch.tensor([[-1.0, 1.0], [1.0, -1.0]]).sigmoid()
    expected = gate * given + (1 - gate) * dice.alpha * given
    torch.testing.assert_close(dice(given), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(dice(given.unsqueeze(0)), expected.unsqueeze(0), rtol=1e-5, atol=1e-5)


def test_a_factorisation_machine_adds_up_the_products_of_all_pairs_of_fields() -> None:
    torch.manual_seed(0)
    fields = torch.randn(3, 5, 4)
    pairs = [fields[:, one] * fields[:, other] for one, other in itertools.combinations(range(5), 2)]
    expected = torch.stack(pairs).sum(dim=0)
    torch.testing.assert_close(BaseFactorizationMachine(reduce_sum=False)(fields), expected)
    torch.testing.assert_close(BaseFactorizationMachine()(fields), expected.sum(dim=1, keepdim=True))


@pytest.mark.parametrize("kind", ["sparse", "callable"])
def test_a_layer_of_ngcf_takes_a_sparse_matrix_or_what_multiplies(kind: str) -> None:
    torch.manual_seed(0)
    layer, matrix, given = BiGNNLayer(3, 2), torch.rand(4, 4), torch.randn(4, 3)
    around = matrix @ given
    expected = layer.linear(around + given) + layer.interactTransform(around * given)
    found = layer(matrix.to_sparse() if kind == "sparse" else lambda values: matrix @ values, None, given)
    torch.testing.assert_close(found, expected)


def test_attention_of_fields_adds_up_to_one() -> None:
    torch.manual_seed(0)
    layer, given = AttLayer(3, 5), torch.randn(2, 4, 3)
    weights = layer(given)
    assert weights.shape == (2, 4)
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(2))
    expected = ((given @ layer.w.weight.T).relu() @ layer.h).softmax(dim=1)
    torch.testing.assert_close(weights, expected)


def test_vanilla_attention_is_a_weighted_mean() -> None:
    torch.manual_seed(0)
    layer, given = VanillaAttention(3, 5), torch.randn(2, 4, 3)
    mean, weights = layer(given)
    torch.testing.assert_close(mean, torch.einsum("rv,rvd->rd", weights, given))
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(2))


def test_dropout_of_a_sparse_matrix_scales_what_is_left() -> None:
    torch.manual_seed(0)
    matrix = torch.ones(40, 40).to_sparse()
    dropped = SparseDropout(0.25).train()(matrix).to_dense()
    values = dropped.unique()
    torch.testing.assert_close(values, torch.tensor([0.0, 1 / 0.75]))
    assert 0.2 < (dropped == 0).float().mean() < 0.3
    assert SparseDropout(0.25).eval()(matrix) is matrix


def test_attention_with_several_heads_is_its_formula() -> None:
    torch.manual_seed(0)
    layer = MultiHeadAttention(2, 6, 0.0, 0.0, 1e-12).eval()
    given, mask = torch.randn(3, 4, 6), torch.zeros(3, 1, 1, 4)
    mask[0, ..., 2:] = -10000.0
    heads = []
    for head in range(2):
        part = slice(3 * head, 3 * head + 3)
        query, key, value = (layer_(given)[..., part] for layer_ in (layer.query, layer.key, layer.value))
        weights = (query @ key.transpose(1, 2) / math.sqrt(3) + mask[:, 0]).softmax(dim=-1)
        heads.append(weights @ value)
    expected = layer.LayerNorm(layer.dense(torch.cat(heads, dim=-1)) + given)
    torch.testing.assert_close(layer(given, mask), expected)


def test_heads_must_divide_the_size() -> None:
    with pytest.raises(ConfigError, match="hidden_size=10 must be a multiple of n_heads=4"):
        MultiHeadAttention(4, 10, 0.0, 0.0, 1e-12)


def test_a_transformer_returns_every_layer_or_the_last() -> None:
    torch.manual_seed(0)
    encoder = TransformerEncoder(n_layers=3, hidden_size=8, inner_size=16).eval()
    given, mask = torch.randn(2, 5, 8), torch.zeros(2, 1, 5, 5)
    states = encoder(given, mask)
    assert len(states) == 3
    (last,) = encoder(given, mask, output_all_encoded_layers=False)
    assert torch.equal(states[-1], last)


@pytest.mark.parametrize("norm_first", [True, False])
def test_a_layer_of_a_transformer_is_that_of_torch(norm_first: bool) -> None:
    torch.manual_seed(0)
    encoder = TransformerEncoder(1, 2, 8, 16, 0.0, 0.0, "relu", 1e-5, norm_first)
    expected = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=norm_first)
    attention, network = encoder.layer[0].multi_head_attention, encoder.layer[0].feed_forward
    parts = (attention.query, attention.key, attention.value)
    given = {
        "self_attn.in_proj_weight": torch.cat([part.weight for part in parts]),
        "self_attn.in_proj_bias": torch.cat([part.bias for part in parts]),
    }
    layers = {"self_attn.out_proj": attention.dense, "linear1": network.dense_1, "linear2": network.dense_2}
    layers |= {"norm1": attention.LayerNorm, "norm2": network.LayerNorm}
    for name, layer in layers.items():
        nn.init.normal_(layer.weight)
        given |= {f"{name}.weight": layer.weight, f"{name}.bias": layer.bias}
    expected.load_state_dict(given)
    values, hidden = torch.randn(3, 5, 8), torch.full((5, 5), float("-inf")).triu(1)
    torch.testing.assert_close(encoder(values, hidden)[-1], expected(values, src_mask=hidden))


@pytest.mark.parametrize("softmax", [True, False])
def test_attention_over_a_sequence_looks_at_its_items_only(softmax: bool) -> None:
    torch.manual_seed(0)
    layer = SequenceAttLayer(None, [12, 5], softmax_stag=softmax, return_seq_weight=True)
    queries, keys, lengths = torch.randn(2, 3), torch.randn(2, 4, 3), torch.tensor([2, 4])
    weights = layer(queries, keys, lengths)
    assert weights.shape == (2, 1, 4)
    assert not weights[0, 0, 2:].any()
    if softmax:
        torch.testing.assert_close(weights.sum(dim=-1), torch.ones(2, 1))
    layer.return_seq_weight = False
    torch.testing.assert_close(layer(queries, keys, lengths), weights @ keys)


def test_convolutions_have_an_activation_each() -> None:
    torch.manual_seed(0)
    layers = CNNLayers([1, 4, 2], [2, 3], [1, 2], activation="tanh", init_method="norm")
    assert layers(torch.zeros(3, 1, 9, 9)).shape == (3, 2, 3, 3)
    assert [type(one) for one in layers.cnn_layers] == [nn.Conv2d, nn.Tanh] * 2
    with pytest.raises(ConfigError, match="3 channels make 2 convolutions, and there are 1 kernels and 2 strides"):
        CNNLayers([1, 4, 2], [2], [1, 2])
