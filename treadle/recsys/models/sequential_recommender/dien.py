"""Interests that evolve, towards the item in question."""

import torch
from torch import Tensor, nn

from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.data.sequential_dataset import DIENDataset
from treadle.recsys.enums import InputType
from treadle.recsys.models.abstract_recommender import SequentialRecommender
from treadle.recsys.models.init import xavier_normal_initialization
from treadle.recsys.models.layers.interest import GRU_TYPES, InterestEvolvingLayer, InterestExtractorNetwork
from treadle.recsys.models.layers.mlp import MLPLayers
from treadle.recsys.models.layers.sequence_fields import ContextSeqEmbLayer
from treadle.recsys.models.loss import at_least_float32
from treadle.recsys.models.settings import choice, number, share, sizes, whole


class DIEN(SequentialRecommender):
    """A recurrent network finds interests in a history, a second one follows those that go with the item in question.

    Zhou, Mou, Fan, Pi, Bian, Zhou, Zhu and Gai, "Deep interest evolution network for click-through rate prediction",
    2019. An auxiliary loss has each interest tell the next item from one that was not chosen; `DIENDataset` draws it.
    """

    input_type = InputType.POINTWISE
    dataset_class = DIENDataset

    def __init__(self, config: Config, dataset: Dataset) -> None:
        super().__init__(config, dataset)
        self.LABEL_FIELD = str(config["LABEL_FIELD"])
        self.alpha = number(config, "alpha")
        self.gru = choice(config, "gru_type", GRU_TYPES)
        self.embedding_size = whole(config, "embedding_size")
        hidden = self.mlp_hidden_size = sizes(config, "mlp_hidden_size")
        self.dropout_prob = share(config, "dropout_prob")
        self.embedding_layer = ContextSeqEmbLayer(dataset, self.embedding_size, str(config["pooling_mode"]))
        item, user = (self.embedding_layer.num_fields(kind) * self.embedding_size for kind in ("item", "user"))
        self.interset_extractor = InterestExtractorNetwork(item, item, [2 * item, *hidden, 1])
        self.interest_evolution = InterestEvolvingLayer(None, item, item, [4 * item, *hidden], gru=self.gru)
        self.dnn_mlp_layers = MLPLayers([2 * item + user, *hidden], self.dropout_prob, activation="dice", bn=True)
        self.dnn_predict_layer = nn.Linear(hidden[-1], 1)
        self.loss = nn.BCEWithLogitsLoss()
        self.apply(xavier_normal_initialization)

    def forward(
        self, user: Tensor, item_seq: Tensor, neg_item_seq: Tensor | None, item_seq_len: Tensor, next_items: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Return the logit of each row, `[rows]`, and the auxiliary loss.

        Args:
            user: The users.
            item_seq: Their histories.
            neg_item_seq: For each item of a history one that was not chosen; None for no auxiliary loss.
            item_seq_len: The lengths of the histories.
            next_items: The items in question.
        """
        length = item_seq.shape[1]
        parts = [item_seq, next_items.unsqueeze(1)] + ([] if neg_item_seq is None else [neg_item_seq])
        items = self.embedding_layer.joined("item", torch.cat(parts, dim=1))
        history, target, others = items[:, :length], items[:, length], items[:, length + 1 :]
        interests, auxiliary = self.interset_extractor(history, item_seq_len, None if neg_item_seq is None else others)
        evolved = self.interest_evolution(target, interests, item_seq_len)
        known = self.embedding_layer.joined("user", user)
        hidden = self.dnn_mlp_layers(torch.cat([evolved, target, known], dim=1))
        return at_least_float32(self.dnn_predict_layer(hidden).squeeze(1)), auxiliary

    def item_vectors(self) -> Tensor:
        """Return the embeddings of all fields of each item id, one after the other."""
        every = torch.arange(self.n_items, device=self.dnn_predict_layer.weight.device)
        return self.embedding_layer.joined("item", every)

    def calculate_loss(self, interaction: Interaction) -> Tensor:
        """Return the cross-entropy of the labels, and the auxiliary loss."""
        columns = (self.USER_ID, self.ITEM_SEQ, self.NEG_ITEM_SEQ, self.ITEM_SEQ_LEN, self.POS_ITEM_ID)
        logits, auxiliary = self(*(interaction[name] for name in columns))
        loss: Tensor = self.loss(logits, interaction[self.LABEL_FIELD].to(logits.dtype)) + self.alpha * auxiliary
        return loss

    def predict(self, interaction: Interaction) -> Tensor:
        """Return the probability of each row, `[rows]`."""
        logits, _ = self(
            interaction[self.USER_ID],
            interaction[self.ITEM_SEQ],
            None,
            interaction[self.ITEM_SEQ_LEN],
            interaction[self.POS_ITEM_ID],
        )
        probabilities: Tensor = logits.sigmoid()
        return probabilities
