"""Self-attention over a sequence."""

from torch import Tensor

from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.models.bases.sequential import TransformerRecommender
from treadle.recsys.models.layers.attention import TransformerEncoder


class SASRec(TransformerRecommender):
    """A Transformer in which each position looks at itself and what came before it.

    Kang and McAuley, "Self-attentive sequential recommendation", 2018. As in the paper, a sequence is trained on at
    all its positions at once, unless `train_all_positions` is False; the paper's loss is `loss_type: BCE`. The layers
    are normalised behind each part, as in RecBole, or before it, as in the paper, with `norm_first: true`; positions
    are counted from the beginning, as in RecBole, or from the end, as by the authors, with `positions_from_end: true`.

    Args:
        config: The settings.
        dataset: The data.
        further_items: How many embeddings there are beside those of items.
    """

    trains_all_positions = True

    def __init__(self, config: Config, dataset: Dataset, further_items: int = 0) -> None:
        super().__init__(config, dataset, further_items)
        self.apply(self._init_weights)
        self.clear_padding()

    def position_outputs(self, item_seq: Tensor) -> Tensor:
        """Return the vector of each sequence up to each of its positions, `[rows, length, hidden_size]`."""
        return self.encoded(item_seq, bidirectional=False)

    def forward(self, item_seq: Tensor, item_seq_len: Tensor) -> Tensor:
        """Return the vector of each sequence, `[rows, hidden_size]`."""
        if self.training or not self._is_plain():
            return self.gather_indexes(self.position_outputs(item_seq), item_seq_len - 1)
        return self.encoded_at(item_seq, item_seq_len - 1, bidirectional=False)

    def _is_plain(self) -> bool:
        """Whether no subclass has another way to encode positions, which the short cut to the last would pass by."""
        own = (type(self).position_outputs, type(self).encoded, type(self.trm_encoder))
        return own == (SASRec.position_outputs, TransformerRecommender.encoded, TransformerEncoder)
