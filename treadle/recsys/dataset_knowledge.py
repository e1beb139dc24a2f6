"""Knowledge graphs beside a data set: triples of entities, and which item is which entity."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from treadle.errors import DataError
from treadle.recsys.config import Config
from treadle.recsys.dataset import Dataset
from treadle.recsys.enums import FeatureType
from treadle.recsys.optional import pyarrow
from treadle.recsys.tables.columns import Array, Column, Table
from treadle.recsys.tables.filtering import Tables
from treadle.recsys.tables.intervals import parse_intervals, within
from treadle.recsys.tables.numbering import number_tokens
from treadle.recsys.tables.reading import Selection, find_file, read_table
from treadle.recsys.tables.sources import reading_of
from treadle.recsys.vocabulary import Vocabulary


@dataclass(frozen=True)
class KnowledgeGraph:
    """Triples as ids, numbered from 1 as they first appear.

    Attributes:
        heads: The entity that each triple begins with.
        relations: What it says.
        tails: The entity that it ends with.
        entities: The tokens of entities.
        relation_tokens: The tokens of relations.
        linked_items: Ids, in the data set, of the items that are entities.
        linked_entities: The entity of each of these items.
    """

    heads: Array
    relations: Array
    tails: Array
    entities: Vocabulary
    relation_tokens: Vocabulary
    linked_items: Array
    linked_entities: Array


def read_knowledge_graph(config: Config, dataset: Dataset, *, kg: Any = None, link: Any = None) -> KnowledgeGraph:
    """Read the knowledge graph of a data set: the files `.kg` and `.link` in its folder, or tables in their place.

    Triples of entities and relations that occur too rarely or too often are left out, as `entity_kg_num_interval` and
    `relation_kg_num_interval` say. Links of items that the data does not have, or of entities without a triple, are
    left out too.

    Raises:
        DataError: A table is not there, or lacks a column.
    """
    head, relation, tail, entity = (
        str(config[f"{name}_FIELD"]) for name in ("HEAD_ENTITY_ID", "RELATION_ID", "TAIL_ENTITY_ID", "ENTITY_ID")
    )
    triples = _read(config, "kg", kg, (head, relation, tail))
    tokens = number_tokens(Tables(triples), [[head, tail], [relation]])
    stay = _frequent(config, *(triples[name].values for name in (head, relation, tail)), entities=len(tokens[head]))
    triples = triples.keep(stay)
    # Numbered again, now that some are gone.
    triples = _with_tokens(triples, tokens)
    tokens = number_tokens(Tables(triples), [[head, tail], [relation]])
    entities = Vocabulary(entity, tokens[head])
    links = _read(config, "link", link, (str(dataset.iid_field), entity))
    items, linked = _links(links, str(dataset.iid_field), entity, dataset, entities)
    heads, relations, tails = (triples[name].values for name in (head, relation, tail))
    return KnowledgeGraph(heads, relations, tails, entities, Vocabulary(relation, tokens[relation]), items, linked)


def _read(config: Config, suffix: str, given: Any, fields: tuple[str, ...]) -> Table:
    name = f"{config['dataset']}.{suffix}"
    place = given if given is not None else find_file(Path(config["data_path"]), name)
    if place is None:
        raise DataError(f"{Path(config['data_path']) / name} is not there; a knowledge graph needs it")
    table = read_table(place, Selection(fields), reading_of(config), name=name)
    assert table is not None, "fields are asked for"
    for field in fields:
        if table[field].kind is not FeatureType.TOKEN:
            raise DataError(f"field {field!r} of {name} holds {table[field].kind.value}; it must hold a token")
    there = np.logical_and.reduce([table[field].values >= 0 for field in fields])
    return table.keep(there)


def _frequent(config: Config, heads: Array, relations: Array, tails: Array, *, entities: int) -> Array:
    """Return which triples stay, so that every entity and relation that is left occurs often enough."""
    bounds = [
        None if config[name] is None else parse_intervals(config[name], name)
        for name in ("entity_kg_num_interval", "relation_kg_num_interval")
    ]
    stay = np.ones(len(heads), bool)
    while True:
        good = stay.copy()
        if bounds[0] is not None:
            used = np.bincount(np.concatenate([heads[stay], tails[stay]]), minlength=entities)
            enough = within(used, bounds[0])
            good &= enough[heads] & enough[tails]
        if bounds[1] is not None:
            used = np.bincount(relations[stay], minlength=int(relations.max(initial=0)) + 1)
            good &= within(used, bounds[1])[relations]
        if (good == stay).all():
            return stay
        stay = good


def _with_tokens(table: Table, tokens: dict[str, Any]) -> Table:
    """Return a numbered table with its tokens again, as it was before it was numbered."""
    columns = {name: Column(column.kind, column.values, tokens=tokens[name]) for name, column in table.columns.items()}
    return Table(table.name, columns)


def _links(table: Table, item: str, entity: str, dataset: Dataset, entities: Vocabulary) -> tuple[Array, Array]:
    """Return the pairs of an item and an entity that the data and the graph both have."""
    sides = []
    for field, known in ((item, dataset.vocabulary(item).arrow_tokens), (entity, entities.arrow_tokens)):
        arrow = pyarrow()
        found = arrow.compute.index_in(table[field].tokens.cast(arrow.string()), known.cast(arrow.string()))
        ids = arrow.compute.fill_null(found, 0).to_numpy(zero_copy_only=False).astype(np.int64)
        sides.append(ids[table[field].values])
    both = (sides[0] > 0) & (sides[1] > 0)
    return sides[0][both], sides[1][both]
