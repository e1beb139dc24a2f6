"""SASRec trained with many sampled items, and a loss that is calibrated for it."""

from torch import Tensor, nn

from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.models.bases.whole_sequences import WholeSequenceRecommender
from treadle.recsys.models.layers.causal import PreNormBlock, SequencePlaces
from treadle.recsys.models.settings import whole


class gSASRec(WholeSequenceRecommender):  # noqa: N801 - the name of the paper
    """A Transformer whose blocks normalise what they read, trained with gBCE unless `loss_type` says otherwise.

    Petrov and Macdonald, "gSASRec: reducing overconfidence in sequential recommendation trained with negative
    sampling", 2023. With `loss_type: sampled_softmax` or `CE` it is the SASRec of today's comparisons: Klenitskiy and
    Vasilev, "Turning dross into gold loss: is BERT4Rec really better than SASRec?", 2023.
    """

    def __init__(self, config: Config, dataset: Dataset) -> None:
        super().__init__(config, dataset)
        self.inner_size, self.hidden_act = whole(config, "inner_size"), str(config["hidden_act"])
        self.blocks = nn.ModuleList(
            PreNormBlock(
                self.hidden_size,
                self.n_heads,
                self.inner_size,
                self.hidden_dropout_prob,
                self.attn_dropout_prob,
                self.hidden_act,
                self.layer_norm_eps,
            )
            for _ in range(self.n_layers)
        )
        self.output_norm = nn.LayerNorm(self.hidden_size, eps=self.layer_norm_eps)
        self.draw_weights()

    def encode(self, embedded: Tensor, places: SequencePlaces, interaction: Interaction) -> Tensor:
        """Return the vector of each item, `[rows, length, hidden_size]`."""
        for block in self.blocks:
            embedded = block(embedded, places)
        output: Tensor = self.output_norm(embedded)
        return output
