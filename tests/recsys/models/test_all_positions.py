"""Training on all positions of a sequence at once."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.recsys.models.tiny_shop import LENGTH, build, fill
from treadle.errors import ConfigError
from treadle.recsys import Config, Interaction
from treadle.recsys.models.sequential_recommender import GRU4Rec, SASRec


class OwnLoss(SASRec):
    """A model as people write them for RecBole: rows with one target."""

    def calculate_loss(self, interaction: Interaction) -> Tensor:
        """Return the loss of the last position."""
        output = self.forward(interaction[self.ITEM_SEQ], interaction[self.ITEM_SEQ_LEN])
        loss: Tensor = self.loss_fct(output @ self.item_embedding.weight.T, interaction[self.POS_ITEM_ID])
        return loss


class CustomLoopForward(SASRec):
    """A model with another output for a sequence."""

    def forward(self, item_seq: Tensor, item_seq_len: Tensor) -> Tensor:
        """Return twice the output."""
        return 2 * super().forward(item_seq, item_seq_len)


class OwnName(SASRec):
    """A model that changes neither."""


class SaysSoAgain(CustomLoopForward):
    """A model that knows what it does."""

    trains_all_positions = True


@pytest.mark.parametrize("model", [SASRec, GRU4Rec, OwnName, SaysSoAgain])
def test_models_whose_papers_train_on_all_positions_do_so_by_default(model: type) -> None:
    assert Config(model, "shop")["train_all_positions"] is True


@pytest.mark.parametrize("model", [OwnLoss, CustomLoopForward])
def test_a_model_made_from_one_of_them_with_its_own_way_of_training_gets_rows_with_one_target(model: type) -> None:
    assert Config(model, "shop")["train_all_positions"] is False
    asked = Config(model, "shop", config_dict={"train_all_positions": True})
    assert asked["train_all_positions"] is True


def test_a_model_of_ones_own_made_from_sasrec_trains(tmp_path: Path) -> None:
    built = build(tmp_path, OwnLoss, hidden_size=8)
    built.model.calculate_loss(built.batch()).backward()
    assert "item_id" in built.batch()


@pytest.mark.parametrize("name", ["SASRec", "GRU4Rec"])
@pytest.mark.parametrize("loss", ["CE", "BPR", "BCE"])
def test_all_positions_give_the_mean_loss_of_the_rows_with_one_target(tmp_path: Path, name: str, loss: str) -> None:
    built = build(tmp_path, name, loss_type=loss)
    model = built.model
    fill(model)
    model.eval()
    batch = built.batch()
    together = model.calculate_loss(batch)
    model.train_all_positions = False
    losses = []
    for row in range(len(batch)):
        for position in range(int(batch["item_length"][row])):
            losses.append(model.calculate_loss(_one_target(batch, row, position)))
    assert len(losses) == int(batch["item_length"].sum())
    torch.testing.assert_close(together, torch.stack(losses).mean())


def _one_target(batch: Interaction, row: int, position: int) -> Interaction:
    history = batch["item_id_list"][row].clone()
    history[position + 1 :] = 0
    columns = {
        "item_id_list": history.unsqueeze(0),
        "item_length": torch.tensor([position + 1]),
        "item_id": batch["pos_item_id_list"][row, position].unsqueeze(0),
    }
    if "neg_item_id_list" in batch:
        columns["neg_item_id"] = batch["neg_item_id_list"][row, position].unsqueeze(0)
    return Interaction(columns)


def test_padded_positions_have_no_part_in_the_loss(tmp_path: Path) -> None:
    built = build(tmp_path, "SASRec", loss_type="BPR")
    fill(built.model)
    built.model.eval()
    batch = built.batch()
    loss = built.model.calculate_loss(batch)
    inside = torch.arange(LENGTH) < batch["item_length"].unsqueeze(1)
    assert not inside.all()
    batch["neg_item_id_list"] = torch.where(inside, batch["neg_item_id_list"], 5)
    torch.testing.assert_close(built.model.calculate_loss(batch), loss)


def test_several_sampled_items_at_each_position_are_understood(tmp_path: Path) -> None:
    built = build(tmp_path, "SASRec", loss_type="BCE", train_neg_sample_args={"sample_num": 3})
    batch = built.batch()
    assert batch["neg_item_id_list"].shape == (len(batch), LENGTH, 3)
    assert built.model.calculate_loss(batch).isfinite()


def test_bert4rec_hides_items_of_whole_sequences(tmp_path: Path) -> None:
    rows = build(tmp_path, "BERT4Rec").train
    whole = build(tmp_path, "BERT4Rec", train_all_positions=True).train
    assert whole.sample_size < rows.sample_size / 3
    batch = whole.batch_at(0, 0)
    hidden = batch["Mask_item_id_list"] != batch["item_id_list"]
    assert hidden.any()
    again = whole.batch_at(0, 0)
    assert torch.equal(batch["Mask_item_id_list"], again["Mask_item_id_list"])
    assert not torch.equal(batch["Mask_item_id_list"], whole.batch_at(1, 0)["Mask_item_id_list"])


@pytest.mark.parametrize("name", ["NARM", "Caser"])
def test_a_model_without_outputs_at_each_position_cannot_train_on_all(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=f"train_all_positions=True: {name} has no output at each position"):
        build(tmp_path, name, train_all_positions=True)
