"""Hierarchical sequential transduction units: attention without softmax, relative in place and time."""

import torch
from torch import Tensor, nn

from treadle.errors import ConfigError
from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.models.bases.whole_sequences import WholeSequenceRecommender
from treadle.recsys.models.layers.causal import PointwiseBlock, SequencePlaces
from treadle.recsys.models.settings import whole


class HSTU(WholeSequenceRecommender):
    """A stack of blocks with pointwise attention, trained with a softmax over the next item and sampled ones.

    Zhai et al., "Actions speak louder than words: trillion-parameter sequential transducers for generative
    recommendations", 2024. As in its public experiments scores are cosines divided by a temperature. The bias of time
    goes by the time between two items that are known; in the authors' program an item is told when the next one
    comes. Without times, `time_buckets: 0` goes by places alone.

    Raises:
        ConfigError: There is to be a bias of time, and the data has no times.
    """

    def __init__(self, config: Config, dataset: Dataset) -> None:
        super().__init__(config, dataset)
        self.time_buckets = whole(config, "time_buckets", least=0)
        time = dataset.time_field
        self.TIME_SEQ = f"{time}{config['LIST_SUFFIX']}"
        if self.time_buckets and (time is None or time not in dataset.inter_feat):
            raise ConfigError(
                f"time_buckets={self.time_buckets}: the interactions of {dataset.dataset_name!r} have no times; load "
                "them, or set time_buckets to 0"
            )
        self.blocks = nn.ModuleList(
            PointwiseBlock(
                self.hidden_size,
                self.n_heads,
                whole(config, "attention_size"),
                whole(config, "value_size"),
                self.hidden_dropout_prob,
                self.attn_dropout_prob,
                self.max_seq_length,
                self.time_buckets,
                self.layer_norm_eps,
            )
            for _ in range(self.n_layers)
        )
        self.draw_weights()

    def encode(self, embedded: Tensor, places: SequencePlaces, interaction: Interaction) -> Tensor:
        """Return the vector of each item, `[rows, length, hidden_size]`."""
        length = embedded.shape[1]
        mask = places.mask
        if mask is None:
            mask = torch.ones(length, length, dtype=torch.bool, device=embedded.device).tril()
        times = interaction[self.TIME_SEQ] if self.time_buckets else None
        for block in self.blocks:
            embedded = block(embedded, mask, times)
        return embedded
