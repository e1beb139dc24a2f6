"""A small shop whose customers have tastes: data for the programs beside this file, made on the spot."""

from typing import Any

import torch

from treadle.recsys import Config, create_dataset, data_preparation, init_seed

CUSTOMERS, GOODS, DEPARTMENTS = 200, 120, 6


def purchases(seed: int = 0) -> dict[str, list[Any]]:
    """Return who bought what, and when: mostly from one department each, sometimes from another one."""
    generator = torch.Generator().manual_seed(seed)
    table: dict[str, list[Any]] = {"user_id": [], "item_id": [], "timestamp": []}
    each = GOODS // DEPARTMENTS
    for customer in range(CUSTOMERS):
        own = torch.randperm(each, generator=generator)[:12] + customer % DEPARTMENTS * each
        others = torch.randperm(GOODS, generator=generator)[:4]
        bought = torch.cat([own, others]).unique()
        for moment, item in enumerate(bought[torch.randperm(len(bought), generator=generator)].tolist()):
            table["user_id"].append(f"customer {customer}")
            table["item_id"].append(f"article {item}")
            table["timestamp"].append(float(moment))
    return table


def open_shop(model: Any, **settings: Any) -> tuple[Any, Any, Any, Any]:
    """Return the settings, and the loaders for training, validation and test."""
    small: dict[str, Any] = {"embedding_size": 16, "train_batch_size": 512, "learning_rate": 0.01, "epochs": 20}
    small |= {"metrics": ["Recall", "NDCG"], "topk": [10], "valid_metric": "NDCG@10", "show_progress": False}
    config = Config(model, "shop", config_dict={**small, **settings})
    train, valid, test = data_preparation(config, create_dataset(config, inter=purchases()))
    init_seed(config["seed"], config["reproducibility"])
    return config, train, valid, test
