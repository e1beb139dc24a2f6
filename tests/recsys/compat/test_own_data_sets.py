"""Data sets written for RecBole: their own `build`, their own `_data_filtering`, with the import line changed."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.recsys.trainer.runs import interactions, settings
from treadle.errors import ConfigError, DataError
from treadle.recsys import Config, compat, create_dataset, data_preparation, get_model, get_trainer

with compat.recbole_names():
    from recbole.data.dataset import Dataset, SequentialDataset
    from recbole.utils import FeatureSource, FeatureType


def config_of(folder: Path, model: str = "BPR", **given: Any) -> Config:
    return Config(model, "toy", config_dict=settings(folder, embedding_size=8, **given))


def made(kind: Any, config: Config, **tables: Any) -> Any:
    return kind(config, tables={"inter": interactions(), **tables})


class ByHand(Dataset):  # type: ignore[misc]
    """Divides the data itself, as RecBole's own `build` is written."""

    def build(self) -> Any:
        self._change_feat_format()
        if self.config["eval_args"]["order"] == "TO":
            self.sort(by=self.time_field)
        split = self.config["eval_args"]["split"]
        if "LS" in split:
            return self.leave_one_out(group_by=self.uid_field, leave_one_mode=split["LS"])
        if "TS" in split:
            return self.time_based_split(ratios=split["TS"], group_by=self.uid_field)
        return self.split_by_ratio(split["RS"], group_by=self.uid_field)


@pytest.mark.parametrize(
    "split", [{"RS": [0.8, 0.1, 0.1]}, {"LS": "valid_and_test"}, {"LS": "test_only"}, {"TS": [0.8, 0.1, 0.1]}]
)
def test_a_build_made_of_recboles_steps_divides_as_the_settings_do(split: dict[str, Any], tmp_path: Path) -> None:
    config = config_of(tmp_path, eval_args={"split": split, "order": "TO"}, cold_users="drop")
    parts = [loader and loader.dataset for loader in data_preparation(config, made(ByHand, config))]
    expected = [loader and loader.dataset for loader in data_preparation(config, made(Dataset, config))]
    assert [part is None for part in parts] == [part is None for part in expected]
    for part, other in zip(parts, expected, strict=True):
        if part is not None:
            assert sorted(zip(*(one.tolist() for one in part.user_item_pairs()), strict=True)) == sorted(
                zip(*(one.tolist() for one in other.user_item_pairs()), strict=True)
            )


class EveryThird(Dataset):  # type: ignore[misc]
    """Divides the data by the places of rows."""

    def build(self) -> Any:
        rows = np.arange(len(self.inter_feat))
        return [self.copy(self.inter_feat[rows % 3 == part]) for part in range(3)]


def test_parts_of_ones_own_are_trained_and_evaluated_on(tmp_path: Path) -> None:
    config = config_of(tmp_path, cold_users="keep", epochs=1)
    train, valid, test = data_preparation(config, made(EveryThird, config))
    assert [len(one.dataset) for one in (train, valid, test) if one is not None] == [96, 96, 96]
    trainer = get_trainer(config, get_model("BPR")(config, train.dataset))
    trainer.fit(train, valid, verbose=False)
    assert trainer.evaluate(test)["recall@5"] >= 0


class TwoParts(Dataset):  # type: ignore[misc]
    def build(self) -> Any:
        return super().build()[:2]


def test_a_build_that_returns_something_else_is_refused(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    with pytest.raises(DataError, match=r"TwoParts\.build returned parts of \[240, 24\] rows; it returns three"):
        data_preparation(config, made(TwoParts, config))


def test_what_cannot_be_kept_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = config_of(tmp_path, save_dataloaders=True, cold_users="keep")
    with caplog.at_level(logging.WARNING, "treadle.recsys"):
        data_preparation(config, made(EveryThird, config))
    assert "save_dataloaders keeps nothing: EveryThird.build divides the data itself" in caplog.text


class Liked(Dataset):  # type: ignore[misc]
    """Leaves out what nobody liked, before and after what the settings say."""

    def _data_filtering(self) -> None:
        self.inter_feat = self.inter_feat[self.inter_feat["rating"] >= 3]
        super()._data_filtering()
        self.inter_feat = self.inter_feat.drop(self.inter_feat.index[self.inter_feat["item_id"] == "i3"])
        self._reset_index()


def expected_rows(least: int) -> list[tuple[str, str]]:
    table = interactions()
    rows = [
        (user, item)
        for user, item, rating in zip(table["user_id"], table["item_id"], table["rating"], strict=True)
        if rating >= 3
    ]
    counts = {user: sum(one == user for one, _ in rows) for user, _ in rows}
    return [(user, item) for user, item in rows if counts[user] >= least and item != "i3"]


def rows_of(dataset: Any) -> list[tuple[str, str]]:
    users, items = dataset.user_item_pairs()
    return list(
        zip(dataset.id2token("user_id", users).tolist(), dataset.id2token("item_id", items).tolist(), strict=True)
    )


def test_a_filter_of_ones_own_sees_data_frames_and_what_it_leaves_stays(tmp_path: Path) -> None:
    config = config_of(tmp_path, user_inter_num_interval="[7,inf)")
    dataset = made(Liked, config)
    assert rows_of(dataset) == expected_rows(7)
    assert 0 < len(dataset) < len(interactions()["user_id"])
    # Ids are given afterwards, without gaps.
    assert dataset.item_num - 1 == len({item for _, item in expected_rows(7)})
    train, *_ = data_preparation(config, dataset)
    assert {"user_id", "item_id", "neg_item_id"} <= set(next(iter(train)).columns)


class StepByStep(Dataset):  # type: ignore[misc]
    """Calls RecBole's filters one by one, and adds a column of its own."""

    def _data_filtering(self) -> None:
        self._filter_nan_user_or_item()
        self._remove_duplication()
        self.inter_feat["late"] = (self.inter_feat["timestamp"] > 5).astype(float)
        self.set_field_property("late", FeatureType.FLOAT, FeatureSource.INTERACTION, 1)
        self._filter_by_field_value()
        self._filter_inter_by_user_or_item()
        self._filter_by_inter_num()


def test_the_filters_can_be_called_one_by_one(tmp_path: Path) -> None:
    config = config_of(tmp_path, val_interval={"rating": "[3,inf)"}, user_inter_num_interval="[7,inf)")
    items = {"item_id": [f"i{item}" for item in range(30)], "tags": [["a", "b"][: item % 3] for item in range(30)]}
    dataset, plain = made(StepByStep, config, item=items), made(Dataset, config, item=items)
    assert rows_of(dataset) == rows_of(plain)
    assert dataset.inter_feat["late"].tolist() == (dataset.inter_feat["timestamp"] > 5).float().tolist()
    assert dataset.item_feat["tags"].tolist() == plain.item_feat["tags"].tolist()


class WithoutType(Dataset):  # type: ignore[misc]
    def _data_filtering(self) -> None:
        self.inter_feat["new"] = 1.0


def test_a_column_without_a_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"_data_filtering added the column 'new' to toy\.inter; say what it holds"):
        made(WithoutType, config_of(tmp_path))


