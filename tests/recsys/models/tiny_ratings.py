"""A small table of ratings, and general models built on it."""

from typing import Any, TypeVar

import torch
from torch import Tensor

from tests.recsys.models.building import BuiltModel
from treadle.recsys import Config, Interaction, create_dataset, data_preparation, get_model

USERS, ITEMS = 16, 12
TRAINED: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        name: (name, {})
        for name in ("BPR", "NeuMF", "DMF", "CDAE", "MultiVAE", "RecVAE", "SimpleX", "NGCF", "LightGCN", "GCMC")
    },
    "ELSA": ("ELSA", {}),
    "UltraGCN": ("UltraGCN", {}),
    "SpectralCF": ("SpectralCF", {}),
    "SGL": ("SGL", {}),
    "NeuMF without MLP": ("NeuMF", {"mlp_train": False}),
    "NeuMF without GMF": ("NeuMF", {"mf_train": False}),
    "DMF with ratings": ("DMF", {"inter_matrix_type": "rating"}),
    # Wide, for its weights begin as small as in the paper, and of a narrow network nothing would come through.
    "DMF with an inner product": (
        "DMF",
        {"similarity": "dot", "item_embedding_size": 40, "user_hidden_size_list": [64], "item_hidden_size_list": [64]},
    ),
    "CDAE with squares": ("CDAE", {"loss_type": "MSE", "out_activation": "relu", "reg_weight_1": 0.001}),
    "RecVAE without gamma": ("RecVAE", {"gamma": None}),
    "SimpleX with the user's attention": ("SimpleX", {"aggregator": "user_attention"}),
    "SimpleX with its own attention": ("SimpleX", {"aggregator": "self_attention"}),
    "NGCF with dropped edges": ("NGCF", {"node_dropout": 0.2}),
    "LightGCN with bf16 messages": ("LightGCN", {"message_precision": "bf16"}),
    "SGL without nodes": ("SGL", {"type": "ND"}),
    "SGL with random walks": ("SGL", {"type": "RW"}),
}
"""Models that are trained, and the settings that change what they calculate."""
FITTED = ("Pop", "ItemKNN", "UserKNN", "RP3beta", "EASE", "SLIM", "GFCF", "IALS")
EVERY = (*TRAINED, *FITTED)
PAIRWISE = [name for name, (model, _) in TRAINED.items() if model in ("BPR", "SimpleX", "NGCF", "LightGCN", "SGL")]
SMALLER = {
    "NeuMF": {"mf_embedding_size": 8, "mlp_embedding_size": 8, "mlp_hidden_size": [16, 8]},
    "DMF": {
        "user_embedding_size": 8,
        "item_embedding_size": 8,
        "user_hidden_size_list": [8, 8],
        "item_hidden_size_list": [8, 8],
    },
    "MultiVAE": {"mlp_hidden_size": [16], "latent_dimension": 12},
    "RecVAE": {"hidden_dimension": 16, "latent_dimension": 6},
    "NGCF": {"embedding_size": 8, "hidden_size_list": [8, 6]},
    "GCMC": {"embedding_size": 8, "gcn_output_dim": 16},
    "ItemKNN": {"k": 4},
    "UserKNN": {"k": 4},
    "RP3beta": {"k": 4},
    "EASE": {"reg_weight": 2.0},
    "SLIM": {"alpha": 0.05, "l1_ratio": 0.5},
    "GFCF": {"rank": 4},
    "IALS": {"embedding_size": 5, "iterations": 4, "unobserved_weight": 0.3, "reg_weight": 0.05},
    # Begun as small as the authors', embeddings would not leave zero in a few steps.
    "UltraGCN": {"embedding_size": 8, "initial_weight": 0.1, "ii_neighbor_num": 3, "negative_weight": 10},
    "Pop": {},
}


class Built(BuiltModel):
    """A model on the ratings, which can be had as matrices."""

    def matrix(self, value_field: str | None = None) -> Tensor:
        """Return the ratings to train on as a dense matrix of users and items, in float64."""
        data = self.train.dataset
        users, items = data.user_item_pairs()
        values = torch.ones(len(users)) if value_field is None else data.inter_feat[value_field]
        dense = torch.zeros(data.user_num, data.item_num, dtype=torch.float64)
        dense[users, items] = values.double()
        return dense

    def adjacency(self) -> Tensor:
        """Return the graph of users and items as a dense matrix, in float64."""
        ratings = self.matrix()
        users, items = ratings.shape
        dense = torch.zeros(users + items, users + items, dtype=torch.float64)
        dense[:users, users:] = ratings
        return dense + dense.T


Made = TypeVar("Made", bound=Built)


def ratings() -> dict[str, list[Any]]:
    """Return a table: users like the half of the items that is theirs, and a few others."""
    rows = []
    for user in range(USERS):
        for step in range(4 + user % 3):
            item = (user * 5 + step * (2 + user % 2)) % ITEMS
            rows.append((f"u{user}", f"i{item}", 1 + (user + item) % 5, user * 100 + step))
    rows = list({row[:2]: row for row in rows}.values())
    return {
        name: [row[place] for row in rows] for place, name in enumerate(("user_id", "item_id", "rating", "timestamp"))
    }


def smaller(name: str) -> dict[str, Any]:
    """Return settings that make a model small."""
    own: dict[str, Any] = SMALLER.get(name, {"embedding_size": 8})
    return own


def build(variant: str, table: dict[str, list[Any]] | None = None, **settings: Any) -> Built:
    """Return a model with its data; small, and from seed 0."""
    name, own = TRAINED.get(variant, (variant, {}))
    return built_on(Built, name, {**smaller(name), **own, **settings}, inter=ratings() if table is None else table)


def built_on(made: type[Made], name: str, settings: dict[str, Any], **tables: Any) -> Made:
    """Return a model with its data, of some tables and from seed 0."""
    given = {
        "load_col": None,
        "train_batch_size": 32,
        "eval_args": {"split": {"LS": "valid_only"}, "order": "TO", "mode": "full"},
        "topk": [3],
        "valid_metric": "MRR@3",
        **settings,
    }
    config = Config(name, "tiny", config_dict=given)
    train, valid, _ = data_preparation(config, create_dataset(config, **tables))
    torch.manual_seed(0)
    return made(config, train, valid, get_model(name)(config, train.dataset))


def fitted(name: str, table: dict[str, list[Any]] | None = None, **settings: Any) -> Built:
    """Return a model that is fitted to its data."""
    built = build(name, table, **settings)
    built.model.fit(built.train.dataset)
    return built


def every_pair(built: Built) -> Interaction:
    """Return a row for each user and item."""
    users = torch.arange(1, built.model.n_users).repeat_interleave(built.model.n_items - 1)
    items = torch.arange(1, built.model.n_items).repeat(built.model.n_users - 1)
    return Interaction({"user_id": users, "item_id": items})


def all_scores(built: Built) -> Tensor:
    """Return the scores of all items for all users, padding included."""
    built.model.eval()
    with torch.no_grad():
        scores: Tensor = built.model.full_sort_predict(Interaction({"user_id": torch.arange(built.model.n_users)}))
    return scores.view(built.model.n_users, built.model.n_items)
