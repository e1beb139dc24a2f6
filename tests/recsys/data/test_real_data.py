"""Real data sets: the counts that others have published, and order that 32 bits would lose."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.recsys.data.small import Context, General, Sequential, real_folder
from treadle.recsys import (
    Config,
    Dataset,
    KnowledgeBasedDataset,
    SequentialDataset,
    create_dataset,
    data_preparation,
)
from treadle.recsys.data.tables.text_files import read_interactions

RECBOLE_SPLIT = [(60_115_621_070, 1_617_862), (7_106_439_717, 706_345), (7_106_520_465, 593_925)]
"""Sum and exclusive or of user * 1683 + item over the parts that RecBole 1.2.1 makes with its default seed, 2020."""


@pytest.fixture
def ml_100k() -> dict[str, Any]:
    return {"data_path": str(real_folder("ml-100k").parent)}


def prepared(model: Any, given: dict[str, Any], name: str = "ml-100k") -> tuple[Dataset, Any]:
    config = Config(model, name, config_dict=given)
    dataset = create_dataset(config)
    return dataset, data_preparation(config, dataset)


def test_ml_100k_has_the_counts_that_recbole_reports(ml_100k: dict[str, Any]) -> None:
    dataset, (train, valid, test) = prepared(General, ml_100k)
    assert (dataset.user_num, dataset.item_num, dataset.inter_num) == (944, 1683, 100_000)
    assert [len(loader.dataset) for loader in (train, valid, test)] == [80_808, 9_596, 9_596]
    assert (train.step, len(train), valid.sample_size) == (2048, 40, 943)
    assert dataset.field2id_token["user_id"][:3].tolist() == ["[PAD]", "196", "186"]


def test_the_default_split_of_ml_100k_is_the_one_that_recbole_makes_with_the_same_seed(ml_100k: dict[str, Any]) -> None:
    _, loaders = prepared(General, ml_100k)
    found = []
    for loader in loaders:
        users, items = loader.dataset.user_item_pairs()
        keys = (users * 1683 + items).numpy()
        found.append((int(keys.sum()), int(np.bitwise_xor.reduce(keys))))
    assert found == RECBOLE_SPLIT


def test_context_models_on_ml_100k_have_labels_and_features(ml_100k: dict[str, Any]) -> None:
    dataset, (train, _, _) = prepared(Context, ml_100k)
    assert len(train.dataset) == 80_000
    assert dataset.inter_feat["label"].sum() == 55_375
    batch = train.batch_at(0, 0)
    assert batch["class"].shape == (2048, 6)
    assert set(dataset.fields()) == {
        *("user_id", "item_id", "timestamp", "label", "age", "gender", "occupation", "release_year", "class")
    }


def test_sequential_models_on_ml_100k_have_recboles_rows(ml_100k: dict[str, Any]) -> None:
    dataset, (train, valid, test) = prepared(Sequential, {**ml_100k, "loss_type": "CE"})
    assert isinstance(dataset, SequentialDataset)
    assert [len(loader.dataset) for loader in (train, valid, test)] == [97_171, 943, 943]


def test_every_user_of_ml_100k_is_in_the_order_of_time_normalised_or_not(ml_100k: dict[str, Any]) -> None:
    raw = create_dataset(Config(General, "ml-100k", config_dict={**ml_100k, "normalize_all": False}))
    times = raw.inter_feat["timestamp"].numpy()
    for scaled in (False, True):
        config = Config(Sequential, "ml-100k", config_dict={**ml_100k, "normalize_all": scaled, "loss_type": "CE"})
        dataset = create_dataset(config)
        assert isinstance(dataset, SequentialDataset)
        assert dataset.flat is not None
        order = np.lexsort((times, raw.inter_feat["user_id"].numpy()))
        assert torch.equal(dataset.flat["item_id"], raw.inter_feat["item_id"][order])
    narrow = np.lexsort((times.astype(np.float32), raw.inter_feat["user_id"].numpy()))
    assert (narrow != order).any()


def test_the_five_core_of_ml_100k_is_one(ml_100k: dict[str, Any]) -> None:
    given = {"user_inter_num_interval": "[20,inf)", "item_inter_num_interval": "[50,inf)"}
    dataset, _ = prepared(General, {**ml_100k, **given})
    assert min(dataset.user_counter.values()) >= 20
    assert min(dataset.item_counter.values()) >= 50
    assert len(dataset.user_counter) == dataset.user_num - 1


def test_the_knowledge_graph_of_ml_100k_has_its_published_size(ml_100k: dict[str, Any]) -> None:
    config = Config("CKE", "ml-100k", config_dict={**ml_100k, "load_col": None})
    dataset = create_dataset(config)
    assert isinstance(dataset, KnowledgeBasedDataset)
    assert (len(dataset.kg_feat), len(dataset.link_feat)) == (91_631, 1_598)
    # As many as in RecBole, which leaves out the same interactions.
    assert (dataset.item_num, data_preparation(config, dataset)[0].sample_size) == (1_599, 78_836)


def test_gowalla_is_read_from_its_lists_with_its_own_split() -> None:
    folder = real_folder("gowalla")
    given = {
        "data_path": str(folder.parent),
        "inter_layout": "lists",
        "benchmark_filename": ["train", "test"],
        "topk": [20],
        "valid_metric": "recall@20",
    }
    dataset, (train, valid, test) = prepared(General, given, "gowalla")
    assert (dataset.user_num, dataset.item_num) == (29_859, 40_982)
    assert valid is None
    assert (len(train.dataset), len(test.dataset)) == (810_128, 217_242)
    assert len(test.seen) == 810_128


def test_ml_1m_is_read_from_pairs_in_the_order_of_time() -> None:
    folder: Path = real_folder("ml-1m")
    given = {"data_path": str(folder), "inter_layout": "pairs", "loss_type": "CE"}
    (path,) = folder.glob("sasrec/ml-1m.txt*")
    config = Config(Sequential, "sasrec", config_dict=given)
    table = read_interactions(path, "pairs", user="user_id", item="item_id", time="timestamp")
    dataset = create_dataset(config, inter=table)
    train, valid, test = data_preparation(config, dataset)
    assert (dataset.user_num, dataset.item_num) == (6_041, 3_417)
    assert valid is not None
    assert test is not None
    assert (train.sample_size, valid.sample_size, test.sample_size) == (999_611 - 3 * 6_040, 6_040, 6_040)


def test_a_table_of_parquet_is_read() -> None:
    folder = real_folder("ml-1m")
    config = Config(General, "ml-1m", config_dict={"USER_ID_FIELD": "userID", "ITEM_ID_FIELD": "movieID"})
    dataset = create_dataset(config, inter=folder / "ratings_user_movie_pairs.parquet")
    assert (dataset.user_num, dataset.item_num, len(dataset)) == (6_041, 3_707, 1_000_209)
