"""Models of clicks: their formulas by hand, over fields of all types."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.recsys.models.building import train_steps
from tests.recsys.models.tiny_shop import CONTEXT, Built, build, fill
from treadle.errors import ConfigError


def made(folder: Path, name: str, **settings: Any) -> Built:
    built = build(folder, name, **settings)
    fill(built.model)
    built.model.eval()
    return built


def embedded(built: Built, row: int) -> dict[str, Tensor]:
    """Return the embedding of each field of a row, from the tables themselves."""
    model, batch = built.model, built.batch()
    found, start = {}, 0
    for name, size in zip(model.token_field_names, model.token_field_dims, strict=True):
        found[name] = model.token_embedding_table.embedding.weight[start + batch[name][row]]
        start += size
    kinds = batch["kinds"][row]
    found["kinds"] = model.token_seq_embedding_table[0].weight[kinds[kinds > 0]].mean(0)
    start = 0
    for name, size in zip(model.float_field_names, model.float_field_dims, strict=True):
        value, bucket = batch[name][row]
        found[name] = value * model.float_embedding_table.embedding.weight[start + int(bucket)]
        start += size
    pairs = batch["sizes"][row]
    pairs = pairs[pairs[:, 1] > 0]
    found["sizes"] = (model.float_seq_embedding_table[0].weight[pairs[:, 1].long()] * pairs[:, :1]).mean(0)
    return found


def test_fields_of_all_four_types_are_embedded(tmp_path: Path) -> None:
    built = made(tmp_path, "FM")
    model = built.model
    assert model.token_field_names == ["user_id", "item_id", "age"]
    assert model.token_seq_field_names == ["kinds"]
    assert sorted(model.float_field_names) == ["height", "price"]
    assert model.float_seq_field_names == ["sizes"]
    every = model.concat_embed_input_fields(built.batch())
    expected = embedded(built, 5)
    assert every.shape == (len(built.batch()), 7, 8)
    for place, name in enumerate([*model.token_field_names, "kinds", *model.float_field_names, "sizes"]):
        torch.testing.assert_close(every[5, place], expected[name])


def test_lr_adds_up_a_weight_for_each_value_and_every_token_of_a_sequence(tmp_path: Path) -> None:
    built = made(tmp_path, "LR", numerical_features=[], normalize_field=None)
    batch, linear = built.batch(), built.model.first_order_linear
    for row in range(4):
        logit, start = linear.bias[0], 0
        for name, size in zip(linear.token_field_names, linear.token_field_dims, strict=True):
            logit = logit + linear.token_embedding_table.embedding.weight[start + batch[name][row], 0]
            start += size
        kinds = batch["kinds"][row]
        logit = logit + linear.token_seq_embedding_table[0].weight[kinds[kinds > 0], 0].sum()
        torch.testing.assert_close(built.model(batch)[row], logit)


def test_fm_adds_the_inner_products_of_all_pairs_of_fields(tmp_path: Path) -> None:
    built = made(tmp_path, "FM")
    batch = built.batch()
    linear = built.model.first_order_linear(batch).squeeze(1)
    for row in range(4):
        vectors = list(embedded(built, row).values())
        pairs = [vectors[i] @ vectors[j] for i in range(7) for j in range(i)]
        assert len(pairs) == 21
        torch.testing.assert_close(built.model(batch)[row], linear[row] + torch.stack(pairs).sum())


def test_deepfm_is_fm_and_a_network_over_the_same_embeddings(tmp_path: Path) -> None:
    built = made(tmp_path, "DeepFM")
    model, batch = built.model, built.batch()
    every = model.concat_embed_input_fields(batch)
    hidden = every.flatten(1)
    for layer in model.mlp_layers.mlp_layers:
        if isinstance(layer, torch.nn.Linear):
            hidden = (hidden @ layer.weight.T + layer.bias).relu()
    deep = (hidden @ model.deep_predict_layer.weight.T + model.deep_predict_layer.bias).squeeze(1)
    pairs = 0.5 * (every.sum(1) ** 2 - (every**2).sum(1)).sum(1)
    torch.testing.assert_close(model(batch), model.first_order_linear(batch).squeeze(1) + pairs + deep)


def test_widedeep_adds_the_wide_and_the_deep_part(tmp_path: Path) -> None:
    built = made(tmp_path, "WideDeep")
    model, batch = built.model, built.batch()
    deep = model.deep_predict_layer(model.mlp_layers(model.concat_embed_input_fields(batch).flatten(1)))
    torch.testing.assert_close(model(batch), (model.first_order_linear(batch) + deep).squeeze(1))


def test_dcn_crosses_features_with_themselves(tmp_path: Path) -> None:
    model = made(tmp_path, "DCN", cross_layer_num=2).model
    features = torch.randn(3, 56, generator=torch.Generator().manual_seed(3))
    found = model.cross_network(features)
    for row, start in enumerate(features):
        crossed = start
        for weight, bias in zip(model.cross_layer_w, model.cross_layer_b, strict=True):
            crossed = torch.outer(start, crossed) @ weight + bias + crossed
        torch.testing.assert_close(found[row], crossed)


def test_dcnv2_crosses_features_by_matrices(tmp_path: Path) -> None:
    model = made(tmp_path, "DCNv2", cross_layer_num=2).model
    features = torch.randn(3, 56, generator=torch.Generator().manual_seed(3)) * 0.1
    found = model.cross_network(features)
    for row, start in enumerate(features):
        crossed = start
        for weight, bias in zip(model.cross_layer_w, model.bias, strict=True):
            crossed = start * (weight @ crossed + bias.squeeze(1)) + crossed
        torch.testing.assert_close(found[row], crossed)


def test_dcnv2_mixes_experts_of_low_rank(tmp_path: Path) -> None:
    model = made(tmp_path, "DCNv2", cross_layer_num=2, mixed=True, expert_num=3, low_rank=4).model
    features = torch.randn(3, 56, generator=torch.Generator().manual_seed(3)) * 0.1
    found = model.cross_network_mix(features)
    for row, start in enumerate(features):
        crossed = start
        for layer in range(2):
            gates = torch.cat([gate(crossed) for gate in model.gating]).softmax(0)
            total = crossed
            for expert in range(3):
                up, core, down = (
                    part[layer][expert] for part in (model.cross_layer_u, model.cross_layer_c, model.cross_layer_v)
                )
                lifted = up @ torch.tanh(core @ torch.tanh(down.T @ crossed)) + model.bias[layer].squeeze(1)
                total = total + gates[expert] * start * lifted
            crossed = total
        torch.testing.assert_close(found[row], crossed)


@pytest.mark.parametrize("structure", ["stacked", "parallel"])
def test_the_network_of_dcnv2_stands_behind_or_beside_the_layers_that_cross(tmp_path: Path, structure: str) -> None:
    built = made(tmp_path, "DCNv2", structure=structure)
    model, batch = built.model, built.batch()
    features = model.concat_embed_input_fields(batch).flatten(1)
    crossed = model.cross_network(features)
    both = torch.cat([crossed, model.mlp_layers(features)], 1)
    output = model.mlp_layers(crossed) if structure == "stacked" else both
    torch.testing.assert_close(model(batch), model.predict_layer(output).squeeze(1))


@pytest.mark.parametrize("name", CONTEXT)
def test_the_loss_is_the_cross_entropy_of_the_labels_and_the_penalty(tmp_path: Path, name: str) -> None:
    built = made(tmp_path, name)
    model, batch = built.model, built.batch()
    expected = functional.binary_cross_entropy_with_logits(model(batch), batch["label"])
    if name in ("DCN", "DCNv2"):
        expected = expected + 2 * sum(one.norm() for one in model.cross_layer_w)
    torch.testing.assert_close(model.calculate_loss(batch), expected)
    torch.testing.assert_close(model.predict(batch), model(batch).sigmoid())


@pytest.mark.parametrize("name", CONTEXT)
def test_a_time_of_64_bit_is_a_number_like_any_other(tmp_path: Path, name: str) -> None:
    built = build(tmp_path, name, numerical_features=["timestamp", "height"], normalize_field=["timestamp", "height"])
    batch = built.batch()
    assert batch["timestamp"].dtype == torch.float64
    loss = built.model.calculate_loss(batch)
    assert loss.dtype == torch.float32
    loss.backward()


def test_buckets_of_numbers_are_embedded(tmp_path: Path) -> None:
    settings = {"numerical_features": ["price"], "normalize_field": None}
    built = build(tmp_path, "FM", discretization={"price": {"method": "ED", "bucket": 4}}, **settings)
    assert built.model.float_field_dims == [5]
    batch = built.batch()
    assert (batch["price"][:, 0] == 1).all()
    assert train_steps(built, 20)[-1] < 0.65


def test_a_structure_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="structure='stack' does not exist for DCNv2; did you mean 'stacked'"):
        build(tmp_path, "DCNv2", structure="stack")
