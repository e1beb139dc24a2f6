"""Data sets with published numbers, and models that need no training, as plain tensors."""

import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from treadle.recsys.data.sampling import UserItems


def pairs_of(path: Path) -> tuple[Tensor, Tensor]:
    """Read lines of `user item item ...`."""
    users, items = [], []
    with gzip.open(path, "rt") as lines:
        for line in lines:
            user, *own = map(int, line.split())
            users += [user] * len(own)
            items += own
    return torch.tensor(users), torch.tensor(items)


def load(name: str) -> tuple[UserItems, UserItems]:
    """Return training and test items of a data set, or skip the test where it is not on this machine."""
    root = os.environ.get("TREADLE_DATA", "")
    folder = Path(root) / name
    if not root or not folder.is_dir():
        pytest.skip(f"TREADLE_DATA names no folder with {name}")
    train, test = (pairs_of(folder / f"{part}.txt.gz") for part in ("train", "test"))
    sizes = {
        "num_users": int(max(train[0].max(), test[0].max())) + 1,
        "num_items": int(max(train[1].max(), test[1].max())) + 1,
        "first_item": 0,
    }
    return UserItems(*train, **sizes), UserItems(*test, **sizes)


def item_pop(train: UserItems) -> Callable[[Tensor], Tensor]:
    counts = torch.bincount(train.items, minlength=train.num_items).float()
    return lambda users: counts.expand(len(users), -1)


def gf_cf(train: UserItems, *, rank: int = 256, share: float = 0.3) -> Callable[[Tensor], Tensor]:
    """Return the scores of GF-CF (Shen et al., "How powerful is graph convolution for recommendation?", 2021)."""
    sparse = pytest.importorskip("scipy.sparse")
    linalg = pytest.importorskip("scipy.sparse.linalg")
    shape = (train.num_users, train.num_items)
    seen = sparse.csr_matrix((np.ones(len(train)), (train.users.numpy(), train.items.numpy())), shape=shape)
    by_user, by_item = (np.asarray(seen.sum(axis=axis)).ravel() for axis in (1, 0))
    scaled = [1 / np.sqrt(np.where(degrees > 0, degrees, np.inf)) for degrees in (by_user, by_item)]
    normal = (sparse.diags(scaled[0]) @ seen @ sparse.diags(scaled[1])).tocsr()
    vectors = linalg.svds(normal, k=rank, random_state=0)[2].astype(np.float32)
    # Item by item first: a hundredth of them are neighbours, and a user has few items.
    near: Any = (normal.T @ normal).tocsr().astype(np.float32)
    spread = (seen @ sparse.diags(scaled[1])).astype(np.float32) @ vectors.T

    def score(users: Tensor) -> Tensor:
        rows = users.numpy()
        far = spread[rows] @ vectors * np.sqrt(by_item).astype(np.float32)
        return torch.from_numpy((seen[rows] @ near).toarray() + np.float32(share) * far).float()

    return score
