"""Weights of RecBole's models get into Treadle's models of the same names as these have them, or are refused."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.recsys.models import tiny_shop
from tests.recsys.models.building import fill
from tests.recsys.trainer.runs import graph, interactions, settings
from treadle.errors import CheckpointError
from treadle.recsys import Config, ModelType, create_dataset, get_model
from treadle.recsys.compat import ImportedCheckpoint, import_checkpoint
from treadle.recsys.models.abstract_recommender import ContextRecommender


def checkpoint(name: str, weights: Mapping[str, Tensor]) -> ImportedCheckpoint:
    return ImportedCheckpoint(f"{name}.pth", name, "toy", {}, 1, 0.5, weights, {})


def model(folder: Path, name: str, **given: Any) -> Any:
    config = Config(name, "toy", config_dict=settings(folder, **given))
    tables = graph() if get_model(name).type is ModelType.KNOWLEDGE else {}
    return get_model(name)(config, create_dataset(config, inter=interactions(), **tables))


def sequences_first(kind: Any) -> Any:
    """Return a model that has its fields in RecBole's order: sequences before single values."""

    class TheirOrder(kind):  # type: ignore[misc]
        def embed_input_fields(self, interaction: Any, mode: str = "mean") -> Any:
            sparse, dense = super().embed_input_fields(interaction, mode)
            return (
                torch.roll(sparse, len(self.token_seq_field_names), dims=-2),
                torch.roll(dense, len(self.float_seq_field_names), dims=-2),
            )

    TheirOrder.__name__ = kind.__name__
    return TheirOrder


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("DeepFM", {}),
        ("WideDeep", {}),
        ("DCN", {}),
        ("DCNv2", {"structure": "stacked", "mixed": False}),
        ("DCNv2", {"structure": "parallel", "mixed": False}),
        ("DCNv2", {"structure": "parallel", "mixed": True, "expert_num": 2, "low_rank": 3}),
        ("FM", {}),
        ("LR", {}),
    ],
)
def test_fields_of_sequences_come_first_in_recbole_and_predictions_are_the_same(
    tmp_path: Path, name: str, given: dict[str, Any]
) -> None:
    ours = tiny_shop.build(tmp_path, name, **given)
    theirs = sequences_first(type(ours.model))(ours.config, ours.train.dataset)
    assert ours.model.token_seq_field_names, "there is something to mix up"
    fill(theirs)
    batch = ours.batch()
    expected = theirs.eval().predict(batch)
    checkpoint(name, theirs.state_dict()).load_into(ours.model)
    assert torch.allclose(ours.model.eval().predict(batch), expected, atol=1e-6)
    assert expected.std() > 0.01


class OfOnesOwn(ContextRecommender):
    """A model of somebody's own on Treadle's base, which does not say where fields go in."""

    def __init__(self, config: Any, dataset: Any) -> None:
        super().__init__(config, dataset)
        self.output = nn.Linear(self.num_feature_field * self.embedding_size, 1)


class Telling(OfOnesOwn):
    """One that does."""

    def field_inputs(self) -> dict[str, tuple[int, ...]]:
        return {"output.weight": (1,)}


def test_a_model_that_does_not_say_where_fields_go_in_is_refused(tmp_path: Path) -> None:
    shop = tiny_shop.build(tmp_path, "DeepFM")
    silent, telling = (kind(shop.config, shop.train.dataset) for kind in (OfOnesOwn, Telling))
    with pytest.raises(CheckpointError, match=r"OfOnesOwn has fields of sequences, which come first in RecBole and la"):
        checkpoint("OfOnesOwn", silent.state_dict()).load_into(silent)
    size, single = telling.embedding_size, len(telling.token_field_names)
    given = telling.state_dict()
    expected = given["output.weight"].clone()
    checkpoint("Telling", given).load_into(telling)
    # The one sequence of tokens stands first in the file, and behind the single tokens here.
    assert telling.output.weight[:, :size].equal(expected[:, size : 2 * size])
    assert telling.output.weight[:, single * size : (single + 1) * size].equal(expected[:, :size])


def test_ngcf_has_a_name_of_its_own_for_a_layer(tmp_path: Path) -> None:
    made = model(tmp_path, "NGCF", embedding_size=4, hidden_size_list=[4, 4])
    own = {name: torch.randn_like(value) for name, value in made.state_dict().items()}
    theirs = {name.replace("interactTransform", "interActTransform"): value for name, value in own.items()}
    assert theirs.keys() != own.keys()
    checkpoint("NGCF", theirs).load_into(made)
    assert all(value.equal(own[name]) for name, value in made.state_dict().items())


