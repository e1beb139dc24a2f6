"""S3Rec's losses against their definitions, and what it wants of the data."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.recsys.models import tiny_shop
from tests.recsys.models.tiny_shop import ITEMS, LENGTH, Built, fill
from treadle.errors import ConfigError
from treadle.recsys import Interaction
from treadle.recsys.data.transforms import HideItemsAndSegments, pretrain_columns

SMALL: dict[str, Any] = {
    "hidden_size": 12,
    "inner_size": 20,
    "hidden_dropout_prob": 0.0,
    "attn_dropout_prob": 0.0,
    "item_attribute": "kinds",
}


def build(folder: Path, name: str = "S3Rec", **given: Any) -> Built:
    built = tiny_shop.build(folder, name, **{**SMALL, **given})
    fill(built.model)
    return built


def hidden(built: Built) -> Interaction:
    transform = HideItemsAndSegments(built.config, built.train.dataset)
    batch = built.batch()
    return transform(batch, 1, torch.arange(len(batch)))


def kinds(item: int) -> list[float]:
    """Return which of the kinds a, b, c and d an item of the shop has."""
    return [float(place <= item % 4) for place in range(4)]


def outputs(model: Any, row: Tensor) -> Tensor:
    """Return the output of each position of one sequence, without padding."""
    inside = row[row != 0].unsqueeze(0)
    output: Tensor = model.encoded(inside, bidirectional=True)[0].double()
    return output


@torch.no_grad()
def test_the_losses_of_the_first_stage_are_sums_over_positions_and_means_over_rows(tmp_path: Path) -> None:
    built = build(tmp_path, aap_weight=0.3, mip_weight=0.5, map_weight=0.7, sp_weight=0.9)
    model, batch = built.model, hidden(built)
    names = {name: built.train.dataset.id2token("item_id", name) for name in range(1, model.n_items)}
    order = [built.train.dataset.token2id("kinds", kind) - 1 for kind in "abcd"]
    expected = torch.zeros(4, dtype=torch.float64)
    weights = model.double()
    for row in range(len(batch)):
        items = batch["item_id_list"][row]
        masked, others, without, own, foreign = (batch[name][row] for name in pretrain_columns("item_id_list"))
        for place, output in enumerate(outputs(weights, masked)):
            is_hidden = masked[place] == model.mask_token
            asked = (model.map_norm if is_hidden else model.aap_norm)(output)
            chances = torch.sigmoid(asked @ model.attribute_embedding.weight.T)[order]
            truth = torch.tensor(kinds(int(names[int(items[place])][1:])), dtype=torch.float64)
            loss = -(truth * chances.log() + (1 - truth) * (1 - chances).log()).sum()
            expected[2 if is_hidden else 0] += loss
            if is_hidden:
                table = model.item_embedding.weight
                scores = torch.sigmoid(table[torch.stack([items[place], others[place]])] @ model.mip_norm(output))
                expected[1] -= torch.sigmoid(scores[0] - scores[1]).log()
        ends = [outputs(weights, segment)[-1] for segment in (without, own, foreign)]
        if (items != 0).sum() > 1:
            scores = torch.sigmoid(torch.stack(ends[1:]) @ model.sp_norm(ends[0]))
            expected[3] -= torch.sigmoid(scores[0] - scores[1]).log()
    expected *= torch.tensor([0.3, 0.5, 0.7, 0.9], dtype=torch.float64) / len(batch)
    found = torch.stack(weights.calculate_pretrain_loss(batch))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("loss", ["CE", "BPR", "BCE"])
@pytest.mark.parametrize("everywhere", [True, False], ids=["all positions", "the last position"])
def test_the_second_stage_is_sasrec(tmp_path: Path, loss: str, everywhere: bool) -> None:
    given = {"loss_type": loss, "train_all_positions": everywhere}
    built, other = build(tmp_path, **given), tiny_shop.build(tmp_path, "SASRec", **{**SMALL, **given})
    state = other.model.state_dict()
    own = {name: value for name, value in built.model.state_dict().items() if name in state}
    other.model.load_state_dict({**own, "item_embedding.weight": own["item_embedding.weight"][:-1]})
    torch.testing.assert_close(built.model.calculate_loss(built.batch()), other.model.calculate_loss(other.batch()))
    row = built.row(3, 1, 4)
    torch.testing.assert_close(built.model.full_sort_predict(row), other.model.full_sort_predict(row))
    torch.testing.assert_close(built.model.predict(row), other.model.predict(row))


def test_every_weight_but_padding_learns_in_the_first_stage(tmp_path: Path) -> None:
    built = build(tmp_path)
    torch.stack(built.model.calculate_pretrain_loss(hidden(built))).sum().backward()
    still = [name for name, one in built.model.named_parameters() if one.grad is None or not one.grad.abs().sum() > 0]
    assert still == []
    assert built.model.item_embedding.weight.grad[0].abs().sum() == 0


def test_attributes_are_a_row_of_all_for_each_item(tmp_path: Path) -> None:
    built = build(tmp_path)
    data, found = built.train.dataset, built.model.attributes.of_items
    assert found.shape == (ITEMS + 1, 4)
    assert not found[0].any()
    for item in range(ITEMS):
        places = found[data.token2id("item_id", f"i{item}")].nonzero().flatten().tolist()
        own = {str(data.id2token("kinds", place + 1)) for place in places}
        assert own == set("abcd"[: 1 + item % 4])


def test_a_loss_is_a_mean_over_rows_first_and_over_targets_then(tmp_path: Path) -> None:
    built = build(tmp_path)
    assert built.model.loss_weight(hidden(built)) is None
    batch = built.batch()
    assert built.model.loss_weight(batch) == (batch["pos_item_id_list"] != 0).sum()
    alone = build(tmp_path, train_all_positions=False)
    assert alone.model.loss_weight(alone.batch()) is None
    assert alone.batch()["item_id_list"].shape[1] == LENGTH


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("kind", "item_attribute='kind': the items of 'shop' have no tokens of that name; did you mean 'kinds'?; load"),
        ("sizes", "item_attribute='sizes': the items of 'shop' have no tokens of that name; there are ['kinds']; load"),
    ],
)
def test_a_field_that_items_do_not_have_is_refused(tmp_path: Path, name: str, told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        build(tmp_path, item_attribute=name)
