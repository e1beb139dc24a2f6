"""A small table of ratings with a knowledge graph, and models built on both."""

from typing import Any

import torch
from torch import Tensor

from tests.recsys.models import tiny_ratings
from tests.recsys.models.tiny_ratings import ITEMS, built_on, ratings
from treadle.recsys import Interaction

ENTITIES = 9
"""How many entities there are that are no items."""
TRAINED: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in ("CFKG", "CKE", "KGAT", "KGCN", "KGIN", "KTUP", "MKR", "RippleNet")},
    "CFKG by distances": ("CFKG", {"loss_function": "transe"}),
    "KGAT with two layers": ("KGAT", {"layers": [6, 4]}),
    "KGAT with sums": ("KGAT", {"aggregator_type": "gcn"}),
    "KGAT side by side": ("KGAT", {"aggregator_type": "graphsage"}),
    "KGCN with two steps": ("KGCN", {"n_iter": 2}),
    "KGCN side by side": ("KGCN", {"aggregator": "concat"}),
    "KGCN with neighbours alone": ("KGCN", {"aggregator": "neighbor"}),
    "KGIN with cosines": ("KGIN", {"ind": "cosine", "sim_regularity": 0.1}),
    "KGIN with information": ("KGIN", {"ind": "mi", "sim_regularity": 0.1}),
    "KTUP with mixed preferences": ("KTUP", {"use_st_gumbel": False}),
    "KTUP by absolute values": ("KTUP", {"L1_flag": True, "use_st_gumbel": False}),
    "MKR with layers": ("MKR", {"use_inner_product": False, "low_layers_num": 2, "high_layers_num": 2}),
    "RippleNet with the last ring": ("RippleNet", {"using_all_hops": False, "item_update_mode": "plus"}),
    "RippleNet with replaced items": ("RippleNet", {"item_update_mode": "replace_transform"}),
}
"""Models, and the settings that change what they calculate."""
PLAIN = [name for name in TRAINED if TRAINED[name] == (name, {})]
SMALLER: dict[str, dict[str, Any]] = {
    "CKE": {"kg_embedding_size": 6},
    "KGAT": {"kg_embedding_size": 6, "layers": [4]},
    "KGCN": {"neighbor_sample_size": 3},
    "RippleNet": {"n_memory": 4},
    "KGIN": {"n_factors": 3},
}


def graph() -> dict[str, dict[str, list[str]]]:
    """Return triples and links: of every second item something is known, and of entities something further."""
    triples = []
    for item in range(0, ITEMS, 2):
        triples += [(f"e{item}", "made_by", f"x{item % 5}"), (f"e{item}", "in", f"x{5 + item % 4}")]
    triples += [
        ("x0", "knows", "x1"),
        ("x1", "knows", "x2"),
        ("x2", "in", "x6"),
        ("e4", "like", "e6"),
        ("x3", "of", "e2"),
    ]
    names = ("head_id", "relation_id", "tail_id")
    links = {"item_id": [f"i{item}" for item in range(ITEMS)], "entity_id": [f"e{item}" for item in range(ITEMS)]}
    return {"kg": {name: [row[place] for row in triples] for place, name in enumerate(names)}, "link": links}


class Built(tiny_ratings.Built):
    """A model, and what it was built on."""

    def loss(self, batch: Interaction) -> Tensor:
        """Return the sum of all that the model is trained on."""
        model = self.model
        parts = _tuple(model.calculate_loss(batch))
        if hasattr(model, "calculate_kg_loss"):
            parts += _tuple(model.calculate_kg_loss(batch))
        total: Tensor = torch.stack(parts).sum()
        return total


def _tuple(losses: Any) -> tuple[Tensor, ...]:
    return losses if isinstance(losses, tuple) else (losses,)


def build(variant: str, **settings: Any) -> Built:
    """Return a model with its data; small, and from seed 0."""
    name, own = TRAINED.get(variant, (variant, {}))
    given = {"kg_unlinked_items": "keep", "embedding_size": 8, **SMALLER.get(name, {}), **own, **settings}
    return built_on(Built, name, given, inter=ratings(), **graph())
