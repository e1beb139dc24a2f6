"""Attention to what a user did before, by the item in question."""

import torch
from torch import Tensor, nn

from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.enums import InputType
from treadle.recsys.models.abstract_recommender import SequentialRecommender
from treadle.recsys.models.init import xavier_normal_initialization
from treadle.recsys.models.layers.attention import SequenceAttLayer
from treadle.recsys.models.layers.mlp import MLPLayers
from treadle.recsys.models.layers.sequence_fields import ContextSeqEmbLayer
from treadle.recsys.models.loss import at_least_float32
from treadle.recsys.models.settings import share, sizes, whole


class DIN(SequentialRecommender):
    """The items of a history, each weighted by how it goes with the item in question; a network tells the click.

    Zhou, Zhu, Song, Fan, Zhu, Ma, Yan, Jin, Li and Gai, "Deep interest network for click-through rate prediction",
    2018. Items are all their fields. As in the authors' program, what is known of users does not go into the network.
    """

    input_type = InputType.POINTWISE

    def __init__(self, config: Config, dataset: Dataset) -> None:
        super().__init__(config, dataset)
        self.LABEL_FIELD = str(config["LABEL_FIELD"])
        self.embedding_size = whole(config, "embedding_size")
        self.mlp_hidden_size = sizes(config, "mlp_hidden_size")
        self.dropout_prob = share(config, "dropout_prob")
        self.embedding_layer = ContextSeqEmbLayer(dataset, self.embedding_size, str(config["pooling_mode"]))
        width = self.embedding_layer.num_fields("item") * self.embedding_size
        self.attention = SequenceAttLayer(
            att_hidden_size=[4 * width, *self.mlp_hidden_size], activation="sigmoid", return_seq_weight=False
        )
        self.dnn_mlp_layers = MLPLayers(
            [3 * width, *self.mlp_hidden_size], activation="dice", dropout=self.dropout_prob, bn=True
        )
        self.dnn_predict_layers = nn.Linear(self.mlp_hidden_size[-1], 1)
        self.loss = nn.BCEWithLogitsLoss()
        self.apply(xavier_normal_initialization)
        self.embedding_layer.tables["user"].requires_grad_(False)

    def forward(self, user: Tensor, item_seq: Tensor, item_seq_len: Tensor, next_items: Tensor) -> Tensor:
        """Return the logit of each row, `[rows]`."""
        items = self.embedding_layer.joined("item", torch.cat([item_seq, next_items.unsqueeze(1)], dim=1))
        history, target = items[:, :-1], items[:, -1]
        interest = self.attention(target, history, item_seq_len).squeeze(1)
        hidden = self.dnn_mlp_layers(torch.cat([interest, target, interest * target], dim=1))
        logits: Tensor = self.dnn_predict_layers(hidden).squeeze(1)
        return at_least_float32(logits)

    def _logits(self, interaction: Interaction) -> Tensor:
        columns = (self.USER_ID, self.ITEM_SEQ, self.ITEM_SEQ_LEN, self.POS_ITEM_ID)
        logits: Tensor = self(*(interaction[name] for name in columns))
        return logits

    def item_vectors(self) -> Tensor:
        """Return the embeddings of all fields of each item id, one after the other."""
        every = torch.arange(self.n_items, device=self.dnn_predict_layers.weight.device)
        return self.embedding_layer.joined("item", every)

    def calculate_loss(self, interaction: Interaction) -> Tensor:
        """Return the cross-entropy of the labels."""
        logits = self._logits(interaction)
        loss: Tensor = self.loss(logits, interaction[self.LABEL_FIELD].to(logits.dtype))
        return loss

    def predict(self, interaction: Interaction) -> Tensor:
        """Return the probability of each row, `[rows]`."""
        return self._logits(interaction).sigmoid()
