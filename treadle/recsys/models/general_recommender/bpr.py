"""Matrix factorisation by Bayesian personalised ranking."""

from torch import Tensor, nn

from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.enums import InputType
from treadle.recsys.models.abstract_recommender import GeneralRecommender
from treadle.recsys.models.init import xavier_normal_initialization
from treadle.recsys.models.layers.functional import all_dots, dot, embedding_rows, margins, row_margins
from treadle.recsys.models.loss import BPRLoss
from treadle.recsys.models.settings import whole


class BPR(GeneralRecommender):
    """An embedding for each user and each item; their inner product ranks what was chosen above what was not.

    Rendle, Freudenthaler, Gantner and Schmidt-Thieme, "BPR: Bayesian personalized ranking from implicit feedback",
    2009.
    """

    input_type = InputType.PAIRWISE

    def __init__(self, config: Config, dataset: Dataset) -> None:
        super().__init__(config, dataset)
        self.embedding_size = whole(config, "embedding_size")
        self.user_embedding = nn.Embedding(self.n_users, self.embedding_size)
        self.item_embedding = nn.Embedding(self.n_items, self.embedding_size)
        self.loss = BPRLoss()
        self.apply(xavier_normal_initialization)

    def forward(self, user: Tensor, item: Tensor) -> tuple[Tensor, Tensor]:
        """Return the embeddings of users and items."""
        return embedding_rows(self.user_embedding, user), embedding_rows(self.item_embedding, item)

    def calculate_loss(self, interaction: Interaction) -> Tensor:
        """Return the pairwise loss."""
        user, positive = interaction[self.USER_ID], interaction[self.ITEM_ID]
        negative = interaction[self.NEG_ITEM_ID]
        if type(self).forward is BPR.forward:
            tables = self.user_embedding, self.item_embedding
            return self.loss.from_differences(row_margins(*tables, user, positive, negative))
        # A subclass has embeddings of its own making.
        users, positives = self.forward(user, positive)
        negatives = embedding_rows(self.item_embedding, negative)
        return self.loss.from_differences(margins(users, positives, negatives))

    def predict(self, interaction: Interaction) -> Tensor:
        """Return the score of each row, `[rows]`."""
        return dot(*self.forward(interaction[self.USER_ID], interaction[self.ITEM_ID]))

    def full_sort_predict(self, interaction: Interaction) -> Tensor:
        """Return the scores of all items, `[rows * n_items]`."""
        return all_dots(self.user_embedding(interaction[self.USER_ID]), self.item_embedding.weight)
