"""Batches to train on: what is in them, and that each is found by its place."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.guards.no_sync import DEVICES, no_sync
from tests.recsys.data.small import (
    General,
    ListWise,
    PointWise,
    Sequential,
    UserWise,
    toy_config,
    toy_dataset,
    write_table,
)
from treadle.data import Stream
from treadle.data.seeds import fold_seed
from treadle.errors import ConfigError, DataError
from treadle.recsys import Interaction, create_dataset, data_preparation
from treadle.recsys.data.dataloader import SequenceTrainDataLoader, TrainDataLoader, UserDataLoader
from treadle.recsys.data.dataloader import train_dataloader as slices
from treadle.recsys.data.dataloader import train_dataloader as training_module
from treadle.runs.fingerprint import fingerprint_data

LABELLED = [(f"u{n % 6}", f"i{n}", n % 5, n) for n in range(48)]
ROWS = [(f"u{user}", f"i{(user * 3 + step) % 12}", 1, step) for user in range(6) for step in range(8)]


def loader_of(folder: Path, model: Any = General, rows: list[Any] = ROWS, **given: Any) -> Any:
    """Return the loader for training on all rows but one of each user."""
    given.setdefault("eval_args", {"split": {"LS": "test_only"}, "order": "TO"})
    given.setdefault("train_batch_size", 10)
    dataset = toy_dataset(folder, rows, model, **given)
    return data_preparation(dataset.config, dataset)[0]


def seen_of(loader: Any) -> set[tuple[int, int]]:
    users, items = loader.dataset.user_item_pairs()
    return set(zip(users.tolist(), items.tolist(), strict=True))


def same(first: Interaction, second: Interaction) -> bool:
    return first.columns == second.columns and all(torch.equal(first[name], second[name]) for name in first)


def test_an_epoch_has_every_row_once_and_the_next_one_another_order(tmp_path: Path) -> None:
    loader = loader_of(tmp_path)
    assert (loader.sample_size, loader.step, len(loader)) == (42, 10, 5)
    first, second = ([pair for batch in loader for pair in pairs_in(batch)] for _ in range(2))
    assert sorted(first) == sorted(second) == sorted(seen_of(loader))
    assert first != second


def pairs_in(batch: Interaction) -> list[tuple[int, int]]:
    return list(zip(batch["user_id"].tolist(), batch["item_id"].tolist(), strict=True))


def test_without_shuffling_rows_come_as_they_are(tmp_path: Path) -> None:
    loader = loader_of(tmp_path, shuffle=False)
    rows = [pair for batch in loader for pair in pairs_in(batch)]
    assert rows == pairs_in(loader.dataset.inter_feat)


@pytest.mark.parametrize("at_once", [True, False])
def test_pair_wise_negatives_are_items_that_the_user_has_not_seen(
    at_once: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not at_once:
        monkeypatch.setattr(training_module, "AT_ONCE", (0, 0))
    loader = loader_of(tmp_path)
    for batch in loader:
        negatives = zip(batch["user_id"].tolist(), batch["neg_item_id"].tolist(), strict=True)
        assert not set(negatives) & seen_of(loader)
        assert batch["neg_item_id"].shape == batch["item_id"].shape


def test_an_epoch_gathered_at_once_is_the_epoch_gathered_batch_by_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_table(tmp_path / "toy", "toy.item", ("item_id:token", "price:float"), [(f"i{n}", n) for n in range(12)])
    write_table(
        tmp_path / "toy", "toy.user", ("user_id:token", "words:token_seq"), [(f"u{n}", "a b") for n in range(6)]
    )
    flat = {"sample_num": 2, "layout": "flat"}
    drawn = (
        (General, {"sample_num": 1}),
        (General, {"sample_num": 3}),
        (General, flat),
        (PointWise, {"sample_num": 2}),
    )
    for model, arguments in (*drawn, (PointWise, None)):
        loader = loader_of(tmp_path, model, train_neg_sample_args=arguments)
        whole = [loader.batch_at(3, index) for index in range(len(loader))]
        monkeypatch.setattr(training_module, "AT_ONCE", (0, 0))
        single = [loader.batch_at(3, index) for index in range(len(loader))]
        monkeypatch.undo()
        assert all(same(one, other) for one, other in zip(whole, single, strict=True))


def test_the_order_of_an_epoch_is_the_permutation_that_its_seed_gives(tmp_path: Path) -> None:
    loader = loader_of(tmp_path)
    generator = torch.Generator().manual_seed(fold_seed(int(loader.config["seed"]), "order", 3))
    order = loader.epoch_order(3)
    assert order.dtype == torch.int64
    assert torch.equal(order, torch.randperm(42, generator=generator))


def test_several_negatives_are_a_matrix(tmp_path: Path) -> None:
    write_table(tmp_path / "toy", "toy.item", ("item_id:token", "price:float"), [(f"i{n}", n) for n in range(12)])
    loader = loader_of(tmp_path, train_neg_sample_args={"sample_num": 4}, train_batch_size=20)
    assert (loader.step, loader.batch_size, loader.times) == (5, 20, 4)
    batch = loader.batch_at(0, 0)
    assert batch["item_id"].shape == (5,)
    assert batch["neg_item_id"].shape == batch["neg_price"].shape == (5, 4)
    prices = loader.dataset.item_feat["price"]
    assert torch.equal(batch["neg_price"], prices[batch["neg_item_id"]])
    assert loader.dataset.num("neg_item_id") == loader.dataset.item_num


def test_recboles_layout_repeats_the_rows_instead(tmp_path: Path) -> None:
    matrix = loader_of(tmp_path, train_neg_sample_args={"sample_num": 2}, train_batch_size=10).batch_at(0, 0)
    flat = loader_of(tmp_path, train_neg_sample_args={"sample_num": 2, "layout": "flat"}, train_batch_size=10)
    batch = flat.batch_at(0, 0)
    assert batch["user_id"].tolist() == matrix["user_id"].tolist() * 2
    assert batch["neg_item_id"].tolist() == matrix["neg_item_id"].T.flatten().tolist()


def test_list_wise_negatives_are_a_matrix_even_if_there_is_one(tmp_path: Path) -> None:
    batch = loader_of(tmp_path, ListWise).batch_at(0, 0)
    assert batch["neg_item_id"].shape == (10, 1)


def test_point_wise_negatives_follow_the_positives_with_their_labels(tmp_path: Path) -> None:
    write_table(tmp_path / "toy", "toy.item", ("item_id:token", "price:float"), [(f"i{n}", n) for n in range(12)])
    loader = loader_of(tmp_path, PointWise, train_neg_sample_args={"sample_num": 2}, train_batch_size=12)
    assert (loader.step, loader.times, loader.batch_size) == (4, 3, 12)
    batch = loader.batch_at(0, 0)
    assert batch["label"].tolist() == [1.0] * 4 + [0.0] * 8
    assert batch["user_id"].tolist() == batch["user_id"][:4].tolist() * 3
    known = [pair in seen_of(loader) for pair in pairs_in(batch)]
    assert known == [True] * 4 + [False] * 8
    assert torch.equal(batch["price"], loader.dataset.item_feat["price"][batch["item_id"]])


def test_rows_with_labels_need_no_negatives(tmp_path: Path) -> None:
    loader = loader_of(tmp_path, PointWise, train_neg_sample_args=None, threshold={"rating": 3}, rows=LABELLED)
    batch = loader.batch_at(0, 0)
    assert set(batch["label"].tolist()) == {0.0, 1.0}
    assert "neg_item_id" not in batch
    assert len(batch) == 10


def test_popular_negatives_go_by_what_is_used_in_training_alone(tmp_path: Path) -> None:
    rows = [("a", "x", 1, 1), ("b", "y", 1, 1), ("c", "x", 1, 1), ("a", "held", 1, 9), ("b", "held", 1, 9)]
    rows += [("c", "held", 1, 9)]
    loader = loader_of(tmp_path, rows=rows, train_neg_sample_args={"distribution": "popularity"})
    drawn = {int(item) for epoch in range(30) for item in loader.batch_at(epoch, 0)["neg_item_id"]}
    assert loader.dataset.token2id("item_id", "held") not in drawn


def test_a_user_who_has_seen_every_item_is_named_before_training(tmp_path: Path) -> None:
    rows = [("a", "x", 1, 1), ("a", "y", 1, 2), ("b", "x", 1, 1), ("b", "y", 1, 2), ("a", "x", 1, 3)]
    with pytest.raises(DataError, match=r"users \[1\] have no negative: they have seen every item"):
        loader_of(tmp_path, rows=rows)


class Dear:
    """A model that scores items by their id."""

    type = General.type
    input_type = General.input_type

    def predict(self, batch: Interaction) -> Tensor:
        return batch["item_id"].float()


def test_dynamic_negatives_are_the_candidates_that_the_model_scores_highest(tmp_path: Path) -> None:
    arguments = {"dynamic": True, "candidate_num": 50}
    loader = loader_of(tmp_path, Dear, train_neg_sample_args=arguments)
    with pytest.raises(ConfigError, match=r"dynamic needs the model: call get_model\(model\) on the loader"):
        loader.batch_at(0, 0)
    loader.get_model(Dear())
    batch = loader.batch_at(0, 0)
    for user, item in zip(batch["user_id"].tolist(), batch["neg_item_id"].tolist(), strict=True):
        assert item == max(set(range(1, 13)) - {other for own, other in seen_of(loader) if own == user})


@pytest.mark.parametrize("model", [General, PointWise, UserWise])
def test_every_batch_is_found_by_its_place_without_those_before_it(model: Any, tmp_path: Path) -> None:
    loader = loader_of(tmp_path, model)
    batches = [list(loader) for _ in range(3)]
    fresh = loader_of(tmp_path, model)
    for epoch in (2, 0, 1):
        for index in reversed(range(len(fresh))):
            assert same(fresh.batch_at(epoch, index), batches[epoch][index])


def test_batches_draw_from_no_generator_of_torch(tmp_path: Path) -> None:
    loader = loader_of(tmp_path)
    state = torch.get_rng_state()
    list(loader)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_loader_goes_on_from_a_saved_place(tmp_path: Path) -> None:
    whole = loader_of(tmp_path)
    expected = [batch for _ in range(2) for batch in whole]
    loader = loader_of(tmp_path)
    drawn = iter(loader)
    first = [next(drawn) for _ in range(3)]
    state = loader.state_dict()
    assert state == {"epoch": 0, "batch": 3}
    resumed = loader_of(tmp_path)
    resumed.load_state_dict(state)
    rest = [batch for _ in range(2) for batch in resumed]
    assert all(same(one, other) for one, other in zip(first + rest, expected, strict=True))


def test_an_epoch_that_was_left_is_begun_again(tmp_path: Path) -> None:
    loader = loader_of(tmp_path)
    looked_at = next(iter(loader))
    batches = list(loader)
    assert len(batches) == len(loader)
    assert same(batches[0], looked_at)
    assert loader.state_dict() == {"epoch": 1, "batch": 0}


def test_a_stream_of_the_core_resumes_a_loader_without_reading_it_again(tmp_path: Path) -> None:
    def stream() -> Stream:
        return Stream(loader_of(tmp_path), device=torch.device("cpu"))

    straight = stream()
    expected = []
    for epoch in range(2):
        straight.begin(epoch)
        expected += list(straight.rest())
    first = stream()
    first.begin(0)
    drawn = [first.window(1)[0] for _ in range(3)]
    state = first.state_dict()
    second = stream()
    second.load_state_dict(state)
    made: list[int] = []
    real = second.source.batch_at
    second.source.batch_at = lambda epoch, index, **share: (made.append(index), real(epoch, index, **share))[1]
    drawn += list(second.rest())
    assert made == [3, 4]
    second.begin(1)
    drawn += list(second.rest())
    assert len(drawn) == len(expected)
    assert all(same(one, other) for one, other in zip(drawn, expected, strict=True))


@pytest.mark.parametrize("size", [2, 3])
def test_the_shares_of_several_processes_make_the_batch_of_one(size: int, tmp_path: Path) -> None:
    alone = loader_of(tmp_path)
    shares = [loader_of(tmp_path).shard(rank, size) for rank in range(size)]
    for batch, *parts in zip(alone, *shares, strict=True):
        for name in batch:
            assert torch.equal(torch.cat([part[name] for part in parts]), batch[name])
    with pytest.raises(ConfigError, match="rank=2 is none of 2 processes; ranks begin at 0"):
        alone.shard(2, 2)


def test_a_last_short_batch_may_leave_a_process_without_rows(tmp_path: Path) -> None:
    loader = loader_of(tmp_path, train_batch_size=41)
    assert [len(loader.batch_at(0, 1, rank=rank, size=2)) for rank in range(2)] == [1, 0]


def test_a_resumed_run_can_tell_that_its_data_is_another(tmp_path: Path) -> None:
    first = fingerprint_data(loader_of(tmp_path))
    assert fingerprint_data(loader_of(tmp_path)) == first
    assert fingerprint_data(loader_of(tmp_path, rows=[("u0", "i9", 2, 0), *ROWS[1:]]))["rows"] != first["rows"]


def test_a_batch_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no batch 5: an epoch has 5, and the first is 0"):
        loader_of(tmp_path).batch_at(0, 5)


def test_the_batch_size_can_be_changed(tmp_path: Path) -> None:
    loader = loader_of(tmp_path, PointWise)
    loader.set_batch_size(8)
    assert (loader.step, loader.batch_size, len(loader.batch_at(0, 0))) == (4, 8, 8)
    loader.update_config(loader.config)
    assert loader.step == 5
    with pytest.raises(ConfigError, match="batch_size=0 must be at least 1"):
        loader.set_batch_size(0)


@pytest.mark.parametrize("at_once", [1, 2, 64])
def test_batches_are_those_rows_of_the_epoch_in_whatever_order_they_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(slices, "CUT_AT_ONCE", at_once)
    loader = loader_of(tmp_path)
    rows, negatives = loader.whole_epoch(3)
    epoch = loader.completed(rows, negatives)
    for index in (4, 0, 1, 1, 3, 2):
        batch = loader.batch_at(3, index)
        assert len(batch) == (2 if index == 4 else 10)
        assert same(batch, epoch.take_rows(index * 10, index * 10 + len(batch)))
        batch["further"] = torch.zeros(len(batch))  # what somebody does with a batch stays with him


def test_a_batch_size_can_be_changed_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    loader = loader_of(tmp_path)
    before = [pair for index in range(2) for pair in pairs_in(loader.batch_at(1, index))]
    loader.set_batch_size(4)
    assert [pair for index in range(5) for pair in pairs_in(loader.batch_at(1, index))] == before


def test_a_batch_smaller_than_a_positive_with_its_negatives_has_one_positive(tmp_path: Path) -> None:
    loader = loader_of(tmp_path, train_neg_sample_args={"sample_num": 7}, train_batch_size=3)
    assert (loader.step, loader.batch_size) == (1, 7)


def test_users_come_in_batches_for_models_of_whole_histories(tmp_path: Path) -> None:
    rows = [*ROWS, ("v", "i1", 1, 1)]
    write_table(
        tmp_path / "toy", "toy.user", ("user_id:token", "age:float"), [(f"u{n}", n) for n in range(9)] + [("v", 1)]
    )
    loader = loader_of(tmp_path, UserWise, rows, train_batch_size=4)
    assert isinstance(loader, UserDataLoader)
    users = [user for batch in loader for user in batch["user_id"].tolist()]
    names = loader.dataset.id2token("user_id", sorted(users)).tolist()
    assert names == ["u0", "u1", "u2", "u3", "u4", "u5", "v"]  # neither padding nor users without interactions


def test_sequential_negatives_are_anything_but_the_target(tmp_path: Path) -> None:
    loader = loader_of(tmp_path, Sequential, loss_type="BPR")
    assert isinstance(loader, TrainDataLoader)
    batches = [batch for _ in range(20) for batch in loader]
    assert all((batch["neg_item_id"] != batch["item_id"]).all() for batch in batches)
    own = [item for batch in batches for item in batch["neg_item_id"].tolist()]
    assert set(own) == set(range(1, 13))
    assert batches[0]["item_id_list"].shape == (10, 50)


def test_sequential_negatives_can_be_what_the_user_has_never_seen(tmp_path: Path) -> None:
    loader = loader_of(tmp_path, Sequential, loss_type="BPR", repeatable=False)
    for batch in loader:
        negatives = zip(batch["user_id"].tolist(), batch["neg_item_id"].tolist(), strict=True)
        assert not set(negatives) & seen_of(loader)


def test_sequences_are_trained_at_all_positions(tmp_path: Path) -> None:
    given = {"loss_type": "BPR", "train_all_positions": True, "MAX_ITEM_LIST_LENGTH": 3, "train_batch_size": 7}
    loader = loader_of(tmp_path, Sequential, **given)
    assert isinstance(loader, SequenceTrainDataLoader)
    # Six users with seven interactions to train on: six targets each, in two stretches of three.
    assert (loader.sample_size, loader.step, loader.batch_size) == (12, 2, 6)
    flat = loader.dataset.flat
    targets: list[tuple[int, int]] = []
    for batch in loader:
        items, positives, negatives = (batch[f"{name}item_id_list"] for name in ("", "pos_", "neg_"))
        assert items.shape == positives.shape == negatives.shape == (2, 3)
        assert torch.equal(items[:, 1:], positives[:, :-1])
        assert ((negatives != positives) & (negatives > 0)).all()
        for user, row in zip(batch["user_id"].tolist(), positives.tolist(), strict=True):
            targets += [(user, item) for item in row]
    everything = pairs_in(flat)
    expected = [pair for place, pair in enumerate(everything) if place % 8 not in (0, 7)]
    assert sorted(targets) == sorted(expected)


def test_behind_a_short_sequence_there_is_nothing(tmp_path: Path) -> None:
    given = {"loss_type": "BPR", "train_all_positions": True, "MAX_ITEM_LIST_LENGTH": 4}
    loader = loader_of(tmp_path, Sequential, train_neg_sample_args={"sample_num": 2}, **given)
    batch = loader.batch_at(0, 0)
    lengths = batch["item_length"]
    outside = torch.arange(4) >= lengths.unsqueeze(1)
    assert outside.any()
    for name in ("item_id_list", "pos_item_id_list"):
        assert torch.equal(batch[name] == 0, outside)
    assert batch["neg_item_id_list"].shape == (*outside.shape, 2)
    assert torch.equal((batch["neg_item_id_list"] == 0).all(dim=2), outside)
    shares = [loader.batch_at(0, 0, rank=rank, size=2)["neg_item_id_list"] for rank in range(2)]
    assert torch.equal(torch.cat(shares), batch["neg_item_id_list"])


def test_the_last_stretch_of_each_user_may_be_all_that_is_trained_on(tmp_path: Path) -> None:
    given = {"loss_type": "BPR", "train_all_positions": True, "MAX_ITEM_LIST_LENGTH": 4}
    loader = loader_of(tmp_path, Sequential, train_last_stretch_only=True, **given)
    # Six users with six targets each.
    assert loader.sample_size == 6
    assert all((batch["item_length"] == 4).all() for batch in loader)
    with pytest.raises(ConfigError, match="train_last_stretch_only=True has no use without train_all_positions; set"):
        loader_of(tmp_path, Sequential, train_last_stretch_only=True, loss_type="BPR")


def test_only_sequential_models_train_at_all_positions(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="train_all_positions is for sequential models, and General is none"):
        loader_of(tmp_path, train_all_positions=True)


def test_negatives_need_users_and_items(tmp_path: Path) -> None:
    write_table(tmp_path / "toy", "toy.inter", ("site:token", "label:float"), [("a", 1), ("b", 0), ("c", 1), ("d", 0)])
    args = {"USER_ID_FIELD": None, "ITEM_ID_FIELD": None, "metrics": ["AUC"], "valid_metric": "AUC"}
    args["eval_args"] = {"mode": "labeled", "group_by": "none"}
    config = toy_config(tmp_path, PointWise, **args)
    with pytest.raises(ConfigError, match="train_neg_sample_args needs users and items; set it to None"):
        data_preparation(config, create_dataset(config))
    config = toy_config(tmp_path, PointWise, train_neg_sample_args=None, **args)
    train, valid, _ = data_preparation(config, create_dataset(config))
    assert valid is not None
    assert next(iter(train)).columns == ["site", "label"]


KINDS = {
    "pairs": (General, {}),
    "several": (General, {"train_neg_sample_args": {"sample_num": 3, "distribution": "popularity"}}),
    "points": (PointWise, {}),
    "users": (UserWise, {}),
    "prefixes": (Sequential, {"loss_type": "BPR"}),
    "all positions": (Sequential, {"loss_type": "BPR", "train_all_positions": True}),
    "masked": (Sequential, {"loss_type": "BPR", "transform": "mask_itemseq", "mask_ratio": 0.5}),
    "cropped": (Sequential, {"loss_type": "CE", "transform": "crop_itemseq", "eta": 0.5}),
    "reordered": (Sequential, {"loss_type": "CE", "transform": "reorder_itemseq", "beta": 0.5}),
    "inverse": (Sequential, {"loss_type": "CE", "transform": "inverse_itemseq"}),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
def test_making_a_batch_never_waits_for_the_device(kind: str, device: str, tmp_path: Path) -> None:
    model, given = KINDS[kind]
    loader = loader_of(tmp_path, model, **given)
    expected = [loader.batch_at(epoch, 0) for epoch in range(2)]
    loader.to(device)
    batches = [loader.batch_at(0, 0)]
    with no_sync(device):
        batches.append(loader.batch_at(1, 0))
    for batch, other in zip(batches, expected, strict=True):
        assert all(column.device.type == device for column in batch.interaction.values())
        assert same(batch.cpu(), other)
