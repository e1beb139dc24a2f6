"""Data sets with a knowledge graph: items that are entities, and triples that join entities."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from treadle.errors import ConfigError, DataError
from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataset import FORMS, Dataset
from treadle.recsys.data.dataset_steps import find_filter
from treadle.recsys.data.interaction import Interaction, tensor_of_array
from treadle.recsys.data.tables.columns import Array, Table, share_codes
from treadle.recsys.data.tables.filters import Tables, parse_intervals, within
from treadle.recsys.data.tables.id_map import PADDING, first_appearances
from treadle.recsys.data.tables.pipeline import Prepared, prepare
from treadle.recsys.data.tables.reader import Selection, read_table
from treadle.recsys.data.tables.sources import Sources
from treadle.recsys.enums import FeatureSource, FeatureType
from treadle.recsys.optional import pyarrow, scipy_sparse

# Knowledge graphs beside a data set: triples of entities, and which item is which entity


logger = logging.getLogger(__name__)
GRAPH_TABLES = ("kg", "link")
"""The suffixes of the files that a knowledge graph is in."""
USER_ITEM_RELATION = "[UI-Relation]"
"""The token of the last relation: what joins a user and an item in a collaborative knowledge graph."""
REVERSED = "_r"
"""What stands behind the token of a relation that is read backwards."""
UNLINKED = ("drop", "keep")


@dataclass(frozen=True)
class GraphNames:
    """What the columns of a knowledge graph are called."""

    head: str
    relation: str
    tail: str
    entity: str
    item: str

    @classmethod
    def of(cls, config: Config) -> "GraphNames":
        """Return the names that the settings have."""
        graph = ("HEAD_ENTITY_ID", "RELATION_ID", "TAIL_ENTITY_ID", "ENTITY_ID", "ITEM_ID")
        return cls(*(str(config[f"{name}_FIELD"]) for name in graph))


@dataclass(frozen=True)
class GraphTables:
    """A knowledge graph as it is in its files, filtered.

    Attributes:
        heads, tails: The entities of each triple, as places in `entity_texts`.
        relations: What each triple says, as places in `relation_texts`.
        entity_texts, relation_texts: The tokens, as Arrow arrays.
        link_items: Of each link the token of its item, as an Arrow array.
        link_entities: Of each link its entity.
    """

    heads: Array
    relations: Array
    tails: Array
    entity_texts: Any
    relation_texts: Any
    link_items: Any
    link_entities: Array


def read_graph(config: Config, sources: Sources) -> GraphTables:
    """Read the triples and the links of a data set.

    Triples of entities and relations that occur too rarely or too often are left out, as `entity_kg_num_interval` and
    `relation_kg_num_interval` say, and then links of entities without a triple.

    Raises:
        ConfigError: An interval cannot be meant.
        DataError: A table lacks a column, or nothing is left.
    """
    names = GraphNames.of(config)
    triples = _read(sources, "kg", (names.head, names.relation, names.tail))
    (heads, tails), texts = share_codes([triples[names.head], triples[names.tail]])
    relations = triples[names.relation].values
    stay = _frequent(config, heads, relations, tails)
    if not stay.any():
        raise DataError(
            f"no triple of {triples.name} is left: {len(triples)} are read, none fits entity_kg_num_interval="
            f"{config['entity_kg_num_interval']!r} and relation_kg_num_interval={config['relation_kg_num_interval']!r}"
        )
    heads, relations, tails = heads[stay], relations[stay], tails[stay]
    items, entities = _links(_read(sources, "link", (names.item, names.entity)), names, heads, tails, texts)
    return GraphTables(heads, relations, tails, texts, triples[names.relation].tokens, items, entities)


def _read(sources: Sources, suffix: str, fields: tuple[str, ...]) -> Table:
    name = f"{sources.name}.{suffix}"
    table = read_table(sources.places[suffix][0], Selection(fields), sources.reading, name=name)
    assert table is not None, "fields are asked for"
    for field in fields:
        if table[field].kind is not FeatureType.TOKEN:
            raise DataError(f"field {field!r} of {name} holds {table[field].kind.value}; it must hold a token")
    there = np.logical_and.reduce([table[field].values >= 0 for field in fields])
    if not there.any():
        raise DataError(f"{name} has no rows")
    return table.keep(there)


def _frequent(config: Config, heads: Array, relations: Array, tails: Array) -> Array:
    """Return which triples stay, so that every entity and relation that is left occurs often enough."""
    bounds = [
        None if config[name] is None else parse_intervals(config[name], name)
        for name in ("entity_kg_num_interval", "relation_kg_num_interval")
    ]
    stay = np.ones(len(heads), bool)
    while True:
        good = stay.copy()
        if bounds[0] is not None:
            used = np.bincount(np.concatenate([heads[stay], tails[stay]]), minlength=_top(heads, tails))
            enough = within(used, bounds[0])
            good &= enough[heads] & enough[tails]
        if bounds[1] is not None:
            good &= within(np.bincount(relations[stay], minlength=_top(relations)), bounds[1])[relations]
        if (good == stay).all():
            return stay
        stay = good


def _top(*codes: Array) -> int:
    return max(int(some.max(initial=-1)) for some in codes) + 1


def _links(table: Table, names: GraphNames, heads: Array, tails: Array, texts: Any) -> tuple[Any, Array]:
    """Return the links to entities that the graph has: tokens of items, and entities."""
    arrow = pyarrow()
    entities = _places(table[names.entity].tokens, texts)[table[names.entity].values]
    there = np.zeros(len(texts) + 1, bool)
    there[heads] = there[tails] = True
    good = there[entities]
    items = table[names.item].tokens.take(arrow.array(table[names.item].values[good]))
    return items, entities[good]


def _places(asked: Any, known: Any) -> Array:
    """Return where each token stands among known ones; behind their end if it does not."""
    arrow = pyarrow()
    found = arrow.compute.index_in(asked.cast(arrow.string()), known.cast(arrow.string()))
    places: Array = arrow.compute.fill_null(found, len(known)).to_numpy(zero_copy_only=False).astype(np.int64)
    return places


def drop_unlinked(config: Config, graph: GraphTables, tables: Tables, sources: Sources) -> None:
    """Leave out, in place, interactions with items that are no entity, unless `kg_unlinked_items` is 'keep'.

    Raises:
        ConfigError: It is something else.
        DataError: No interaction is left.
    """
    policy = config["kg_unlinked_items"]
    if policy not in UNLINKED:
        raise ConfigError(f"kg_unlinked_items={policy!r} does not exist; there are {list(UNLINKED)}")
    if policy == "keep":
        return
    item = str(config["ITEM_ID_FIELD"])
    stay = _is_linked(tables.inter, item, graph)
    if not stay.any():
        raise DataError(
            f"no item of {tables.inter.name} is linked to an entity of the graph; look at {sources.name}.link, or set "
            "kg_unlinked_items to 'keep'"
        )
    if not stay.all():
        logger.info("%d interactions with items that are no entity are left out", int((~stay).sum()))
    ends = np.cumsum([0, *sources.sizes])
    sources.sizes = [int(stay[start:end].sum()) for start, end in pairwise(ends.tolist())]
    tables.inter = tables.inter.keep(stay)
    if tables.item is not None:
        tables.item = tables.item.keep(_is_linked(tables.item, item, graph))


def _is_linked(table: Table, item: str, graph: GraphTables) -> Array:
    """Return which rows of a table have an item that is an entity."""
    column = table[item]
    linked: Array = _places(column.tokens, graph.link_items) < len(graph.link_items)
    # One more entry, so that -1, a missing token, is not linked.
    return np.append(linked, False)[column.values]


def add_graph(config: Config, prepared: Prepared, graph: GraphTables) -> None:
    """Number the graph in one space of ids with the items, and make it a part of the prepared data, in place.

    An item is its entity: both have the item's id. Other entities follow behind the last item, numbered as they first
    appear. Relations are numbered from 1; with `kg_reverse_r` each has a reversed one, and each triple too; the last
    relation is that of users and items.
    """
    names = GraphNames.of(config)
    items = prepared.tokens[names.item]
    ids, linked = _entity_ids(graph, items)
    heads, tails, relations = ids[graph.heads], ids[graph.tails], graph.relations
    order = first_appearances(relations, len(graph.relation_texts))
    numbers = np.zeros(len(graph.relation_texts), np.int64)
    numbers[order] = np.arange(1, len(order) + 1)
    relations, texts = numbers[relations], graph.relation_texts.take(pyarrow().array(order)).to_pylist()
    if config["kg_reverse_r"]:
        heads, tails = np.concatenate([heads, tails]), np.concatenate([tails, heads])
        relations = np.concatenate([relations, relations + len(texts)])
        texts += [f"{text}{REVERSED}" for text in texts]
    columns = {names.head: heads, names.relation: relations, names.tail: tails}
    prepared.features["kg"] = _columns(columns)
    prepared.features["link"] = _columns({names.item: linked[0], names.entity: linked[1]})
    entities = _entity_tokens(graph, items, ids)
    prepared.tokens |= dict.fromkeys((names.entity, names.head, names.tail), entities)
    prepared.tokens[names.relation] = pyarrow().array([PADDING, *texts, USER_ITEM_RELATION])
    for name in (names.entity, names.head, names.tail, names.relation):
        prepared.types[name], prepared.sources[name] = FeatureType.TOKEN, FeatureSource.KG
        prepared.lengths[name] = 1


def _columns(arrays: dict[str, Array]) -> Interaction:
    return Interaction({name: tensor_of_array(np.ascontiguousarray(values)) for name, values in arrays.items()})


def _entity_ids(graph: GraphTables, items: Any) -> tuple[Array, tuple[Array, Array]]:
    """Return the id of each entity, and the links as ids of items and of entities."""
    places = _places(graph.link_items, items)
    there = places < len(items)
    own, entities = places[there], graph.link_entities[there]
    ids = np.zeros(len(graph.entity_texts), np.int64)
    # Backwards, so that of several items that are linked to one entity the first is the entity.
    ids[entities[::-1]] = own[::-1]
    appear = first_appearances(np.concatenate([graph.heads, graph.tails]), len(ids))
    further = appear[ids[appear] == 0]
    ids[further] = len(items) + np.arange(len(further))
    return ids, (own, ids[entities])


def _entity_tokens(graph: GraphTables, items: Any, ids: Array) -> Any:
    """Return the token of each entity id, as an Arrow array; an item that is no entity has a token made for it."""
    texts = [PADDING, *(f"[item:{token}]" for token in items.to_pylist()[1:])]
    texts += [""] * (int(ids.max(initial=0)) + 1 - len(texts))
    known = graph.entity_texts.to_pylist()
    for place in np.flatnonzero(ids)[::-1].tolist():
        texts[ids[place]] = known[place]
    return pyarrow().array(texts)


Triples = tuple[Tensor, Tensor, Tensor]


class KnowledgeBasedDataset(Dataset):
    """Interactions, and a knowledge graph of items and other entities.

    Items and entities share one space of ids: an item that is linked to an entity has one id for both, and entities
    that are no items follow behind the last item. So an id of an item is an id of an entity. Interactions with items
    that are linked to nothing are left out, as RecBole leaves them out; `kg_unlinked_items: keep` keeps them, and such
    an item is an entity without triples.

    Args:
        config: The settings.
        tables: Tables to use in the place of files, by suffix; see `Dataset`. `kg` has the columns `head_id`,
            `relation_id` and `tail_id`, and `link` has `item_id` and `entity_id`.
        prepared: A data set that was prepared before.

    Attributes:
        kg_feat: The triples.
        link_feat: Which item is which entity; both have the same id, except where two items are linked to one entity.
        head_entity_field, tail_entity_field, relation_field, entity_field: The names of the columns.

    Raises:
        ConfigError: A setting cannot be meant for this data.
        DataError: The data cannot be used.
    """

    needed_tables: ClassVar[tuple[str, ...]] = GRAPH_TABLES
    kg_feat: Interaction
    link_feat: Interaction

    def __init__(
        self, config: Config, *, tables: Mapping[str, Any] | None = None, prepared: Prepared | None = None
    ) -> None:
        super().__init__(config, tables=tables, prepared=prepared)
        names = GraphNames.of(config)
        self.head_entity_field, self.tail_entity_field = names.head, names.tail
        self.relation_field, self.entity_field = names.relation, names.entity

    @classmethod
    def prepare(cls, config: Config, sources: Sources) -> Prepared:
        """Return the tables of a data set with its graph, read and prepared."""
        graph = read_graph(config, sources)
        narrow = partial(drop_unlinked, config, graph, sources=sources)
        prepared = prepare(config, sources, narrow, find_filter(cls, config))
        add_graph(config, prepared, graph)
        return prepared

    @property
    def entity_num(self) -> int:
        """How many entity ids there are, padding and items included."""
        return self.num(self.entity_field)

    @property
    def relation_num(self) -> int:
        """How many relation ids there are, padding and the relation of users and items included."""
        return self.num(self.relation_field)

    @property
    def user_item_relation(self) -> int:
        """The id of the relation that joins users and items: the last one."""
        return self.relation_num - 1

    def triples(self) -> Triples:
        """Return head, relation and tail of every triple."""
        graph = self.kg_feat
        return graph[self.head_entity_field], graph[self.relation_field], graph[self.tail_entity_field]

    @property
    def head_entities(self) -> np.ndarray[Any, Any]:
        """The entity that each triple begins with."""
        entities: np.ndarray[Any, Any] = self.triples()[0].cpu().numpy()
        return entities

    @property
    def relations(self) -> np.ndarray[Any, Any]:
        """What each triple says."""
        relations: np.ndarray[Any, Any] = self.triples()[1].cpu().numpy()
        return relations

    @property
    def tail_entities(self) -> np.ndarray[Any, Any]:
        """The entity that each triple ends with."""
        entities: np.ndarray[Any, Any] = self.triples()[2].cpu().numpy()
        return entities

    @property
    def entities(self) -> np.ndarray[Any, Any]:
        """All ids of entities, padding included."""
        return np.arange(self.entity_num)

    def positive_pairs(self) -> tuple[Tensor, Tensor]:
        """Return the user and the item of every positive interaction, by user and item; a repeated pair comes once.

        An interaction is positive if it has no label, or one above 0.
        """
        users, items = self.user_item_pairs()
        if self.label_field is not None and self.label_field in self.inter_feat:
            liked = self.inter_feat[self.label_field] > 0
            users, items = users[liked], items[liked]
        keys = torch.unique(users * self.item_num + items)
        return torch.div(keys, self.item_num, rounding_mode="floor"), keys % self.item_num

    def collaborative_triples(self) -> Triples:
        """Return the triples of the collaborative knowledge graph: users and items are joined in it, too.

        Its nodes are the users by their ids, then the entities by theirs. Every positive interaction is an edge in
        either direction, of the relation `user_item_relation`.
        """
        users, items = (ids.cpu() for ids in self.positive_pairs())
        heads, relations, tails = (part.cpu() for part in self.triples())
        items, first = items + self.user_num, self.user_num
        joined = torch.full((2 * len(users),), self.user_item_relation)
        return (
            torch.cat([users, items, heads + first]),
            torch.cat([joined, relations]),
            torch.cat([items, users, tails + first]),
        )

    def kg_graph(self, form: str = "coo", value_field: str | None = None) -> Any:
        """Return the knowledge graph as a sparse matrix of entities.

        Args:
            form: "coo" or "csr".
            value_field: The field of relations, to have them in the matrix; 1 without it.

        Raises:
            ConfigError: There is no such form or field.
            MissingDependencyError: SciPy is not installed.
        """
        return self._matrix(self.triples(), self.entity_num, form, value_field)

    def ckg_graph(self, form: str = "coo", value_field: str | None = None) -> Any:
        """Return the collaborative knowledge graph as a sparse matrix of users and entities, like `kg_graph`."""
        return self._matrix(self.collaborative_triples(), self.user_num + self.entity_num, form, value_field)

    def _matrix(self, triples: Triples, nodes: int, form: str, value_field: str | None) -> Any:
        if form not in FORMS:
            raise ConfigError(f"form={form!r} does not exist; there are {list(FORMS)}")
        if value_field not in (None, self.relation_field):
            raise ConfigError(f"value_field={value_field!r}: a triple has no value but its {self.relation_field!r}")
        heads, relations, tails = (part.cpu().numpy() for part in triples)
        values = np.ones(len(heads), np.float32) if value_field is None else relations
        matrix = scipy_sparse().coo_matrix((values, (heads, tails)), shape=(nodes, nodes))
        return matrix if form == "coo" else matrix.tocsr()

    def to(self, device: torch.device | str) -> "Dataset":
        """Return the data set with its interactions, features and graph on `device`."""
        made = super().to(device)
        made._features = {
            name: table.to(device) if name in GRAPH_TABLES else table for name, table in self._features.items()
        }
        return made

    def __repr__(self) -> str:
        entities, triples = self.entity_num - 1, len(self.kg_feat)
        return f"{super().__repr__()}\n    {triples} triples of {entities} entities, items included"
