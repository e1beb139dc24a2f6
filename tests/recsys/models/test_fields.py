"""Embeddings of the fields of a row."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.recsys.models.tiny_shop import write_shop
from treadle.errors import ConfigError
from treadle.recsys import Config, Interaction, create_dataset
from treadle.recsys.models import ContextRecommender
from treadle.recsys.models.layers import ContextSeqEmbLayer, FeatureSeqEmbLayer, FLEmbedding, FMEmbedding
from treadle.recsys.models.layers.fields import pooled


class Fields(ContextRecommender):
    """A model that has embeddings and nothing else."""


@pytest.fixture
def made(tmp_path: Path) -> Any:
    def build(**settings: Any) -> Any:
        write_shop(tmp_path / "shop")
        given = {"numerical_features": ["height", "price", "sizes"], "embedding_size": 3, **settings}
        config = Config(Fields, "shop", config_dict={"data_path": str(tmp_path), "load_col": None, **given})
        dataset = create_dataset(config)
        torch.manual_seed(0)
        return Fields(config, dataset), dataset

    return build


def test_tokens_of_several_fields_are_in_one_table() -> None:
    table = FMEmbedding([3, 5], [0, 3], 2)
    ids = torch.tensor([[2, 0], [1, 4]])
    assert torch.equal(table(ids), table.embedding.weight[torch.tensor([[2, 3], [1, 7]])])
    assert list(table.state_dict()) == ["embedding.weight"]


def test_a_number_scales_the_embedding_of_its_bucket() -> None:
    table = FLEmbedding([2, 4], [0, 2], 2)
    pairs = torch.tensor([[[0.5, 1.0], [1.0, 3.0]]])
    expected = torch.stack([0.5 * table.embedding.weight[1], table.embedding.weight[5]])
    assert torch.equal(table(pairs)[0], expected)


@pytest.mark.parametrize(("mode", "expected"), [("mean", [2.0, 0.0]), ("sum", [4.0, 0.0]), ("max", [3.0, 0.0])])
def test_sequences_are_pooled_over_what_is_in_them(mode: str, expected: list[float]) -> None:
    embedded = torch.tensor([[[1.0], [3.0], [9.0]], [[5.0], [5.0], [5.0]]])
    inside = torch.tensor([[True, True, False], [False, False, False]])
    assert pooled(embedded, inside, mode).flatten().tolist() == expected


def test_a_mode_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(ConfigError, match="sequences are pooled by 'mean', 'sum' or 'max', not by 'median'"):
        pooled(torch.zeros(1, 1, 1), torch.ones(1, 1, dtype=torch.bool), "median")


def test_fields_of_all_four_types_are_embedded(made: Any) -> None:
    model, dataset = made()
    assert model.token_field_names == ["user_id", "item_id", "age"]
    assert set(model.float_field_names) == {"height", "price"}
    assert (model.token_seq_field_names, model.float_seq_field_names) == (["kinds"], ["sizes"])
    assert model.num_feature_field == 7
    rows = dataset[torch.arange(5)]
    sparse, dense = model.embed_input_fields(rows)
    assert (sparse.shape, dense.shape) == ((5, 4, 3), (5, 3, 3))
    assert torch.equal(model.concat_embed_input_fields(rows), torch.cat([sparse, dense], dim=1))


def test_each_field_has_its_own_embedding(made: Any) -> None:
    model, dataset = made()
    rows = dataset[torch.arange(5)]
    sparse, dense = model.embed_input_fields(rows)
    users = dataset.num("user_id")
    table = model.token_embedding_table.embedding.weight
    assert torch.equal(sparse[:, 0], table[rows["user_id"]])
    assert torch.equal(sparse[:, 1], table[users + rows["item_id"]])
    kinds = rows["kinds"]
    expected = torch.stack([model.token_seq_embedding_table[0].weight[row[row != 0]].mean(dim=0) for row in kinds])
    torch.testing.assert_close(sparse[:, 3], expected)
    numbers = model.float_embedding_table.embedding.weight
    place = model.float_field_names.index("price")
    torch.testing.assert_close(dense[:, place], rows["price"][:, :1] * numbers[2 * place + 1])


def test_the_linear_part_adds_up_weights_and_a_bias(made: Any) -> None:
    model, dataset = made()
    rows = dataset[torch.arange(5)]
    linear = model.first_order_linear
    with torch.no_grad():
        linear.bias.fill_(2.5)
    expected = linear.concat_embed_input_fields(rows).sum(dim=1) + 2.5
    assert torch.equal(linear(rows), expected)
    assert linear(rows).shape == (5, 1)


def test_numbers_that_are_not_named_are_left_out(made: Any) -> None:
    model, _ = made(numerical_features=[])
    assert model.field_names == ["user_id", "item_id", "age", "kinds"]


def test_two_towers_embed_users_and_items_apart(made: Any) -> None:
    model, dataset = made(double_tower=True)
    rows = dataset[torch.arange(5)]
    sparse, dense = model.embed_input_fields(rows)
    user_tokens, user_numbers, item_tokens, item_numbers = model.double_tower_embed_input_fields(rows)
    assert torch.equal(user_tokens, sparse[:, [0, 1]])  # user_id, age
    assert torch.equal(item_tokens, sparse[:, [2, 3]])  # item_id, kinds
    assert torch.equal(user_numbers, dense[:, :1])
    assert torch.equal(item_numbers, dense[:, 1:])
    assert [getattr(model, f"user_{kind}_field_num") for kind in ("token", "token_seq", "float")] == [2, 0, 1]
    assert [getattr(model, f"item_{kind}_field_num") for kind in ("token", "token_seq", "float")] == [1, 1, 1]
    single, _ = made()
    with pytest.raises(ConfigError, match="double_tower must be True"):
        single.double_tower_embed_input_fields(rows)


def test_data_without_a_field_to_embed_is_an_error(made: Any) -> None:
    model, dataset = made()
    with pytest.raises(ConfigError, match="Fields has no field to embed: the data has"):
        model.build_field_embeddings(dataset.config, dataset, 3, [])


def embedded(layer: Any, *ids: Tensor | None) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    found: tuple[dict[str, Tensor], dict[str, Tensor]] = layer(*ids)
    return found


def test_features_of_users_and_of_the_items_of_a_sequence_are_found_by_their_ids(made: Any) -> None:
    _, dataset = made()
    layer = ContextSeqEmbLayer(dataset, 3, "mean", None)
    items = torch.tensor([[1, 2, 0], [3, 0, 0]])
    sparse, dense = embedded(layer, torch.tensor([1, 2]), items)
    assert (sparse["user"].shape, dense["user"].shape) == ((2, 2, 3), (2, 1, 3))
    assert (sparse["item"].shape, dense["item"].shape) == ((2, 3, 2, 3), (2, 3, 1, 3))
    assert (layer.num_fields("user"), layer.num_fields("item"), layer.types) == (3, 3, ["user", "item"])
    assert layer.token_field_names == {"user": ["user_id", "age"], "item": ["item_id"]}
    alone, _ = embedded(layer, None, items[:, 0])
    assert torch.equal(alone["item"], sparse["item"][:, 0])


def test_chosen_features_of_items_are_embedded(made: Any) -> None:
    _, dataset = made()
    layer = FeatureSeqEmbLayer(dataset, 3, ["kinds"], "max", None)
    sparse, dense = embedded(layer, None, torch.tensor([[1, 2]]))
    assert sparse["item"].shape == (1, 2, 1, 3)
    assert dense["item"] is None
    with pytest.raises(ConfigError, match="selected_features names 'kind', which is no feature of items; did you mean"):
        FeatureSeqEmbLayer(dataset, 3, ["kind"])
    with pytest.raises(ConfigError, match="pooling_mode='median' must be 'mean', 'sum' or 'max'"):
        ContextSeqEmbLayer(dataset, 3, "median")


def test_rows_without_a_needed_field_name_it(made: Any) -> None:
    model, _ = made()
    with pytest.raises(KeyError, match="there is no column 'item_id'"):
        model.embed_input_fields(Interaction({"user_id": torch.tensor([1])}))
