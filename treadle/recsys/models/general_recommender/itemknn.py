"""Nearest neighbours of items, or of users."""

from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.models.bases.neighbours import NeighbourRecommender
from treadle.recsys.models.settings import choice


class ItemKNN(NeighbourRecommender):
    """Scores an item by its similarity to what the user has, looking at the `k` items most like it.

    Deshpande and Karypis, "Item-based top-N recommendation algorithms", 2004. The similarity is the cosine of the sets
    of users, or what `similarity` names; `shrink`, added to its divisor, makes less of items that few have used. With
    `knn_method: user` an item is scored by how similar those who have it are to the user, looking at the `k` users most
    like them, as by `UserKNN`.
    """

    of_users_only = "ItemKNN with knn_method='user' knows how similar users are; for items, set it to 'item'"

    def __init__(self, config: Config, dataset: Dataset) -> None:
        super().__init__(config, dataset, by_user=choice(config, "knn_method", ("item", "user")) == "user")
