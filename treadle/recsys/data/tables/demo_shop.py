"""The data set `demo-shop`, which needs no files: a shop whose customers have tastes, made on the spot."""

from typing import Any

import torch

NAME = "demo-shop"
"""What it is called as a data set: `treadle recsys --dataset demo-shop`."""
CUSTOMERS, ARTICLES = 300, 120
DEPARTMENTS = ("garden", "kitchen", "music", "sport", "toys", "books")


def purchases(seed: int = 0) -> dict[str, list[Any]]:
    """Return who bought what, and when: mostly from the department of one's taste, sometimes from another one."""
    generator = torch.Generator().manual_seed(seed)
    table: dict[str, list[Any]] = {"user_id": [], "item_id": [], "timestamp": []}
    each = ARTICLES // len(DEPARTMENTS)
    for customer in range(CUSTOMERS):
        own = torch.randperm(each, generator=generator)[:12] + customer % len(DEPARTMENTS) * each
        others = torch.randperm(ARTICLES, generator=generator)[:4]
        bought = torch.tensor(sorted({*own.tolist(), *others.tolist()}))
        for moment, item in enumerate(bought[torch.randperm(len(bought), generator=generator)].tolist()):
            table["user_id"].append(f"customer {customer}")
            table["item_id"].append(f"{DEPARTMENTS[item // each]} {item % each}")
            table["timestamp"].append(float(moment))
    return table
