"""Models that something happens to."""

import os
import signal
from typing import Any

from treadle.recsys.models.general_recommender import BPR


class Tired(BPR):
    """Is interrupted once, after so many batches."""

    after: int | None = None

    def calculate_loss(self, interaction: Any) -> Any:
        if Tired.after is not None:
            Tired.after -= 1
            if Tired.after < 0:
                Tired.after = None
                raise KeyboardInterrupt
        return super().calculate_loss(interaction)


class Broken(BPR):
    """Has a mistake in it."""

    def calculate_loss(self, interaction: Any) -> Any:
        raise ValueError("this model has a mistake in it")


class Dies(BPR):
    """Is killed, as the kernel kills what takes too much memory."""

    def calculate_loss(self, interaction: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


class Otherwise(BPR):
    """Does what BPR does under a name of its own."""


class Opinionated(BPR):
    """Brings settings of how it wants to be measured."""

    default_settings = {
        "embedding_size": 8,
        "metrics": ["NDCG"],
        "topk": [3],
        "valid_metric": "NDCG@3",
        "cold_users": "keep",
        "repeatable": True,
    }


class Choosy(BPR):
    """Brings settings of which rows it wants to be tested on."""

    default_settings = {"embedding_size": 8, "item_inter_num_interval": "[3,inf)", "split_seed": 7}