def test_multivae_counts_its_updates_anew(tmp_path: Path) -> None:
    made = model(tmp_path, "MultiVAE", mlp_hidden_size=[8], latent_dimension=4)
    theirs = {name: torch.randn_like(value) for name, value in made.state_dict().items() if name != "update"}
    checkpoint("MultiVAE", theirs).load_into(made)
    assert all(value.equal(made.state_dict()[name]) for name, value in theirs.items())


def test_dmf_has_tables_where_recbole_has_layers_and_is_built_with_inner_products(tmp_path: Path) -> None:
    small = {"user_embedding_size": 4, "item_embedding_size": 4, "user_hidden_size_list": [4]}
    made = model(tmp_path, "DMF", **small, item_hidden_size_list=[4], similarity="dot")
    theirs = {
        name: torch.randn(value.T.shape if "_linear." in name else value.shape)
        for name, value in made.state_dict().items()
    }
    checkpoint("DMF", theirs).load_into(made)
    assert made.user_linear.weight.equal(theirs["user_linear.weight"].T)
    assert made.item_linear.weight.equal(theirs["item_linear.weight"].T)
    cosine = model(tmp_path, "DMF", **small, item_hidden_size_list=[4])
    with pytest.raises(CheckpointError, match=r"RecBole's DMF compares by inner products; build it with similarity: d"):
        checkpoint("DMF", theirs).load_into(cosine)


@pytest.mark.parametrize("name", ["CFKG", "KGCN"])
def test_a_relation_that_recbole_counts_twice_is_left_out(tmp_path: Path, name: str) -> None:
    made = model(tmp_path, name, embedding_size=4, kg_embedding_size=4)
    rows = len(made.relation_embedding.weight)
    theirs = {key: torch.randn_like(value) for key, value in made.state_dict().items()}
    theirs["relation_embedding.weight"] = torch.randn(rows + 1, 4)
    checkpoint(name, theirs).load_into(made)
    table = theirs["relation_embedding.weight"]
    assert made.relation_embedding.weight[:-1].equal(table[: rows - 1])
    assert made.relation_embedding.weight[-1].equal(table[-1] if name == "CFKG" else table[rows - 1])


@pytest.mark.parametrize("name", ["EASE", "ItemKNN", "Pop", "GCMC"])
def test_a_model_that_cannot_take_them_says_why_and_names_the_bridge(tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckpointError) as error:
        checkpoint(name, {"dummy_param": torch.zeros(1)}).load_into(model(tmp_path, name))
    assert f"{name}.pth does not fit {name}: it" in str(error.value)
    assert f"; Config('recbole:{name}', ...) takes the weights as they are" in str(error.value)


@pytest.mark.parametrize("name", ["DIN", "DIEN"])
def test_dice_is_another_one_here(tmp_path: Path, name: str) -> None:
    made = tiny_shop.build(tmp_path, name).model
    with pytest.raises(CheckpointError, match=rf"fit {name}: its activation Dice normalises .*'recbole:{name}"):
        checkpoint(name, {}).load_into(made)


def test_other_misfits_name_the_bridge_too(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"(?s)does not fit the model.*; Config\('recbole:BPR', ...\) takes the"):
        checkpoint("BPR", {"a": torch.ones(1)}).load_into(model(tmp_path, "BPR", embedding_size=4))


def test_a_model_that_draws_says_that_its_numbers_are_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = model(tmp_path, "KGCN", embedding_size=4, kg_embedding_size=4)
    with caplog.at_level(logging.WARNING):
        checkpoint("KGCN", made.state_dict()).load_into(made)
    assert "KGCN draws the neighbours of entities when it is built, so metrics are near RecBole's" in caplog.text
    assert "not equal; Config('recbole:KGCN', ...) takes the weights as they are" in caplog.text


def test_settings_of_the_model_that_are_others_here_come_with_the_file(tmp_path: Path, config_class: Any) -> None:
    config = config_class()
    config.model, config.dataset = "LightGCN", "toy"
    config.external_config_dict = {"embedding_size": 4}
    config.final_config_dict = {"embedding_size": 4, "n_layers": 5, "reg_weight": "1e-05", "topk": [3], "epochs": 7}
    path = tmp_path / "LightGCN.pth"
    torch.save({"state_dict": {"a": torch.ones(1)}, "config": config}, path, pickle_protocol=4)
    assert import_checkpoint(path).settings == {"embedding_size": 4, "n_layers": 5}
    config.model, config.final_config_dict = "DMF", {}
    torch.save({"state_dict": {"a": torch.ones(1)}, "config": config}, path, pickle_protocol=4)
    assert import_checkpoint(path).settings["similarity"] == "dot"
