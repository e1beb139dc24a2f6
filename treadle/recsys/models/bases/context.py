"""What models of clicks share: the loss of a label, and probabilities."""

from torch import Tensor, nn

from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.models.abstract_recommender import ContextRecommender
from treadle.recsys.models.loss import at_least_float32


class ClickRecommender(ContextRecommender):
    """A model whose `forward` returns the logit of each row, `[rows]`."""

    def __init__(self, config: Config, dataset: Dataset) -> None:
        super().__init__(config, dataset)
        self.loss = nn.BCEWithLogitsLoss()

    def calculate_loss(self, interaction: Interaction) -> Tensor:
        """Return the cross-entropy of the labels."""
        logits = at_least_float32(self(interaction))
        loss: Tensor = self.loss(logits, interaction[self.LABEL].to(logits.dtype))
        return loss

    def predict(self, interaction: Interaction) -> Tensor:
        """Return the probability of each row, `[rows]`."""
        return at_least_float32(self(interaction)).sigmoid()

    def features(self, interaction: Interaction) -> Tensor:
        """Return the embeddings of all fields of a row one after the other, `[rows, num_feature_field * size]`."""
        return self.concat_embed_input_fields(interaction).flatten(1)
