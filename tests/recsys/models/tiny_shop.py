"""A small shop written as atomic files, and models of sequences and clicks built on it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.recsys.data.small import write_table
from tests.recsys.models import building
from tests.recsys.models.building import BuiltModel
from treadle.recsys import Config, Interaction, ModelType, create_dataset, data_preparation, get_model
from treadle.recsys.models.bases.sequential import NextItemRecommender
from treadle.recsys.models.bases.whole_sequences import WholeSequenceRecommender

USERS, ITEMS, LENGTH = 24, 20, 8
"""How many users and items there are, and how long a history is at most."""
RANKING = ("GRU4Rec", "NARM", "SASRec", "BERT4Rec", "Caser")
WHOLE = ("gSASRec", "eSASRec", "HSTU")
"""Models that are trained on whole sequences."""
INTEREST = ("DIN", "DIEN")
CONTEXT = ("LR", "FM", "WideDeep", "DeepFM", "DCN", "DCNv2")
EVERY = (*RANKING, *INTEREST, *CONTEXT)
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in EVERY},
    **{f"{name} with BPR": (name, {"loss_type": "BPR"}) for name in RANKING},
    "SASRec with BCE": ("SASRec", {"loss_type": "BCE"}),
    "SASRec at the last position": ("SASRec", {"train_all_positions": False}),
    "GRU4Rec at the last position": ("GRU4Rec", {"train_all_positions": False}),
    "BERT4Rec on whole sequences": ("BERT4Rec", {"train_all_positions": True}),
    "DCNv2 in parallel": ("DCNv2", {"structure": "parallel"}),
    "DCNv2 with experts": ("DCNv2", {"mixed": True, "low_rank": 4}),
    **{f"DIEN with {kind}": ("DIEN", {"gru_type": kind}) for kind in ("GRU", "AIGRU", "AGRU")},
}
"""Models and the settings that change what they calculate."""


class Built(BuiltModel):
    """A model on the shop, with rows as an evaluation has them."""

    def row(self, *items: int, user: int = 1, target: int = 1, **columns: Any) -> Interaction:
        """Return one row with a history, as an evaluation has it."""
        history = [*items, *[0] * (LENGTH - len(items))]
        known = {"user_id": [user], "item_id": [target], "item_id_list": [history], "item_length": [len(items)]}
        return Interaction({name: torch.tensor(value) for name, value in {**known, **columns}.items()})


Build = Callable[..., Built]


def write_shop(folder: Path) -> None:
    """Write interactions, users and items, with fields of all four types."""
    rows = [_interaction(user, step) for user in range(USERS) for step in range(5 + user * 7 % 9)]
    header = ("user_id:token", "item_id:token", "label:float", "timestamp:float", "price:float")
    write_table(folder, "shop.inter", header, rows)
    users = [(f"u{user}", user % 4, 150 + user) for user in range(USERS)]
    write_table(folder, "shop.user", ("user_id:token", "age:token", "height:float"), users)
    items = [
        (f"i{item}", " ".join("abcd"[: 1 + item % 4]), f"{item % 3} 1.5"[: 5 - 2 * (item % 2)]) for item in range(ITEMS)
    ]
    write_table(folder, "shop.item", ("item_id:token", "kinds:token_seq", "sizes:float_seq"), items)


def _interaction(user: int, step: int) -> tuple[Any, ...]:
    item = (user + 2 * step) % ITEMS
    return f"u{user}", f"i{item}", int((item + user) % 3 == 0), 880_000_000 + 1000 * user + step, item / 10


def build(folder: Path, model: Any, **settings: Any) -> Built:
    """Return a model with its data; small, and from seed 0."""
    write_shop(folder / "shop")
    kind = get_model(model)
    given: dict[str, Any] = {
        "data_path": str(folder),
        "load_col": None,
        "MAX_ITEM_LIST_LENGTH": LENGTH,
        "train_batch_size": 64,
        "numerical_features": ["height", "price", "sizes"],
        "normalize_field": ["height"],
        "topk": [5],
        **smaller(kind.__name__),
    }
    if kind.type is not ModelType.CONTEXT:
        given |= {"unused_col": {"inter": ["label", "price"]}}
        given |= {"valid_metric": "MRR@5"} if _ranks(kind) else {"eval_args": {"mode": "uni9"}}
    config = Config(kind, "shop", config_dict={**given, **settings})
    train, valid, _ = data_preparation(config, create_dataset(config))
    torch.manual_seed(0)
    return Built(config, train, valid, kind(config, train.dataset))


def _ranks(kind: type) -> bool:
    return issubclass(kind, (NextItemRecommender, WholeSequenceRecommender))


def smaller(name: str) -> dict[str, Any]:
    """Return settings that make a model small."""
    if name in ("SASRec", "BERT4Rec"):
        return {"hidden_size": 12, "inner_size": 20}
    if name in WHOLE:
        own = {"attention_size": 4, "value_size": 6, "n_heads": 2} if name == "HSTU" else {"inner_size": 20}
        return {"hidden_size": 12, "n_negatives": 4, **own}
    if name in ("GRU4Rec", "NARM"):
        return {"embedding_size": 8, "hidden_size": 12}
    if name in ("Caser", "LR", "FM"):
        return {"embedding_size": 8}
    return {"embedding_size": 8, "mlp_hidden_size": [16, 12]} if name in VARIANTS else {}


def fill(model: torch.nn.Module, seed: int = 1) -> None:
    """Draw all weights anew and large, so that everything in a formula shows; padding stays zero."""
    building.fill(model, seed)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.Embedding) and module.padding_idx is not None:
                module.weight[module.padding_idx].zero_()
