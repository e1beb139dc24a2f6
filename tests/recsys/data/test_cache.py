"""Prepared data on disk: found again by its content and settings, and never a pickle."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.recsys.data.small import General, Sequential, toy_config, toy_dataset, write_table
from treadle.recsys import Config, Dataset, create_dataset, data_preparation

ROWS = [(f"u{user}", f"i{(user + step) % 7}", step, step) for user in range(4) for step in range(6)]


def write_data(folder: Path) -> None:
    write_table(folder / "toy", "toy.item", ("item_id:token", "tags:token_seq", "price:float"), [("i1", "p ä", 2)])
    rows = [("i1", "1 2"), ("new", "3 4")]
    write_table(folder / "toy", "toy.ent", ("ent_id:token", "ent_emb:float_seq"), rows)


def cached(folder: Path, **given: Any) -> dict[str, Any]:
    return {
        "save_dataset": True,
        "checkpoint_dir": str(folder / "saved"),
        "additional_feat_suffix": ["ent"],
        "alias_of_item_id": ["ent_id"],
        "preload_weight": {"ent_id": "ent_emb"},
        "filter_inter_by_user_or_item": False,
        **given,
    }


def files(folder: Path) -> list[Path]:
    return sorted((folder / "saved").glob("*"))


def same(first: Dataset, second: Dataset) -> None:
    for suffix in ("inter", "item", "ent"):
        one, other = (getattr(data, f"{suffix}_feat") for data in (first, second))
        assert one.columns == other.columns
        assert all(torch.equal(one[name], other[name]) and one[name].dtype == other[name].dtype for name in one)
    for name in ("field2type", "field2source", "field2seqlen", "field2bucketnum"):
        assert getattr(first, name) == getattr(second, name)
    for name in first.field2id_token:
        assert first.field2id_token[name].tolist() == second.field2id_token[name].tolist()
    assert (first.get_preload_weight("ent_id") == second.get_preload_weight("ent_id")).all()


@pytest.fixture
def no_preparing(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function after which nothing can be prepared any more."""

    def forbid() -> None:
        def refuse(*_: Any) -> None:
            raise AssertionError("the data set is prepared again")

        monkeypatch.setattr("treadle.recsys.data.dataset.prepare", refuse)

    return forbid


def test_a_kept_data_set_is_found_again_and_is_the_same(tmp_path: Path, no_preparing: Any) -> None:
    write_data(tmp_path)
    first = toy_dataset(tmp_path, ROWS, **cached(tmp_path))
    assert len(files(tmp_path)) == 1
    no_preparing()
    second = create_dataset(toy_config(tmp_path, **cached(tmp_path)))
    same(first, second)
    assert second.id2token("tags", [1, 2]).tolist() == ["p", "ä"]
    assert second.field2id_token["ent_id"] is not None


def test_other_content_and_other_settings_are_other_data_sets(tmp_path: Path) -> None:
    write_data(tmp_path)
    toy_dataset(tmp_path, ROWS, **cached(tmp_path))
    toy_dataset(tmp_path, ROWS[:-1], **cached(tmp_path))
    toy_dataset(tmp_path, ROWS, **cached(tmp_path, user_inter_num_interval="[2,inf)"))
    toy_dataset(tmp_path, ROWS, **cached(tmp_path, normalize_all=True))
    assert len(files(tmp_path)) == 4
    toy_dataset(tmp_path, ROWS, **cached(tmp_path, learning_rate=0.5, seed=1, eval_args={"order": "TO"}))
    assert len(files(tmp_path)) == 4


def test_a_file_that_comes_or_goes_makes_another_data_set(tmp_path: Path) -> None:
    toy_dataset(tmp_path, ROWS, save_dataset=True, checkpoint_dir=str(tmp_path / "saved"))
    write_table(tmp_path / "toy", "toy.user", ("user_id:token", "age:float"), [("u1", 3)])
    toy_dataset(
        tmp_path, ROWS, save_dataset=True, checkpoint_dir=str(tmp_path / "saved"), filter_inter_by_user_or_item=True
    )
    assert len(files(tmp_path)) == 2


