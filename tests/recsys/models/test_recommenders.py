"""What every recommender is, and how models are found."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.recsys.models.tiny_ratings import build
from treadle.errors import ConfigError
from treadle.recsys import InputType, Interaction, ModelType, get_model, model_names, model_registry
from treadle.recsys.models import AbstractRecommender, GeneralRecommender, KnowledgeRecommender, SequentialRecommender
from treadle.recsys.models.settings import number, share, sizes, whole


class Factors(GeneralRecommender):
    """A model as RecBole's users write them."""

    input_type = InputType.PAIRWISE
    other_parameter_name = ("kept",)

    def __init__(self, config: Any, dataset: Any) -> None:
        super(Factors, self).__init__(config, dataset)  # noqa: UP008 - as they write it
        self.users = nn.Embedding(self.n_users, 4).to(self.device)
        self.items = nn.Embedding(self.n_items, 4)
        self.kept: Any = None
        self.calculated = 0

    def everything(self) -> Tensor:
        self.calculated += 1
        return self.users.weight @ self.items.weight.T


@pytest.fixture
def model() -> Factors:
    built = build("BPR")
    return Factors(built.config, built.train.dataset)


def test_a_general_recommender_knows_its_columns_and_how_many_ids_there_are(model: Factors) -> None:
    assert (model.USER_ID, model.ITEM_ID, model.NEG_ITEM_ID) == ("user_id", "item_id", "neg_item_id")
    assert (model.n_users, model.n_items) == (17, 13)
    assert model.device == torch.device("cpu")
    assert model.type is ModelType.GENERAL


def test_a_recommender_says_what_it_does_not_define(model: Factors) -> None:
    for name in ("calculate_loss", "predict", "full_sort_predict"):
        with pytest.raises(NotImplementedError, match=f"Factors does not define {name}"):
            getattr(model, name)(Interaction({}))


def test_a_recommender_prints_how_many_parameters_it_trains(model: Factors) -> None:
    model.items.requires_grad_(False)
    assert str(model).endswith("Trainable parameters: 68")


def test_other_parameters_are_saved_and_loaded(model: Factors) -> None:
    model.kept = torch.tensor([1.0])
    saved = model.other_parameter()
    model.kept = None
    model.load_other_parameter(None)
    assert model.kept is None
    model.load_other_parameter(saved)
    assert model.kept.tolist() == [1.0]
    assert AbstractRecommender().other_parameter() == {}


def test_what_is_remembered_is_calculated_anew_after_any_change(model: Factors) -> None:
    model.eval()
    with torch.no_grad():
        for _ in range(3):
            model.remembered(model.everything)
        assert model.calculated == 1
        model.items.weight.add_(1)
        torch.testing.assert_close(model.remembered(model.everything), model.users.weight @ model.items.weight.T)
        assert model.calculated == 2
        model.load_state_dict(model.state_dict())
        model.remembered(model.everything)
        assert model.calculated == 3
        model.users.weight.data = model.users.weight.data.clone()
        model.remembered(model.everything)
        assert model.calculated == 4
        model.train()
        model.eval()
        model.remembered(model.everything)
        assert model.calculated == 5


def test_nothing_is_remembered_in_training_or_with_gradients(model: Factors) -> None:
    model.eval()
    model.remembered(model.everything)
    model.remembered(model.everything)
    model.train()
    with torch.no_grad():
        model.remembered(model.everything)
        model.remembered(model.everything)
    assert model.calculated == 4


class Next(SequentialRecommender):
    """A model of sequences."""


def sequences() -> Next:
    built = build("BPR")
    return Next(built.config, built.train.dataset)


def test_a_sequential_recommender_knows_its_columns() -> None:
    model = sequences()
    assert (model.ITEM_SEQ, model.ITEM_SEQ_LEN, model.POS_ITEM_ID) == ("item_id_list", "item_length", "item_id")
    assert (model.POS_ITEM_SEQ, model.NEG_ITEM_SEQ) == ("pos_item_id_list", "neg_item_id_list")
    assert (model.max_seq_length, model.n_items) == (50, 13)
    assert not hasattr(model, "input_type")


def test_the_vector_at_one_position_of_each_sequence_is_gathered() -> None:
    output = torch.arange(12.0).view(2, 3, 2)
    assert sequences().gather_indexes(output, torch.tensor([2, 0])).tolist() == [[4.0, 5.0], [6.0, 7.0]]


def test_attention_masks_hide_padding_and_what_comes_later() -> None:
    items = torch.tensor([[5, 6, 0]])
    hidden = -10000.0
    both = sequences().get_attention_mask(items, bidirectional=True)
    assert both.tolist() == [[[[0, 0, hidden]]]]
    earlier = sequences().get_attention_mask(items)
    assert earlier.tolist() == [[[[0, hidden, hidden], [0, 0, hidden], [0, 0, hidden]]]]


class Known:
    """Stands for a data set with a knowledge graph."""

    def num(self, field: str) -> int:
        return {"user_id": 3, "item_id": 4, "entity_id": 5, "relation_id": 6}[field]


def test_a_knowledge_recommender_knows_its_columns() -> None:
    model = KnowledgeRecommender(build("BPR").config, Known())  # type: ignore[arg-type]
    assert (model.n_users, model.n_items, model.n_entities, model.n_relations) == (3, 4, 5, 6)
    assert (model.HEAD_ENTITY_ID, model.TAIL_ENTITY_ID) == ("head_id", "tail_id")
    assert model.NEG_TAIL_ENTITY_ID == "neg_tail_id"


def test_models_are_loaded_when_one_is_asked_for_by_name_and_not_before() -> None:
    program = """
import sys
import treadle.recsys
loaded = [name for name in sys.modules if name.startswith("treadle.recsys.models.general_recommender")]
assert not loaded, loaded
assert treadle.recsys.get_model("LightGCN").__name__ == "LightGCN"
heavy = {"scipy", "sklearn", "triton", "pandas"} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_slip_in_the_name_of_a_model_is_named() -> None:
    with pytest.raises(ConfigError, match="there is no model 'LightGNC'; did you mean 'LightGCN'"):
        get_model("LightGNC")
    with pytest.raises(ConfigError, match="there is no model 'lightgcn'; did you mean 'LightGCN'"):
        get_model("lightgcn")


def test_a_registered_model_goes_before_one_that_comes_with_treadle(monkeypatch: pytest.MonkeyPatch) -> None:
    class BPR(Factors):
        pass

    monkeypatch.setattr(model_registry, "_models", {})
    monkeypatch.setattr(model_registry, "_sources", [lambda: {"BPR": Factors, "Other": Factors}])
    model_registry.register_model(BPR)
    assert get_model("BPR") is BPR
    assert model_names() == ["BPR", "Other"]
    assert model_registry._sources == []


@pytest.mark.parametrize(
    ("check", "value", "message"),
    [
        (whole, 0, "size=0 must be a whole number from 1"),
        (whole, True, "size=True must be a whole number from 1"),
        (number, "much", "size='much' must be a number from 0"),
        (number, -1.0, "size=-1.0 must be a number from 0"),
        (share, 1.0, "size=1.0 must be at least 0 and below 1"),
        (sizes, [8, 0], r"size=\[8, 0\] must be a list of whole numbers from 1, such as \[128, 64\]"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_named_with_its_value(check: Any, value: Any, message: str) -> None:
    config = build("BPR").config
    config["size"] = value
    with pytest.raises(ConfigError, match=message):
        check(config, "size")
