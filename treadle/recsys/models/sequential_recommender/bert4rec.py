"""A bidirectional Transformer that finds hidden items."""

import torch
from torch import Tensor, nn

from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.models.bases.sequential import TransformerRecommender


class BERT4Rec(TransformerRecommender):
    """A Transformer in which each position looks at all others, trained to find items that are hidden.

    Sun, Liu, Wu, Pei, Lin, Ou and Jiang, "BERT4Rec: sequential recommendation with bidirectional encoder
    representations from Transformer", 2019. `transform: mask_itemseq` hides a share `mask_ratio` of the items; to
    predict, a hidden item is put behind the sequence, of which the oldest makes room if there is none left. By default
    each part of a sequence from its beginning is a row, as in RecBole; with `train_all_positions` each sequence is one,
    as in the paper, and an epoch is many times shorter.

    Attributes:
        MASK_ITEM_SEQ, POS_ITEMS, NEG_ITEMS, MASK_INDEX: The columns with sequences in which items are hidden, with the
            hidden items, with sampled ones, and with the places of the hidden ones.
        mask_token: What stands for a hidden item.
    """

    trains_all_positions = True

    def __init__(self, config: Config, dataset: Dataset) -> None:
        super().__init__(config, dataset, further_items=1)
        self.MASK_ITEM_SEQ = str(config["MASK_ITEM_SEQ"] or f"Mask_{self.ITEM_SEQ}")
        self.POS_ITEMS = str(config["POS_ITEMS"] or f"Pos_{self.ITEM_ID}")
        self.NEG_ITEMS = str(config["NEG_ITEMS"] or f"Neg_{self.ITEM_ID}")
        self.MASK_INDEX = str(config["MASK_INDEX"] or "MASK_INDEX")
        self.mask_token = self.n_items
        self.output_ffn = nn.Linear(self.hidden_size, self.hidden_size)
        self.output_gelu = nn.GELU()
        self.output_ln = nn.LayerNorm(self.hidden_size, eps=self.layer_norm_eps)
        self.output_bias = nn.Parameter(torch.zeros(self.n_items))
        self.apply(self._init_weights)
        self.clear_padding()

    def forward(self, item_seq: Tensor) -> Tensor:
        """Return a vector for each position, `[rows, length, hidden_size]`."""
        hidden = self.encoded(item_seq, bidirectional=True)
        output: Tensor = self.output_ln(self.output_gelu(self.output_ffn(hidden)))
        return output

    def reconstruct_test_data(self, item_seq: Tensor, item_seq_len: Tensor) -> Tensor:
        """Return the sequences with a hidden item behind them, of the same length."""
        return self._with_hidden_item(item_seq, item_seq_len)[0]

    def _with_hidden_item(self, item_seq: Tensor, item_seq_len: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sequences with a hidden item behind them, and where it is."""
        width = item_seq.shape[1]
        place = item_seq_len.clamp(max=width - 1).unsqueeze(1)
        # Only a full sequence loses its oldest item: any other would be moved to positions it was not trained at.
        moved = item_seq_len.unsqueeze(1) - place
        steps = torch.arange(width, device=item_seq.device)
        items = item_seq.gather(1, (steps + moved).clamp(max=width - 1))
        return torch.where(steps == place, self.mask_token, items), place.squeeze(1)

    def sequence_output(self, interaction: Interaction) -> Tensor:
        """Return the vector of a hidden item behind each sequence, `[rows, hidden_size]`."""
        items, place = self._with_hidden_item(interaction[self.ITEM_SEQ], interaction[self.ITEM_SEQ_LEN])
        return self.gather_indexes(self(items), place)

    def calculate_loss(self, interaction: Interaction) -> Tensor:
        """Return the mean loss of the hidden items."""
        output = self(interaction[self.MASK_ITEM_SEQ])
        places = interaction[self.MASK_INDEX].unsqueeze(2).expand(-1, -1, output.shape[2])
        negatives = None if self.loss_type == "CE" else interaction[self.NEG_ITEMS]
        return self.next_item_loss(output.gather(1, places), interaction[self.POS_ITEMS], negatives)

    def loss_weight(self, interaction: Interaction) -> Tensor:
        """Return how many items the loss of a batch is a mean over."""
        count: Tensor = (interaction[self.POS_ITEMS] != 0).sum()
        return count

    def head(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """Return vectors, and one for each item but padding, whose inner products are the scores."""
        # The bias of an item is the product of one more dimension, which is 1 in every vector.
        ones = output.new_ones(*output.shape[:-1], 1)
        _, items = super().head(output)
        return torch.cat([output, ones], dim=-1), torch.cat([items, self.output_bias[1:].unsqueeze(1)], dim=1)

    def score(self, output: Tensor, items: Tensor) -> Tensor:
        """Return the scores of items, as many for each vector as there are dimensions more."""
        return super().score(output, items) + self.output_bias[items]

    def full_sort_predict(self, interaction: Interaction) -> Tensor:
        """Return the scores of all items, `[rows, n_items]`."""
        return super().full_sort_predict(interaction) + self.output_bias
