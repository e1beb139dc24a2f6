"""Nearest neighbours of users."""

from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.models.bases.neighbours import NeighbourRecommender


class UserKNN(NeighbourRecommender):
    """Scores an item by how similar those who have it are to the user, looking at the `k` users most like them.

    Sarwar, Karypis, Konstan and Riedl, "Analysis of recommendation algorithms for e-commerce", 2000. The similarity is
    that of the sets of items: `cosine`, `jaccard` or `dice`; `shrink` is added to its divisor.
    """

    of_users_only = "UserKNN knows how similar users are; for items, take ItemKNN"

    def __init__(self, config: Config, dataset: Dataset) -> None:
        super().__init__(config, dataset, by_user=True)
