"""Data sets with a knowledge graph: items that are entities, and triples that join entities."""

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from treadle.errors import ConfigError
from treadle.recsys.config import Config
from treadle.recsys.dataset import Dataset
from treadle.recsys.dataset_matrices import FORMS
from treadle.recsys.dataset_steps import own_filtering
from treadle.recsys.interaction import Interaction
from treadle.recsys.optional import scipy_sparse
from treadle.recsys.tables.knowledge import GRAPH_TABLES, GraphNames, add_graph, drop_unlinked, read_graph
from treadle.recsys.tables.pipeline import Prepared, prepare
from treadle.recsys.tables.sources import Sources

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
        prepared = prepare(config, sources, narrow, own_filtering(cls, config))
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
