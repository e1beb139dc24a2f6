"""Batches to evaluate on: what is ranked, among what, and what is kept back."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.recsys.data.small import Context, General, Sequential, toy_config, toy_dataset, write_table
from treadle.errors import ConfigError, DataError
from treadle.recsys import Config, create_dataset, data_preparation
from treadle.recsys.data.dataloader import FullSortEvalDataLoader, NegSampleEvalDataLoader

ROWS = [(f"u{user}", f"i{(user * 3 + step) % 12}", 1, step) for user in range(6) for step in range(8)]
BY_TIME = {"split": {"RS": [6, 1, 1]}, "order": "TO"}


def loaders_of(folder: Path, model: Any = General, rows: list[Any] = ROWS, **given: Any) -> Any:
    given["eval_args"] = {**BY_TIME, **given.get("eval_args", {})}
    dataset = toy_dataset(folder, rows, model, **given)
    return data_preparation(dataset.config, dataset)


def by_row(rows: torch.Tensor, items: torch.Tensor, number: int) -> list[set[int]]:
    found: list[set[int]] = [set() for _ in range(number)]
    for row, item in zip(rows.tolist(), items.tolist(), strict=True):
        found[row].add(item)
    return found


def items_of(loader: Any) -> dict[int, set[int]]:
    users, items = loader.dataset.user_item_pairs()
    return {user: set(items[users == user].tolist()) for user in set(users.tolist())}


def test_full_ranking_keeps_back_what_was_seen_in_the_parts_before(tmp_path: Path) -> None:
    train, valid, test = loaders_of(tmp_path)
    assert isinstance(test, FullSortEvalDataLoader)
    for loader, before in ((valid, [train]), (test, [train, valid])):
        (batch,) = list(loader)
        interaction, history, rows, items = batch
        users = interaction["user_id"].tolist()
        assert users == [1, 2, 3, 4, 5, 6]
        positives = by_row(rows, items, 6)
        assert positives == [items_of(loader)[user] for user in users]
        seen = [set().union(*(items_of(part)[user] for part in before)) for user in users]
        assert by_row(*history, 6) == [own - found for own, found in zip(seen, positives, strict=True)]


def test_what_is_to_be_found_is_never_kept_back(tmp_path: Path) -> None:
    rows = [("a", "x", 1, 1), ("a", "y", 1, 2), ("a", "z", 1, 3), ("a", "x", 1, 4), ("b", "w", 1, 1)]
    _, _, test = loaders_of(tmp_path, rows=rows, eval_args={"split": {"LS": "test_only"}})
    _, history, _, items = next(iter(test))
    assert test.dataset.id2token("item_id", items).tolist() == ["x"]
    assert test.dataset.id2token("item_id", history[1]).tolist() == ["y", "z"]


def test_nothing_is_kept_back_where_items_can_be_repeated(tmp_path: Path) -> None:
    _, valid, _ = loaders_of(tmp_path, repeatable=True)
    assert next(iter(valid))[1] is None
    assert valid.seen is None


def test_all_users_are_ranked_at_once_if_the_memory_allows(tmp_path: Path) -> None:
    _, valid, _ = loaders_of(tmp_path, eval_batch_size=1)
    assert (valid.step, len(valid)) == (6, 1)
    valid.set_batch_size(2 * valid.dataset.item_num)
    assert (valid.step, len(valid)) == (2, 3)
    users = [user for batch in valid for user in batch[0]["user_id"].tolist()]
    assert users == [1, 2, 3, 4, 5, 6]


def test_features_of_users_come_with_them(tmp_path: Path) -> None:
    write_table(tmp_path / "toy", "toy.user", ("user_id:token", "age:float"), [(f"u{n}", n) for n in range(6)])
    _, valid, _ = loaders_of(tmp_path)
    assert next(iter(valid))[0]["age"].tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("mode", ["uni3", "pop3"])
def test_sampled_negatives_are_distinct_unseen_and_the_same_in_every_evaluation(mode: str, tmp_path: Path) -> None:
    train, valid, test = loaders_of(tmp_path, eval_args={"mode": mode}, eval_batch_size=8)
    assert isinstance(test, NegSampleEvalDataLoader)
    state = torch.get_rng_state()
    first, second = list(test), list(test)
    assert torch.equal(torch.get_rng_state(), state)
    assert len(first) == len(test) == 3
    for (batch, owners, rows, items), (again, *_) in zip(first, second, strict=True):
        assert torch.equal(batch["item_id"], again["item_id"])
        for place in range(2):
            own = batch[owners == place]
            user = int(own["user_id"][0])
            assert set(own["user_id"].tolist()) == {user}
            assert own["label"].tolist() == [1.0, 0.0, 0.0, 0.0]
            assert own["item_id"][:1].tolist() == items[rows == place].tolist() == list(items_of(test)[user])
            drawn = own["item_id"][1:].tolist()
            assert len(set(drawn)) == 3
            seen = items_of(train)[user] | items_of(valid)[user] | items_of(test)[user]
            assert not set(drawn) & seen
    assert not torch.equal(valid.negatives.items, test.negatives.items)


def test_the_negatives_of_an_evaluation_do_not_depend_on_its_batches(tmp_path: Path) -> None:
    _, _, test = loaders_of(tmp_path, eval_args={"mode": "uni3"}, eval_batch_size=8)
    small = torch.cat([batch["item_id"] for batch, *_ in test])
    test.set_batch_size(1000)
    assert len(test) == 1
    assert torch.equal(next(iter(test))[0]["item_id"], small)


def test_each_phase_can_have_a_mode_of_its_own(tmp_path: Path) -> None:
    _, valid, test = loaders_of(tmp_path, eval_args={"mode": {"valid": "uni3", "test": "full"}})
    assert isinstance(valid, NegSampleEvalDataLoader)
    assert isinstance(test, FullSortEvalDataLoader)


def test_rows_with_labels_come_as_they_are(tmp_path: Path) -> None:
    given = {"threshold": {"timestamp": 3}, "eval_args": {"order": "RO", "mode": "labeled", "group_by": "none"}}
    _, valid, _ = loaders_of(tmp_path, Context, metrics=["AUC"], valid_metric="AUC", eval_batch_size=4, **given)
    batch, *rest = next(iter(valid))
    assert rest == [None, None, None]
    assert len(batch) == 4
    assert set(batch["label"].tolist()) <= {0.0, 1.0}


def test_labels_that_are_asked_for_must_be_there(tmp_path: Path) -> None:
    given = {"eval_args": {"mode": "labeled"}, "metrics": ["AUC"], "valid_metric": "AUC"}
    with pytest.raises(
        ConfigError, match="but LABEL_FIELD='label' is no field of the interactions; load it, or make it"
    ):
        loaders_of(tmp_path, Context, **given)


def test_sequential_rows_are_ranked_one_by_one(tmp_path: Path) -> None:
    left = {"split": {"LS": "valid_and_test"}}
    _, _, test = loaders_of(tmp_path, Sequential, loss_type="CE", eval_args=left)
    interaction, history, rows, items = next(iter(test))
    assert history is None
    assert rows.tolist() == [0, 1, 2, 3, 4, 5]
    assert torch.equal(items, interaction["item_id"])
    assert interaction["item_length"].tolist() == [7] * 6


def test_sequential_models_can_be_kept_from_recommending_what_was_seen(tmp_path: Path) -> None:
    left = {"split": {"LS": "valid_and_test"}}
    given = {"loss_type": "CE", "repeatable": False, "MAX_ITEM_LIST_LENGTH": 2}
    _, _, test = loaders_of(tmp_path, Sequential, eval_args=left, **given)
    interaction, history, _, items = next(iter(test))
    for row, seen in enumerate(by_row(*history, 6)):
        assert len(seen) == 7
        assert set(interaction["item_id_list"][row].tolist()) <= seen
        assert int(items[row]) not in seen


def test_sequential_rows_are_ranked_among_drawn_items_with_their_histories(tmp_path: Path) -> None:
    left = {"split": {"LS": "valid_and_test"}, "mode": "uni4"}
    _, valid, _ = loaders_of(tmp_path, Sequential, loss_type="CE", eval_args=left, eval_batch_size=10)
    assert valid.step == 2
    batch, owners, rows, items = next(iter(valid))
    assert len(batch) == 10
    assert owners.tolist() == [0] * 5 + [1] * 5
    assert batch["item_id"][[0, 5]].tolist() == items.tolist()
    assert (batch["item_id_list"][:5] == batch["item_id_list"][0]).all()
    assert rows.tolist() == [0, 1]


COLD = [
    ("a", "x", 1, 1),
    ("a", "y", 1, 2),
    ("b", "x", 1, 3),
    ("b", "z", 1, 4),
    ("cold", "z", 1, 9),
    ("cold", "x", 1, 8),
]


def test_a_user_with_no_training_rows_is_an_error_before_training(tmp_path: Path) -> None:
    args = {"split": {"RS": [4, 1, 1]}, "group_by": "none"}
    with pytest.raises(DataError) as error:
        loaders_of(tmp_path, rows=COLD, eval_args=args)
    assert str(error.value) == (
        "users 'cold' of the valid part have no training row; set cold_users to 'drop' to leave them out, or to 'keep' "
        "to evaluate them all the same, or eval_args.group_by to 'user'"
    )


def test_users_with_no_training_rows_are_dropped_or_kept_if_the_settings_say_so(tmp_path: Path) -> None:
    args = {"split": {"RS": [4, 0, 2]}, "group_by": "none"}
    _, _, kept = loaders_of(tmp_path, rows=COLD, eval_args=args, cold_users="keep")
    assert kept.dataset.id2token("user_id", kept.queries).tolist() == ["cold"]
    with pytest.raises(
        DataError, match="no user of the test part has a training row, so that cold_users='drop' leaves"
    ):
        loaders_of(tmp_path, rows=COLD, eval_args=args, cold_users="drop")
    more = [*COLD, ("a", "z", 1, 10)]
    _, _, some = loaders_of(tmp_path, rows=more, eval_args={**args, "split": {"RS": [4, 0, 3]}}, cold_users="drop")
    assert some.dataset.id2token("user_id", some.queries).tolist() == ["a"]


def test_a_list_longer_than_there_are_items_is_an_error_before_training(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"topk=\[1, 13\]: 13 is more than the 12 items of 'toy'; choose a smaller k"):
        loaders_of(tmp_path, topk=[1, 13])


def test_ranking_needs_users_and_items(tmp_path: Path) -> None:
    write_table(tmp_path / "toy", "toy.inter", ("site:token", "label:float"), [("a", 1), ("b", 0), ("c", 1), ("d", 0)])
    none: dict[str, Any] = {"USER_ID_FIELD": None, "ITEM_ID_FIELD": None, "train_neg_sample_args": None}
    config = toy_config(tmp_path, Context, **none, metrics=["MRR"], valid_metric="MRR@1", eval_args={"mode": "full"})
    with pytest.raises(ConfigError, match="this needs ITEM_ID_FIELD, which is not set"):
        data_preparation(config, create_dataset(config))


def test_labels_that_are_tokens_are_an_error(tmp_path: Path) -> None:
    config = Config(Context, "toy", config_dict={"topk": [1]})
    table = {"user_id": list("aabb"), "item_id": list("xyxy"), "label": ["yes", "no", "yes", "no"]}
    with pytest.raises(ConfigError) as error:
        data_preparation(config, create_dataset(config, inter=table))
    assert str(error.value) == (
        "eval_args.mode is 'labeled', but LABEL_FIELD='label' has the type 'token'; labels are numbers, of the type "
        "'float'"
    )


def test_users_without_training_rows_in_data_that_is_split_are_not_told_to_split_otherwise() -> None:
    config = Config(General, "toy", config_dict={"topk": [1], "valid_metric": "MRR@1"})
    parts = [{"user_id": ["a", "a"], "item_id": ["x", "y"]}, {"user_id": ["b"], "item_id": ["x"]}]
    with pytest.raises(DataError, match=r"to 'keep' to evaluate them all the same$"):
        data_preparation(config, create_dataset(config, inter=parts))


def test_looking_at_a_batch_of_an_evaluation_takes_it_from_nobody(tmp_path: Path) -> None:
    _, valid, _ = loaders_of(tmp_path)
    next(iter(valid))
    assert len(list(valid)) == len(valid)
