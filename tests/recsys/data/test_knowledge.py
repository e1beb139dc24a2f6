"""Data with a knowledge graph: one space of ids, triples and links, batches of both found by their place."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.guards.no_sync import no_sync
from tests.recsys.data.small import settings, toy_dataset, write_table
from treadle.errors import ConfigError, DataError
from treadle.recsys import (
    Config,
    InputType,
    KGDataLoaderState,
    KnowledgeBasedDataset,
    ModelType,
    create_dataset,
    data_preparation,
)
from treadle.recsys.data.dataloader import KnowledgeBasedDataLoader

ROWS = [("u", "i1", 1, 1), ("u", "i2", 1, 2), ("v", "i3", 0, 3), ("v", "i1", 1, 4), ("w", "i2", 1, 5)]
TRIPLES = [
    ("m1", "made_by", "m9"),
    ("m2", "made_by", "m9"),
    ("m9", "lives_in", "m7"),
    ("m1", "like", "m2"),
    ("", "x", "m1"),
]
LINKS = [("i2", "m2"), ("i1", "m1"), ("gone", "m9"), ("i3", "unknown")]
KG = ("head_id:token", "relation_id:token", "tail_id:token")


class Pairs:
    """A model of pairs and triples."""

    type = ModelType.KNOWLEDGE
    input_type = InputType.PAIRWISE


class Points:
    """A model of rows with labels and triples."""

    type = ModelType.KNOWLEDGE
    input_type = InputType.POINTWISE


def dataset_of(folder: Path, model: Any = Pairs, triples: Any = TRIPLES, links: Any = LINKS, **given: Any) -> Any:
    write_table(folder / "toy", "toy.kg", KG, triples)
    write_table(folder / "toy", "toy.link", ("item_id:token", "entity_id:token"), links)
    return toy_dataset(folder, ROWS, model, **given)


def triples_of(dataset: KnowledgeBasedDataset) -> list[tuple[str, ...]]:
    names = ("head_id", "relation_id", "tail_id")
    return list(zip(*(dataset.id2token(name, dataset.kg_feat[name]) for name in names), strict=True))


# One space of ids ---------------------------------------------------------------------------------------------


def test_an_item_has_one_id_as_item_and_as_entity_and_other_entities_follow(tmp_path: Path) -> None:
    dataset = dataset_of(tmp_path)
    assert isinstance(dataset, KnowledgeBasedDataset)
    assert dataset.field2id_token["item_id"].tolist() == ["[PAD]", "i1", "i2"]
    assert dataset.field2id_token["entity_id"].tolist() == ["[PAD]", "m1", "m2", "m9", "m7"]
    assert (dataset.item_num, dataset.entity_num) == (3, 5)
    assert triples_of(dataset) == TRIPLES[:4]
    assert dataset.head_entities.tolist() == [1, 2, 3, 1]
    assert dataset.tail_entities.tolist() == [3, 3, 4, 2]


def test_relations_are_numbered_as_they_appear_and_the_last_is_that_of_users_and_items(tmp_path: Path) -> None:
    dataset = dataset_of(tmp_path)
    known = ["[PAD]", "made_by", "lives_in", "like", "[UI-Relation]"]
    assert dataset.field2id_token["relation_id"].tolist() == known
    assert (dataset.relation_num, dataset.user_item_relation) == (5, 4)
    assert dataset.relations.tolist() == [1, 1, 2, 3]


def test_interactions_with_items_that_are_no_entity_are_left_out_or_kept(tmp_path: Path) -> None:
    assert len(dataset_of(tmp_path)) == 4
    kept = dataset_of(tmp_path, kg_unlinked_items="keep")
    assert len(kept) == 5
    assert kept.field2id_token["entity_id"].tolist() == ["[PAD]", "m1", "m2", "[item:i3]", "m9", "m7"]
    with pytest.raises(ConfigError, match=r"kg_unlinked_items='maybe' does not exist; there are \['drop', 'keep'\]"):
        dataset_of(tmp_path, kg_unlinked_items="maybe")
    with pytest.raises(DataError, match=r"no item of toy.inter is linked to an entity of the graph; look at toy.link"):
        dataset_of(tmp_path, links=[("i1", "nobody")])


def test_interactions_are_counted_before_those_without_an_entity_are_left_out_as_in_recbole(tmp_path: Path) -> None:
    # v has two interactions, one of them with an item that is no entity; w has one.
    dataset = dataset_of(tmp_path, user_inter_num_interval="[2,inf)")
    users, items = dataset.user_item_pairs()
    pairs = zip(dataset.id2token("user_id", users), dataset.id2token("item_id", items), strict=True)
    assert [tuple(map(str, pair)) for pair in pairs] == [("u", "i1"), ("u", "i2"), ("v", "i1")]


def test_features_of_items_that_are_no_entity_are_left_out_too(tmp_path: Path) -> None:
    items = [("i3", 3.0), ("i2", 2.0), ("i1", 1.0)]
    write_table(tmp_path / "toy", "toy.item", ("item_id:token", "price:float"), items)
    dataset = dataset_of(tmp_path)
    assert dataset.item_num == 3
    assert dataset.item_feat["price"].tolist()[1:] == [1.0, 2.0]


def test_of_two_items_that_are_one_entity_the_first_is_it(tmp_path: Path) -> None:
    dataset = dataset_of(tmp_path, links=[("i2", "m1"), ("i1", "m1"), ("i3", "m2")])
    assert dataset.id2token("item_id", dataset.head_entities[0]) == "i2"
    pairs = zip(dataset.link_feat["item_id"].tolist(), dataset.link_feat["entity_id"].tolist(), strict=True)
    assert sorted(pairs) == [(1, 2), (2, 2), (3, 3)]


def test_every_triple_can_be_read_backwards_too(tmp_path: Path) -> None:
    dataset = dataset_of(tmp_path, kg_reverse_r=True)
    assert triples_of(dataset)[4:] == [(tail, f"{relation}_r", head) for head, relation, tail in TRIPLES[:4]]
    assert dataset.relation_num == 8


def test_rare_entities_and_relations_are_left_out_until_all_are_frequent(tmp_path: Path) -> None:
    dataset = dataset_of(tmp_path, entity_kg_num_interval="[2,inf)")
    assert triples_of(dataset) == [TRIPLES[0], TRIPLES[1], TRIPLES[3]]
    assert triples_of(dataset_of(tmp_path, relation_kg_num_interval="[2,inf)")) == TRIPLES[:2]
    with pytest.raises(DataError, match=r"no triple of toy.kg is left: 4 are read, none fits entity_kg_num_interval"):
        dataset_of(tmp_path, entity_kg_num_interval="[9,inf)")


def test_a_graph_that_is_not_there_or_lacks_a_column_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"toy\.kg is not there; a knowledge graph needs it"):
        toy_dataset(tmp_path, ROWS, Pairs)
    write_table(tmp_path / "toy", "toy.link", ("item_id:token", "entity_id:token"), LINKS)
    write_table(tmp_path / "toy", "toy.kg", ("head_id:token", "tail_id:token"), [("a", "b")])
    with pytest.raises(DataError, match=r"names the field 'relation_id' of toy\.kg, which is not there"):
        toy_dataset(tmp_path, ROWS, Pairs)
    write_table(tmp_path / "toy", "toy.kg", ("head_id:token", "relation_id:float", "tail_id:token"), [("a", 1, "b")])
    with pytest.raises(DataError, match=r"field 'relation_id' of toy\.kg holds float; it must hold a token"):
        toy_dataset(tmp_path, ROWS, Pairs)
    write_table(tmp_path / "toy", "toy.kg", KG, [("", "x", "m1")])
    with pytest.raises(DataError, match=r"toy\.kg has no rows"):
        toy_dataset(tmp_path, ROWS, Pairs)


def test_tables_in_memory_and_data_that_was_kept_are_the_same(tmp_path: Path) -> None:
    from_files = dataset_of(tmp_path)
    columns = {
        name: [row[place] for row in TRIPLES[:4]] for place, name in enumerate(("head_id", "relation_id", "tail_id"))
    }
    link = {"item_id": [row[0] for row in LINKS], "entity_id": [row[1] for row in LINKS]}
    inter = {
        name: [row[place] for row in ROWS] for place, name in enumerate(("user_id", "item_id", "rating", "timestamp"))
    }
    given = settings(tmp_path, save_dataset=True, checkpoint_dir=str(tmp_path / "kept"))
    config = Config(Pairs, "toy", config_dict=given)
    made, found = (create_dataset(config, inter=inter, kg=columns, link=link) for _ in range(2))
    assert len(list((tmp_path / "kept").iterdir())) == 1
    for other in (made, found):
        assert isinstance(other, KnowledgeBasedDataset)
        assert triples_of(other) == triples_of(from_files)
        assert other.link_feat["entity_id"].tolist() == from_files.link_feat["entity_id"].tolist()


def test_parts_that_come_split_lose_their_own_rows(tmp_path: Path) -> None:
    inter = [
        {"user_id": ["u", "u", "v"], "item_id": ["i1", "i3", "i2"]},
        {"user_id": ["v", "u"], "item_id": ["i3", "i2"]},
    ]
    write_table(tmp_path / "toy", "toy.kg", KG, TRIPLES)
    write_table(tmp_path / "toy", "toy.link", ("item_id:token", "entity_id:token"), LINKS)
    dataset = create_dataset(Config(Pairs, "toy", config_dict=settings(tmp_path)), inter=inter)
    assert [None if part is None else len(part) for part in dataset.build()] == [2, None, 1]


def test_a_general_model_is_not_given_a_graph(tmp_path: Path) -> None:
    from tests.recsys.data.small import toy_config

    with pytest.raises(ConfigError, match="a table is handed over as 'kg'; there are inter, user, item and the names"):
        create_dataset(toy_config(tmp_path), inter={"user_id": ["u"], "item_id": ["i"]}, kg={})


# Graphs -------------------------------------------------------------------------------------------------------


def test_the_collaborative_graph_joins_users_and_items_both_ways(tmp_path: Path) -> None:
    dataset = dataset_of(tmp_path)
    heads, relations, tails = dataset.collaborative_triples()
    users, items = [1, 1, 2, 3], [1, 2, 1, 2]
    shifted = [item + dataset.user_num for item in items]
    assert heads.tolist() == [*users, *shifted, *(dataset.head_entities + 4).tolist()]
    assert tails.tolist() == [*shifted, *users, *(dataset.tail_entities + 4).tolist()]
    assert relations.tolist() == [4] * 8 + [1, 1, 2, 3]


def test_interactions_with_a_label_of_zero_are_no_edges_and_doubles_are_one(tmp_path: Path) -> None:
    dataset = dataset_of(tmp_path, kg_unlinked_items="keep", threshold={"rating": 1})
    assert len(dataset) == 5
    assert [part.tolist() for part in dataset.positive_pairs()] == [[1, 1, 2, 3], [1, 2, 1, 2]]
    doubled = dataset.copy(dataset.inter_feat[torch.tensor([0, 0, 1])])
    assert [part.tolist() for part in doubled.positive_pairs()] == [[1, 1], [1, 2]]


def test_graphs_are_matrices_with_or_without_relations(tmp_path: Path) -> None:
    dataset = dataset_of(tmp_path)
    assert dataset.kg_graph("csr").toarray().sum() == 4
    relations = dataset.kg_graph(value_field="relation_id")
    assert relations.shape == (5, 5)
    assert relations.toarray()[3, 4] == 2
    whole = dataset.ckg_graph(form="coo", value_field="relation_id").toarray()
    assert whole.shape == (9, 9)
    assert whole[1, 4 + 1] == whole[4 + 1, 1] == 4
    with pytest.raises(ConfigError, match=r"form='dgl' does not exist; there are \['coo', 'csr'\]"):
        dataset.kg_graph("dgl")
    with pytest.raises(ConfigError, match="value_field='rating': a triple has no value but its 'relation_id'"):
        dataset.ckg_graph(value_field="rating")


def test_the_description_counts_triples(tmp_path: Path) -> None:
    assert repr(dataset_of(tmp_path)).endswith("4 triples of 4 entities, items included")


# Batches ------------------------------------------------------------------------------------------------------

LOADED = {"train_batch_size": 3, "eval_args": {"split": {"RS": [1, 0, 0]}, "group_by": "none"}}


def loader_of(folder: Path, model: Any = Pairs, **given: Any) -> KnowledgeBasedDataLoader:
    dataset = dataset_of(folder, model, **{**LOADED, "kg_unlinked_items": "keep", **given})
    loader = data_preparation(dataset.config, dataset)[0]
    assert isinstance(loader, KnowledgeBasedDataLoader)
    return loader


def rows_of(batch: Any) -> list[tuple[int, ...]]:
    return list(zip(*(batch[name].tolist() for name in ("head_id", "relation_id", "tail_id")), strict=True))


def test_triples_come_once_an_epoch_each_with_an_entity_that_is_no_tail_of_its_head(tmp_path: Path) -> None:
    loader = loader_of(tmp_path).part(KGDataLoaderState.KG)
    assert (len(loader), loader.sample_size) == (2, 4)
    known = {(head, tail) for head, _, tail in rows_of(loader.dataset.kg_feat)}
    orders = []
    for epoch in range(8):
        batches = [loader.batch_at(epoch, index) for index in range(2)]
        orders.append([row for batch in batches for row in rows_of(batch)])
        for batch in batches:
            drawn = zip(batch["head_id"].tolist(), batch["neg_tail_id"].tolist(), strict=True)
            assert not known & set(drawn)
            assert batch["neg_tail_id"].min() > 0
    assert all(sorted(order) == sorted(orders[0]) for order in orders)
    assert len({tuple(order) for order in orders}) > 1


def test_a_batch_of_both_has_as_many_triples_as_rows_and_goes_round_the_graph(tmp_path: Path) -> None:
    loader = loader_of(tmp_path, train_batch_size=5)
    batch = loader.batch_at(0, 0)
    assert {name: len(column) for name, column in batch.interaction.items()} == dict.fromkeys(batch.columns, 5)
    rows = rows_of(batch)
    assert sorted(rows[:4]) == sorted(rows_of(loader.dataset.kg_feat))
    assert rows[4] in rows[:4]


def test_point_wise_rows_have_a_triple_each_too(tmp_path: Path) -> None:
    loader = loader_of(tmp_path, Points, train_batch_size=6)
    batch = loader.batch_at(0, 0)
    assert len(batch["label"]) == len(batch["head_id"]) == 6
    assert batch["label"].tolist() == [1, 1, 1, 0, 0, 0]


def test_modes_give_interactions_triples_or_both(tmp_path: Path) -> None:
    loader = loader_of(tmp_path)
    found = {}
    for state in KGDataLoaderState:
        loader.set_mode(state)
        found[state] = (loader.sample_size, {len(batch.columns) for batch in loader})
    assert found == {
        KGDataLoaderState.RSKG: (5, {9}),
        KGDataLoaderState.RS: (5, {5}),
        KGDataLoaderState.KG: (4, {4}),
    }
    loader.set_batch_size(2)
    assert len(loader) == 2
    assert loader.part(KGDataLoaderState.RSKG) is loader
    assert loader.state is KGDataLoaderState.RSKG


@pytest.mark.parametrize("state", KGDataLoaderState, ids=str)
def test_the_shares_of_processes_are_the_batch_of_one(tmp_path: Path, state: KGDataLoaderState) -> None:
    loader = loader_of(tmp_path).part(state)
    for index in range(len(loader)):
        whole = loader.batch_at(3, index)
        shares = [loader.batch_at(3, index, rank=rank, size=2) for rank in range(2)]
        for name in whole:
            together = torch.cat([share[name] for share in shares if len(share)])
            assert torch.equal(together, whole[name])


def test_iterating_goes_on_from_its_place(tmp_path: Path) -> None:
    loader, other = loader_of(tmp_path), loader_of(tmp_path)
    whole = [batch for _ in range(2) for batch in loader]
    first = iter(other)
    next(first)
    again = loader_of(tmp_path)
    again.load_state_dict(other.state_dict())
    rest = [*again, *again]
    assert len(rest) == len(whole) - 1
    for left, right in zip(rest, whole[1:], strict=True):
        assert all(torch.equal(left[name], right[name]) for name in left)


def test_making_a_batch_never_reads_the_device(tmp_path: Path) -> None:
    loader = loader_of(tmp_path)
    loader.batch_at(0, 0)
    with no_sync():
        loader.batch_at(0, 1)


def test_a_head_that_is_joined_with_everything_is_named(tmp_path: Path) -> None:
    triples = [("m1", "r", other) for other in ("m1", "m2", "m3")]
    links = [("i1", "m1"), ("i2", "m2"), ("i3", "m3")]
    dataset = dataset_of(tmp_path, triples=triples, links=links, **LOADED)
    with pytest.raises(DataError, match="the entities 'm1' are heads of triples to every entity: no other tail"):
        data_preparation(dataset.config, dataset)
