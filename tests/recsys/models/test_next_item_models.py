"""Models of the next item: their formulas by hand, padding that changes nothing, items to come that are not seen."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.recsys.models.tiny_shop import LENGTH, RANKING, Built, build, fill
from treadle.errors import ConfigError
from treadle.recsys.models.sequential_recommender import SASRec


@pytest.fixture(params=RANKING)
def built(request: pytest.FixtureRequest, tmp_path: Path) -> Built:
    found = build(tmp_path, request.param)
    fill(found.model)
    found.model.eval()
    return found


def scores(built: Built, *items: int, **columns: object) -> Tensor:
    with torch.no_grad():
        found: Tensor = built.model.full_sort_predict(built.row(*items, **columns))
    return found[0]


def test_the_embedding_of_padding_is_zero_and_never_learns(tmp_path: Path, built: Built) -> None:
    assert not built.model.item_embedding.weight[0].any()
    built.model.train()
    built.model.calculate_loss(built.batch()).backward()
    assert not built.model.item_embedding.weight.grad[0].any()
    assert built.model.item_embedding.weight.grad[1:].any()


# The other two tell from the items alone what is padding.
@pytest.mark.parametrize("built", ["GRU4Rec", "NARM", "SASRec"], indirect=True)
def test_items_behind_the_end_of_a_sequence_change_nothing(built: Built) -> None:
    filled = built.row(3, 5, 7)
    filled["item_id_list"][0, 3:] = torch.tensor([2, 4, 6, 8, 10])
    with torch.no_grad():
        torch.testing.assert_close(built.model.full_sort_predict(filled)[0], scores(built, 3, 5, 7))


# In the image that Caser looks at padding is zeros.
@pytest.mark.parametrize("built", ["GRU4Rec", "NARM", "SASRec", "BERT4Rec"], indirect=True)
def test_the_embedding_of_padding_changes_no_score_of_an_item(built: Built) -> None:
    before = scores(built, 3, 5, 7)
    with torch.no_grad():
        built.model.item_embedding.weight[0] = 9.0
    torch.testing.assert_close(scores(built, 3, 5, 7)[1:], before[1:])


def test_the_order_of_items_counts(built: Built) -> None:
    assert not torch.allclose(scores(built, 3, 5, 7), scores(built, 7, 3, 5), atol=1e-3)


def test_a_full_sequence_can_be_scored(built: Built) -> None:
    assert scores(built, *range(1, LENGTH + 1)).isfinite().all()


@pytest.mark.parametrize("name", ["SASRec", "GRU4Rec"])
def test_items_to_come_change_nothing_at_earlier_positions(name: str, tmp_path: Path) -> None:
    model = build(tmp_path, name).model
    fill(model)
    model.eval()
    with torch.no_grad():
        first = model.position_outputs(torch.tensor([[3, 5, 7, 9, 11, 0, 0, 0]]))
        other = model.position_outputs(torch.tensor([[3, 5, 7, 2, 4, 6, 8, 1]]))
    torch.testing.assert_close(first[:, :3], other[:, :3])
    assert not torch.allclose(first[:, 3], other[:, 3])


def test_bert4rec_sees_items_on_both_sides_of_a_hidden_one(tmp_path: Path) -> None:
    model = build(tmp_path, "BERT4Rec").model
    fill(model)
    model.eval()
    hidden = model.mask_token
    with torch.no_grad():
        one, other = model(torch.tensor([[3, hidden, 7, 0, 0, 0, 0, 0], [3, hidden, 9, 0, 0, 0, 0, 0]]))
    assert not torch.allclose(one[1], other[1])


def test_bert4rec_hides_an_item_behind_the_sequence_and_drops_the_oldest_of_a_full_one(tmp_path: Path) -> None:
    model = build(tmp_path, "BERT4Rec").model
    full = torch.arange(1, LENGTH + 1)
    short = torch.tensor([5, 6, 0, 0, 0, 0, 0, 0])
    found = model.reconstruct_test_data(torch.stack([short, full]), torch.tensor([2, LENGTH]))
    hidden = model.mask_token
    assert hidden == model.n_items
    assert found.tolist() == [[5, 6, hidden, 0, 0, 0, 0, 0], [2, 3, 4, 5, 6, 7, 8, hidden]]


def test_bert4rec_learns_hidden_items_wherever_they_are_and_padding_never(tmp_path: Path) -> None:
    built = build(tmp_path, "BERT4Rec")
    fill(built.model)
    built.model.eval()
    batch = built.batch()[:3]
    batch["Pos_item_id"] = torch.tensor([[4], [0], [6]])
    batch["MASK_INDEX"] = torch.tensor([[0], [0], [1]])
    model = built.model
    output = model(batch["Mask_item_id_list"])[[0, 2], [0, 1]]
    logits = output @ model.item_embedding.weight[1 : model.n_items].T + model.output_bias[1:]
    expected = functional.cross_entropy(logits, torch.tensor([3, 5]))
    torch.testing.assert_close(model.calculate_loss(batch), expected)


def test_a_batch_in_which_nothing_is_hidden_has_no_loss(tmp_path: Path) -> None:
    built = build(tmp_path, "BERT4Rec")
    batch = built.batch()
    batch["Pos_item_id"] = torch.zeros_like(batch["Pos_item_id"])
    loss = built.model.calculate_loss(batch)
    loss.backward()
    assert loss.item() == 0
    assert not built.model.item_embedding.weight.grad.any()


def test_the_loss_of_bert4rec_is_that_of_its_parts_by_the_items_they_hide(tmp_path: Path) -> None:
    built = build(tmp_path, "BERT4Rec", train_all_positions=True)
    built.model.eval()
    batch = built.batch()
    parts = [batch[:2], batch[2:]]
    weights = [built.model.loss_weight(part) for part in parts]
    assert weights[0] != weights[1]
    total = sum(weight * built.model.calculate_loss(part) for weight, part in zip(weights, parts, strict=True))
    torch.testing.assert_close(built.model.calculate_loss(batch), total / sum(weights))


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("items", [(3, 5, 7), (2,), tuple(range(1, LENGTH + 1))], ids=["some", "one", "full"])
@torch.no_grad()
def test_positions_from_the_end_are_those_of_sequences_padded_in_front(
    tmp_path: Path, items: tuple[int, ...], bidirectional: bool
) -> None:
    built = build(tmp_path, "SASRec", positions_from_end=True)
    model = built.model
    fill(model)
    model.eval()
    padding = LENGTH - len(items)
    in_front = torch.tensor([[0] * padding + list(items)])
    embedded = model.LayerNorm(model.item_embedding.weight[in_front] + model.position_embedding.weight[:LENGTH])
    mask = torch.zeros(1, 1, LENGTH, LENGTH)
    mask[..., :padding] = float("-inf")
    # What is padding looks at itself alone, so that its row is no division by zero.
    mask[0, 0].fill_diagonal_(0.0)
    if not bidirectional:
        mask += torch.full((LENGTH, LENGTH), float("-inf")).triu(1)
    expected = model.trm_encoder(embedded, mask)[-1][0, padding:]
    behind = built.row(*items)["item_id_list"]
    torch.testing.assert_close(model.encoded(behind, bidirectional=bidirectional)[0, : len(items)], expected)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("settings", [{}, {"norm_first": True, "positions_from_end": True}], ids=["behind", "first"])
def test_the_short_cut_to_the_last_position_gives_what_all_positions_have_there(
    tmp_path: Path, settings: dict[str, Any], layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = build(tmp_path, "SASRec", n_layers=layers, **settings)
    fill(built.model)
    model = built.model.double().eval()
    items = torch.tensor([[3, 4, 5, 6, 7, 0, 0, 0], [2, 0, 0, 0, 0, 0, 0, 0], list(range(1, LENGTH + 1))])
    lengths = torch.tensor([5, 1, LENGTH])
    whole = model.position_outputs(items)[torch.arange(3), lengths - 1]
    # All rows together, and two rows and one.
    for numbers in (2**20, 2 * LENGTH * 20):
        monkeypatch.setattr("treadle.recsys.models.bases.sequential.CPU_NUMBERS", numbers)
        torch.testing.assert_close(model(items, lengths), whole)
    middle = lengths // 2
    both = model.encoded(items, bidirectional=True)[torch.arange(3), middle]
    torch.testing.assert_close(model.encoded_at(items, middle, bidirectional=True), both)


class Doubled(SASRec):
    """Has an output of its own at each position."""

    def position_outputs(self, item_seq: Tensor) -> Tensor:
        return 2 * super().position_outputs(item_seq)


def test_a_subclass_that_encodes_positions_in_another_way_is_evaluated_so(tmp_path: Path) -> None:
    plain, own = (build(tmp_path, kind, hidden_size=12, inner_size=20).model.eval() for kind in (SASRec, Doubled))
    items, lengths = torch.tensor([[3, 4, 5, 0, 0, 0, 0, 0]]), torch.tensor([3])
    torch.testing.assert_close(own(items, lengths), 2 * plain(items, lengths))


def test_narm_weighs_states_by_what_the_last_one_asks_for(tmp_path: Path) -> None:
    model = build(tmp_path, "NARM").model
    fill(model)
    model.eval()
    items = torch.tensor([[3, 5, 7, 0, 0, 0, 0, 0]])
    states = model.gru(model.item_embedding(items[:, :3]))[0][0]
    last, purpose = states[2], torch.zeros(12)
    for state in states:
        weight = model.v_t.weight[0] @ torch.sigmoid(model.a_1.weight @ state + model.a_2.weight @ last)
        purpose = purpose + weight * state
    expected = model.b.weight @ torch.cat([purpose, last])
    torch.testing.assert_close(model(items, torch.tensor([3]))[0], expected)


def test_caser_slides_kernels_of_all_heights_and_takes_the_largest(tmp_path: Path) -> None:
    model = build(tmp_path, "Caser", nh=3, nv=2).model
    fill(model)
    model.eval()
    items = torch.tensor([3, 5, 7, 2, 4, 0, 0, 0])
    image = model.item_embedding(items)
    found = [(model.conv_v.weight[kernel, 0, :, 0] @ image + model.conv_v.bias[kernel]) for kernel in range(2)]
    for height in range(1, LENGTH + 1):
        convolution = model.conv_h[height - 1]
        for kernel in range(3):
            outputs = [
                (convolution.weight[kernel, 0] * image[start : start + height]).sum() + convolution.bias[kernel]
                for start in range(LENGTH - height + 1)
            ]
            found.append(torch.stack(outputs).relu().max().unsqueeze(0))
    hidden = (model.fc1.weight @ torch.cat(found) + model.fc1.bias).relu()
    both = torch.cat([hidden, model.user_embedding.weight[2]])
    expected = (model.fc2.weight @ both + model.fc2.bias).relu()
    torch.testing.assert_close(model(torch.tensor([2]), items.unsqueeze(0))[0], expected)


@pytest.mark.parametrize("at_once", [1, 3, 8, 100])
def test_caser_finds_the_same_however_many_heights_are_one_convolution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    built = build(tmp_path, "Caser")
    fill(built.model)
    built.model.eval()
    monkeypatch.setattr("treadle.recsys.models.sequential_recommender.caser.HEIGHTS_AT_ONCE", at_once)
    expected = scores(built, 3, 5, 7)
    monkeypatch.undo()
    torch.testing.assert_close(scores(built, 3, 5, 7), expected)


def test_caser_penalises_the_norms_of_all_weights_kernels_of_all_heights_included(tmp_path: Path) -> None:
    built = build(tmp_path, "Caser", reg_weight=0.0)
    built.model.eval()
    plain = built.model.calculate_loss(built.batch())
    built.model.reg_weight = 0.5
    norms = [one.norm() for name, one in built.model.named_parameters() if name.endswith("weight")]
    assert len(norms) == 2 + 1 + LENGTH + 2
    torch.testing.assert_close(built.model.calculate_loss(built.batch()), plain + 0.5 * sum(norms))


@pytest.mark.parametrize(("nh", "nv"), [(0, 2), (2, 0)])
def test_caser_works_with_one_kind_of_kernels(tmp_path: Path, nh: int, nv: int) -> None:
    built = build(tmp_path, "Caser", nh=nh, nv=nv)
    built.model.calculate_loss(built.batch()).backward()
    assert all(one.grad is not None for one in built.model.parameters())


def test_caser_without_any_kernel_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nh and nv are both 0, so that Caser has no convolution"):
        build(tmp_path, "Caser", nh=0, nv=0)


def test_narm_needs_two_dropouts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"dropout_probs=\[0.5\] must be two numbers from 0 and below 1"):
        build(tmp_path, "NARM", dropout_probs=[0.5])


def test_the_loss_over_all_items_is_the_cross_entropy_of_their_inner_products(tmp_path: Path) -> None:
    built = build(tmp_path, "NARM")
    fill(built.model)
    built.model.eval()
    batch = built.batch()
    logits = built.model.full_sort_predict(batch)[:, 1:]
    expected = functional.cross_entropy(logits, batch["item_id"] - 1)
    torch.testing.assert_close(built.model.calculate_loss(batch), expected)


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("loss", ["BPR", "BCE"])
def test_losses_with_sampled_items_are_those_of_their_definition(tmp_path: Path, loss: str, number: int) -> None:
    built = build(tmp_path, "NARM", loss_type=loss, train_neg_sample_args={"sample_num": number})
    fill(built.model)
    built.model.eval()
    batch = built.batch()
    every = built.model.full_sort_predict(batch)
    total = torch.zeros(())
    for row in range(len(batch)):
        chosen = every[row, batch["item_id"][row]]
        drawn = every[row, batch["neg_item_id"][row].reshape(-1)]
        assert len(drawn) == number
        if loss == "BPR":
            total = total - torch.sigmoid(chosen - drawn).log().mean()
        else:
            total = total - torch.sigmoid(chosen).log() - (1 - torch.sigmoid(drawn)).log().sum()
    torch.testing.assert_close(built.model.calculate_loss(batch), total / len(batch))


def test_a_loss_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="loss_type to one of"):
        build(tmp_path, "NARM", loss_type="MSE")
