"""Knowledge graphs: triples as ids, and which item is which entity."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.recsys.data.small import toy_config, toy_dataset, write_table
from treadle.errors import DataError
from treadle.recsys.dataset_knowledge import KnowledgeGraph, read_knowledge_graph

ROWS = [("u", "i1", 1, 1), ("u", "i2", 1, 2), ("v", "i3", 1, 3)]
TRIPLES = [
    ("m1", "made_by", "m9"),
    ("m2", "made_by", "m9"),
    ("m9", "lives_in", "m7"),
    ("m1", "like", "m2"),
    ("", "x", "m1"),
]
LINKS = [("i2", "m2"), ("i1", "m1"), ("gone", "m9"), ("i3", "unknown")]


def graph_of(folder: Path, **given: Any) -> KnowledgeGraph:
    header = ("head_id:token", "relation_id:token", "tail_id:token")
    write_table(folder / "toy", "toy.kg", header, TRIPLES)
    write_table(folder / "toy", "toy.link", ("item_id:token", "entity_id:token"), LINKS)
    dataset = toy_dataset(folder, ROWS, **given)
    return read_knowledge_graph(dataset.config, dataset)


def triples(graph: KnowledgeGraph) -> list[tuple[str, ...]]:
    columns = (graph.entities.tokens_of(graph.heads), graph.relation_tokens.tokens_of(graph.relations))
    return list(zip(*columns, graph.entities.tokens_of(graph.tails), strict=True))


def test_triples_are_numbered_as_they_first_appear(tmp_path: Path) -> None:
    graph = graph_of(tmp_path)
    assert graph.entities.tokens.tolist() == ["[PAD]", "m1", "m2", "m9", "m7"]
    assert graph.relation_tokens.tokens.tolist() == ["[PAD]", "made_by", "lives_in", "like"]
    assert graph.heads.tolist() == [1, 2, 3, 1]
    assert triples(graph) == TRIPLES[:4]


def test_links_that_data_and_graph_both_have_are_kept(tmp_path: Path) -> None:
    graph = graph_of(tmp_path)
    assert (graph.linked_items.tolist(), graph.linked_entities.tolist()) == ([2, 1], [2, 1])


def test_rare_entities_and_relations_are_left_out_until_all_are_frequent(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, entity_kg_num_interval="[2,inf)")
    assert triples(graph) == [TRIPLES[0], TRIPLES[1], TRIPLES[3]]
    assert graph.entities.tokens.tolist() == ["[PAD]", "m1", "m2", "m9"]
    often = graph_of(tmp_path, relation_kg_num_interval="[2,inf)")
    assert triples(often) == TRIPLES[:2]
    assert np.concatenate([often.heads, often.tails]).max() == 3


def test_a_graph_that_is_not_there_or_lacks_a_column_is_an_error(tmp_path: Path) -> None:
    dataset = toy_dataset(tmp_path, ROWS)
    with pytest.raises(DataError, match=r"toy\.kg is not there; a knowledge graph needs it"):
        read_knowledge_graph(dataset.config, dataset)
    write_table(tmp_path / "toy", "toy.kg", ("head_id:token", "tail_id:token"), [("a", "b")])
    with pytest.raises(DataError, match=r"names the field 'relation_id' of toy\.kg, which is not there"):
        read_knowledge_graph(dataset.config, dataset)
    kinds = ("head_id:token", "relation_id:float", "tail_id:token")
    write_table(tmp_path / "toy", "toy.kg", kinds, [("a", 1, "b")])
    with pytest.raises(DataError, match=r"field 'relation_id' of toy\.kg holds float; it must hold a token"):
        read_knowledge_graph(toy_config(tmp_path), dataset)