class Filling(Dataset):  # type: ignore[misc]
    def _fill_nan(self) -> None:
        raise AssertionError("nobody calls it")


def test_an_override_that_nothing_would_call_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Filling\._fill_nan overrides a step of RecBole's that nothing calls here"):
        made(Filling, config_of(tmp_path))


def test_filters_are_refused_once_the_data_is_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="rows are filtered while a data set is made"):
        made(Dataset, config_of(tmp_path))._data_filtering()


class LikedSequences(SequentialDataset):  # type: ignore[misc]
    def _data_filtering(self) -> None:
        super()._data_filtering()
        self.inter_feat = self.inter_feat[self.inter_feat["rating"] >= 3]


def test_a_sequential_data_set_of_ones_own_is_that_of_a_model(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class GRU4Rec(get_model("GRU4Rec")):  # type: ignore[misc]
        dataset_class = LikedSequences

    config = Config(GRU4Rec, "toy", config_dict=settings(tmp_path, save_dataset=True))
    with caplog.at_level(logging.WARNING, "treadle.recsys"):
        dataset = create_dataset(config, inter=interactions())
    assert isinstance(dataset, LikedSequences)
    assert len(dataset) < len(create_dataset(Config("GRU4Rec", "toy"), inter=interactions()))
    assert data_preparation(config, dataset)[0].sample_size > 0
    assert "save_dataset keeps nothing: LikedSequences has its own _data_filtering" in caplog.text


class LongHistories(SequentialDataset):  # type: ignore[misc]
    """Makes the columns with histories itself, as RecBole does it, of those alone that are long enough."""

    def data_augmentation(self) -> None:
        self._aug_presets()
        self._check_field("uid_field", "time_field")
        self.sort(by=[self.uid_field, self.time_field], ascending=True)
        users, start = self.inter_feat[self.uid_field].tolist(), 0
        rows: list[tuple[int, int]] = []
        for place, user in enumerate(users):
            start = start if place and users[place - 1] == user else place
            if place - start >= 3:
                rows.append((max(start, place - self.max_item_list_len), place))
        columns = {self.item_list_length_field: torch.tensor([last - first for first, last in rows])}
        for field in self.inter_feat:
            if field != self.uid_field:
                listed = getattr(self, f"{field}_list_field")
                values = self.inter_feat[field]
                columns[listed] = torch.zeros(len(rows), self.field2seqlen[listed], dtype=values.dtype)
                for row, (first, last) in enumerate(rows):
                    columns[listed][row][: last - first] = values[first:last]
        self.inter_feat = self.inter_feat[np.array([last for _, last in rows])]
        self.inter_feat.update(columns)


def test_histories_of_ones_own_are_trained_and_evaluated_on(tmp_path: Path) -> None:
    small = {"hidden_size": 8, "MAX_ITEM_LIST_LENGTH": 5, "train_all_positions": False, "epochs": 1}
    config = config_of(tmp_path, "GRU4Rec", **small)
    dataset, plain = made(LongHistories, config), made(SequentialDataset, config)
    long = plain[torch.arange(len(plain))]
    place = torch.cat([torch.arange(1, 12) for _ in range(24)])
    assert dataset.inter_feat["item_id"].equal(long["item_id"][place >= 3])
    assert dataset.inter_feat["item_id_list"].equal(long["item_id_list"][place >= 3])
    train, valid, test = data_preparation(config, dataset)
    assert [len(one.dataset) for one in (train, valid, test) if one is not None] == [168, 24, 24]
    trainer = get_trainer(config, get_model("GRU4Rec")(config, train.dataset))
    trainer.fit(train, valid, verbose=False)
    assert trainer.evaluate(test)["recall@5"] >= 0


def test_a_field_that_is_not_set_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing_field of Dataset is not set"):
        made(Dataset, config_of(tmp_path))._check_field("uid_field", "nothing_field")
