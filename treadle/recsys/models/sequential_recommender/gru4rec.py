"""A recurrent network over the items of a session."""

from torch import Tensor, nn

from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.models.bases.sequential import NextItemRecommender
from treadle.recsys.models.settings import share, whole


class GRU4Rec(NextItemRecommender):
    """Gated recurrent units over the embeddings of a sequence; a linear layer brings their state to an item.

    Hidasi, Karatzoglou, Baltrunas and Tikk, "Session-based recommendations with recurrent neural networks", 2016, with
    the dropout of inputs of Tan, Xu and Liu, "Improved recurrent neural networks for session-based recommendations",
    2016. As in the paper, every step of a session is trained on, unless `train_all_positions` is False.
    """

    trains_all_positions = True

    def __init__(self, config: Config, dataset: Dataset) -> None:
        super().__init__(config, dataset)
        self.embedding_size, self.hidden_size = whole(config, "embedding_size"), whole(config, "hidden_size")
        self.num_layers, self.dropout_prob = whole(config, "num_layers"), share(config, "dropout_prob")
        self.item_embedding = nn.Embedding(self.n_items, self.embedding_size, padding_idx=0)
        self.emb_dropout = nn.Dropout(self.dropout_prob)
        self.gru_layers = nn.GRU(self.embedding_size, self.hidden_size, self.num_layers, bias=False, batch_first=True)
        self.dense = nn.Linear(self.hidden_size, self.embedding_size)
        self.apply(self._init_weights)
        self.clear_padding()

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Embedding):
            nn.init.xavier_normal_(module.weight)
        elif isinstance(module, nn.GRU):
            for weight in module.parameters():
                nn.init.xavier_uniform_(weight)

    def position_outputs(self, item_seq: Tensor) -> Tensor:
        """Return the vector of each sequence up to each of its positions, `[rows, length, embedding_size]`."""
        states, _ = self.gru_layers(self.emb_dropout(self.item_embedding(item_seq)))
        output: Tensor = self.dense(states)
        return output

    def forward(self, item_seq: Tensor, item_seq_len: Tensor) -> Tensor:
        """Return the vector of each sequence, `[rows, embedding_size]`."""
        states, _ = self.gru_layers(self.emb_dropout(self.item_embedding(item_seq)))
        # Padding stands behind a sequence: its last state is where it ends, and nothing has to be packed.
        output: Tensor = self.dense(self.gather_indexes(states, item_seq_len - 1))
        return output