def test_tables_in_memory_are_told_apart_by_their_content(tmp_path: Path, no_preparing: Any) -> None:
    table = {"user_id": ["a", "b"], "item_id": ["x", "y"]}
    config = Config(General, "toy", config_dict={"save_dataset": True, "checkpoint_dir": str(tmp_path / "saved")})
    create_dataset(config, inter=table)
    create_dataset(config, inter={**table, "item_id": ["x", "x"]})
    assert len(files(tmp_path)) == 2
    no_preparing()
    assert create_dataset(config, inter=table).item_num == 3


def test_a_data_set_in_parts_stays_in_parts(tmp_path: Path, no_preparing: Any) -> None:
    parts = [{"user_id": ["a", "b"], "item_id": ["x", "y"]}, {"user_id": ["a"], "item_id": ["y"]}]
    config = Config(General, "toy", config_dict={"save_dataset": True, "checkpoint_dir": str(tmp_path / "saved")})
    create_dataset(config, inter=parts)
    no_preparing()
    assert [part is not None for part in create_dataset(config, inter=parts).build()] == [True, False, True]


def test_sequential_data_is_kept_before_it_is_cut_into_rows(tmp_path: Path, no_preparing: Any) -> None:
    given = {"save_dataset": True, "checkpoint_dir": str(tmp_path / "saved"), "loss_type": "CE"}
    toy_dataset(tmp_path, ROWS, Sequential, **given)
    no_preparing()
    again = create_dataset(toy_config(tmp_path, Sequential, **given, MAX_ITEM_LIST_LENGTH=3))
    assert again[[0]]["item_id_list"].shape == (1, 3)


def test_a_chosen_file_is_used_if_it_fits_and_replaced_if_not(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "mine.safetensors"
    given = {"save_dataset": True, "dataset_save_path": str(path)}
    toy_dataset(tmp_path, ROWS, **given)
    before = path.read_bytes()
    toy_dataset(tmp_path, ROWS, **given)
    assert path.read_bytes() == before
    with caplog.at_level(logging.INFO):
        toy_dataset(tmp_path, ROWS[:-2], **given)
    assert f"{path} is not used: it was made of other data, or with other settings" in caplog.messages
    assert path.read_bytes() != before


def test_a_damaged_file_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    given = {"save_dataset": True, "checkpoint_dir": str(tmp_path / "saved")}
    first = toy_dataset(tmp_path, ROWS, **given)
    (file,) = files(tmp_path)
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        second = toy_dataset(tmp_path, ROWS, **given)
    assert "is not used" in caplog.text
    assert torch.equal(first.inter_feat["item_id"], second.inter_feat["item_id"])


def test_a_pickle_in_the_place_of_the_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.pth"
    torch.save({"key": "anything"}, path)
    assert len(toy_dataset(tmp_path, ROWS, dataset_save_path=str(path))) == len(ROWS)


def test_without_the_setting_nothing_is_written(tmp_path: Path) -> None:
    toy_dataset(tmp_path, ROWS, checkpoint_dir=str(tmp_path / "saved"))
    assert not (tmp_path / "saved").exists()


def test_a_kept_split_is_used_again_as_long_as_data_seed_and_split_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"save_dataloaders": True, "checkpoint_dir": str(tmp_path / "saved")}
    dataset = toy_dataset(tmp_path, ROWS, **given)
    first = data_preparation(dataset.config, dataset)[0].dataset.inter_feat
    assert [file.name for file in files(tmp_path)] == ["toy-for-General-split.safetensors"]

    def refuse(*_: Any) -> None:
        raise AssertionError("the data is divided again")

    with monkeypatch.context() as patch:
        patch.setattr(Dataset, "split_rows", refuse)
        second = data_preparation(dataset.config, dataset)[0].dataset.inter_feat
        assert torch.equal(first["item_id"], second["item_id"])
        other = toy_dataset(tmp_path, ROWS, seed=3, **given)
        with pytest.raises(AssertionError, match="divided again"):
            data_preparation(other.config, other)
    left_out = toy_dataset(tmp_path, ROWS, **given, eval_args={"split": {"LS": "test_only"}})
    assert data_preparation(left_out.config, left_out)[1] is None
    assert data_preparation(left_out.config, left_out)[1] is None


def test_the_same_content_prepared_twice_is_the_same_to_the_bit(tmp_path: Path) -> None:
    write_data(tmp_path)
    given = cached(tmp_path, save_dataset=False)
    same(toy_dataset(tmp_path, ROWS, **given), toy_dataset(tmp_path, ROWS, **given))
