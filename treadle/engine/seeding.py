"""One seed for every generator of a process."""

import random

import numpy as np
import torch

from treadle.data import fold_seed
from treadle.engine import dist


def seed_all(seed: int | None) -> None:
    """Seed Python, NumPy and torch, each process otherwise; None leaves all generators alone."""
    if seed is None:
        return
    own = fold_seed(seed, dist.get_rank())
    random.seed(own)
    np.random.seed(own)
    torch.manual_seed(own)
