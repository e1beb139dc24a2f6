"""What recommenders that are Transformers share: their settings, their input, their initial weights."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from treadle.recsys.models.layers.attention import TransformerEncoder
from treadle.recsys.models.next_item import NextItemRecommender
from treadle.recsys.models.settings import number, share, whole

if TYPE_CHECKING:
    from treadle.recsys.config import Config
    from treadle.recsys.dataset import Dataset

CPU_NUMBERS = 2**20
"""How many numbers the widest layer may give at a time on a CPU: small enough to be warm in its caches."""


class TransformerRecommender(NextItemRecommender):
    """A Transformer over the embeddings of items and positions.

    Args:
        config: The settings.
        dataset: The data.
        further_items: How many embeddings there are beside those of items.
    """

    def __init__(self, config: "Config", dataset: "Dataset", further_items: int = 0) -> None:
        super().__init__(config, dataset)
        self.n_layers, self.n_heads = whole(config, "n_layers"), whole(config, "n_heads")
        self.hidden_size, self.inner_size = whole(config, "hidden_size"), whole(config, "inner_size")
        self.hidden_dropout_prob = share(config, "hidden_dropout_prob")
        self.attn_dropout_prob = share(config, "attn_dropout_prob")
        self.hidden_act = str(config["hidden_act"])
        self.layer_norm_eps = number(config, "layer_norm_eps")
        self.initializer_range = number(config, "initializer_range")
        self.norm_first = bool(config["norm_first"])
        self.positions_from_end = bool(config["positions_from_end"])
        self.item_embedding = nn.Embedding(self.n_items + further_items, self.hidden_size, padding_idx=0)
        self.position_embedding = nn.Embedding(self.max_seq_length, self.hidden_size)
        self.trm_encoder = TransformerEncoder(
            self.n_layers,
            self.n_heads,
            self.hidden_size,
            self.inner_size,
            self.hidden_dropout_prob,
            self.attn_dropout_prob,
            self.hidden_act,
            self.layer_norm_eps,
            self.norm_first,
        )
        self.LayerNorm = nn.LayerNorm(self.hidden_size, eps=self.layer_norm_eps)
        self.dropout = nn.Dropout(self.hidden_dropout_prob)

    def _init_weights(self, module: nn.Module) -> None:
        """Draw the weights of a layer."""
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, 0.0, self.initializer_range)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def encoded(self, item_seq: Tensor, *, bidirectional: bool) -> Tensor:
        """Return the output of the last layer at each position, `[rows, length, hidden_size]`.

        Args:
            item_seq: The items, with zeros behind them.
            bidirectional: Whether a position sees what comes after it.
        """
        mask = self.get_attention_mask(item_seq, bidirectional=bidirectional)
        return self._finished(self.trm_encoder(self._embedded(item_seq), mask)[-1])

    def encoded_at(self, item_seq: Tensor, positions: Tensor, *, bidirectional: bool) -> Tensor:
        """Return the output of the last layer at one position of each row, `[rows, hidden_size]`.

        It is what `encoded` has there, but costs about half as much. Dropout draws other numbers.

        Args:
            item_seq: The items, with zeros behind them.
            positions: The positions, `[rows]`.
            bidirectional: Whether a position sees what comes after it.
        """
        if item_seq.device.type != "cpu":
            return self._encoded_at(item_seq, positions, bidirectional)
        rows = max(1, CPU_NUMBERS // (item_seq.shape[1] * self.inner_size))
        parts = zip(torch.split(item_seq, rows), torch.split(positions, rows), strict=True)
        return torch.cat([self._encoded_at(items, at, bidirectional) for items, at in parts])

    def _encoded_at(self, item_seq: Tensor, positions: Tensor, bidirectional: bool) -> Tensor:
        mask = self.get_attention_mask(item_seq, bidirectional=bidirectional)
        return self._finished(self.trm_encoder.last(self._embedded(item_seq), mask, positions))

    def _embedded(self, item_seq: Tensor) -> Tensor:
        """Return what goes into the first layer."""
        embedded = self.item_embedding(item_seq) + self.position_embedding(self._positions(item_seq))
        read: Tensor = self.dropout(embedded if self.norm_first else self.LayerNorm(embedded))
        return read

    def _finished(self, hidden: Tensor) -> Tensor:
        """Return the output that the states behind the last layer stand for."""
        output: Tensor = self.LayerNorm(hidden) if self.norm_first else hidden
        return output

    def _positions(self, item_seq: Tensor) -> Tensor:
        """Return the number of each position: from the first item, or such that the last item has the last one."""
        steps = torch.arange(item_seq.shape[1], device=item_seq.device)
        if not self.positions_from_end:
            return steps
        lengths = (item_seq != 0).sum(dim=1, keepdim=True)
        # What stands behind the end is padding, which nobody looks at.
        return (steps + self.max_seq_length - lengths).clamp(max=self.max_seq_length - 1)
