"""A recurrent network over a session, and attention to its main purpose."""

import torch
from torch import Tensor, nn

from treadle.errors import ConfigError
from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.models.bases.sequential import NextItemRecommender
from treadle.recsys.models.init import xavier_normal_initialization
from treadle.recsys.models.settings import whole


class NARM(NextItemRecommender):
    """The last state of a recurrent network, and the sum of all its states, weighted by what the last one asks for.

    Li, Ren, Chen, Ren, Lian and Ma, "Neural attentive session-based recommendation", 2017. A state `h_j` weighs
    `v' sigmoid(A1 h_j + A2 h_t)` in the sum; the two vectors together are mapped to the embedding of an item.
    """

    def __init__(self, config: Config, dataset: Dataset) -> None:
        super().__init__(config, dataset)
        self.embedding_size, self.hidden_size = whole(config, "embedding_size"), whole(config, "hidden_size")
        self.n_layers, self.dropout_probs = whole(config, "n_layers"), _two_shares(config)
        self.item_embedding = nn.Embedding(self.n_items, self.embedding_size, padding_idx=0)
        self.emb_dropout = nn.Dropout(self.dropout_probs[0])
        self.gru = nn.GRU(self.embedding_size, self.hidden_size, self.n_layers, bias=False, batch_first=True)
        self.a_1 = nn.Linear(self.hidden_size, self.hidden_size, bias=False)
        self.a_2 = nn.Linear(self.hidden_size, self.hidden_size, bias=False)
        self.v_t = nn.Linear(self.hidden_size, 1, bias=False)
        self.ct_dropout = nn.Dropout(self.dropout_probs[1])
        self.b = nn.Linear(2 * self.hidden_size, self.embedding_size, bias=False)
        self.apply(xavier_normal_initialization)
        self.clear_padding()

    def forward(self, item_seq: Tensor, item_seq_len: Tensor) -> Tensor:
        """Return the vector of each sequence, `[rows, embedding_size]`."""
        states, _ = self.gru(self.emb_dropout(self.item_embedding(item_seq)))
        last = self.gather_indexes(states, item_seq_len - 1)
        weights = self.v_t(torch.sigmoid(self.a_1(states) + self.a_2(last).unsqueeze(1)))
        steps = torch.arange(item_seq.shape[1], device=item_seq.device)
        inside = (steps < item_seq_len.unsqueeze(1)).unsqueeze(2)
        purpose = (weights * inside * states).sum(dim=1)
        output: Tensor = self.b(self.ct_dropout(torch.cat([purpose, last], dim=1)))
        return output


def _two_shares(config: Config) -> list[float]:
    value = config["dropout_probs"]
    good = isinstance(value, (list, tuple)) and all(isinstance(one, (int, float)) and 0 <= one < 1 for one in value)
    if not good or len(value) != 2:
        raise ConfigError(
            f"dropout_probs={value!r} must be two numbers from 0 and below 1: of embeddings and of the output"
        )
    return [float(one) for one in value]
