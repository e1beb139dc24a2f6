"""SASRec with gated blocks and a softmax over sampled items."""

from torch import Tensor, nn

from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.models.bases.whole_sequences import WholeSequenceRecommender
from treadle.recsys.models.layers.causal import GatedBlock, SequencePlaces
from treadle.recsys.models.settings import whole


class eSASRec(WholeSequenceRecommender):  # noqa: N801 - the name of the paper
    """A Transformer of LiGR blocks, trained with a softmax over the next item and sampled ones.

    Tikhonovich et al., "eSASRec: enhancing Transformer-based recommendations in a modular fashion", 2025.
    """

    def __init__(self, config: Config, dataset: Dataset) -> None:
        super().__init__(config, dataset)
        self.inner_size = whole(config, "inner_size")
        self.blocks = nn.ModuleList(
            GatedBlock(
                self.hidden_size,
                self.n_heads,
                self.inner_size,
                self.hidden_dropout_prob,
                self.attn_dropout_prob,
                self.layer_norm_eps,
            )
            for _ in range(self.n_layers)
        )
        self.draw_weights()

    def encode(self, embedded: Tensor, places: SequencePlaces, interaction: Interaction) -> Tensor:
        """Return the vector of each item, `[rows, length, hidden_size]`."""
        for block in self.blocks:
            embedded = block(embedded, places)
        return embedded
