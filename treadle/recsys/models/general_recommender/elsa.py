"""Scalable linear shallow autoencoder."""

from torch import Tensor, nn
from torch.nn import functional

from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.enums import InputType
from treadle.recsys.models.abstract_recommender import AutoEncoderMixin, GeneralRecommender
from treadle.recsys.models.init import xavier_uniform_initialization
from treadle.recsys.models.loss import at_least_float32
from treadle.recsys.models.settings import whole


class ELSA(AutoEncoderMixin, GeneralRecommender):
    """A linear autoencoder `x A A' - x` of a user's items, the rows of A having a length of 1: EASE of a low rank.

    Vancura, Alves, Kasalicky and Kordik, "Scalable linear shallow autoencoder for collaborative filtering", 2022. What
    is minimised is the squared distance between a history and what is made of it, both scaled to a length of 1.
    """

    input_type = InputType.USERWISE

    def __init__(self, config: Config, dataset: Dataset) -> None:
        super().__init__(config, dataset)
        self.build_history_items(dataset)
        self.item_embedding = nn.Embedding(self.n_items, whole(config, "embedding_size"))
        self.apply(xavier_uniform_initialization)

    def forward(self, history: Tensor) -> Tensor:
        """Return what is made of histories, `[users, n_items]`."""
        items = self.item_vectors()
        return history @ items @ items.T - history

    def item_vectors(self) -> Tensor:
        """Return the vector of each item id, of a length of 1."""
        return functional.normalize(at_least_float32(self.item_embedding.weight), dim=-1)

    def user_vectors(self) -> Tensor:
        """Return the sum of the vectors of the items of each user id."""
        items = self.item_vectors()
        return self.encode_all_users(lambda user: self.get_rating_matrix(user) @ items)

    def calculate_loss(self, interaction: Interaction) -> Tensor:
        """Return the squared distance between histories and what is made of them, both scaled."""
        history = self.histories.rows(interaction[self.USER_ID], distinct=True)
        made = functional.normalize(at_least_float32(self.forward(history)), dim=-1)
        return (made - functional.normalize(history, dim=-1)).square().sum(dim=1).mean()

    def predict(self, interaction: Interaction) -> Tensor:
        """Return the score of each row, `[rows]`."""
        scores = self.forward(self.get_rating_matrix(interaction[self.USER_ID]))
        return scores.gather(1, interaction[self.ITEM_ID].unsqueeze(1)).squeeze(1)

    def full_sort_predict(self, interaction: Interaction) -> Tensor:
        """Return the scores of all items, `[rows * n_items]`."""
        return self.forward(self.get_rating_matrix(interaction[self.USER_ID])).view(-1)
