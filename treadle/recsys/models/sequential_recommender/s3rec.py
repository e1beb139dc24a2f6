"""Self-supervised learning for sequences of items with attributes."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from treadle.errors import ConfigError, did_you_mean
from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.data.transforms import pretrain_columns
from treadle.recsys.enums import FeatureSource
from treadle.recsys.models.constants import Constants
from treadle.recsys.models.layers.functional import dot
from treadle.recsys.models.loss import at_least_float32
from treadle.recsys.models.sequential_recommender.sasrec import SASRec
from treadle.recsys.models.settings import number


class S3Rec(SASRec):
    """SASRec that first learns what sequences hide: attributes, items and segments.

    Zhou, Wang, Zhao, Zhu, Wang, Zhang, Wang and Wen, "S3-Rec: self-supervised learning for sequential recommendation
    with mutual information maximization", 2020. In the first stage every position looks at all others, and there are
    four tasks: the attributes of items that are there (AAP) and of hidden ones (MAP), hidden items (MIP) and hidden
    segments (SP). In the second it is SASRec. All losses of the first stage are sums over positions, and means over
    rows. A row of the first stage is each part of a sequence from its beginning, or, without `pretrain_prefixes`, a
    whole one; without `train_all_positions` both stages have rows as in RecBole.

    Attributes:
        item_attribute: The field of items with their attributes.
        n_attributes: How many attributes there are.
        mask_token: What stands for a hidden item.

    Raises:
        ConfigError: Items have no tokens in a field of that name.
    """

    trains_all_positions = True

    def __init__(self, config: Config, dataset: Dataset) -> None:
        super().__init__(config, dataset, further_items=1)
        self.mask_token = self.n_items
        self.aap_weight, self.mip_weight = number(config, "aap_weight"), number(config, "mip_weight")
        self.map_weight, self.sp_weight = number(config, "map_weight"), number(config, "sp_weight")
        self.item_attribute = _attribute_field(config, dataset)
        self.attributes = Constants(of_items=_attributes(dataset, self.item_attribute))
        self.n_attributes = self.attributes.of_items.shape[1]
        self.attribute_embedding = nn.Embedding(self.n_attributes, self.hidden_size)
        self.aap_norm = nn.Linear(self.hidden_size, self.hidden_size)
        self.mip_norm = nn.Linear(self.hidden_size, self.hidden_size)
        self.map_norm = nn.Linear(self.hidden_size, self.hidden_size)
        self.sp_norm = nn.Linear(self.hidden_size, self.hidden_size)
        self.apply(self._init_weights)
        self.clear_padding()

    def calculate_pretrain_loss(self, interaction: Interaction) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the weighted losses of the first stage: of attributes, hidden items, their attributes, and segments.

        Args:
            interaction: Sequences, with the columns that `HideItemsAndSegments` adds.
        """
        items, lengths = interaction[self.ITEM_SEQ], interaction[self.ITEM_SEQ_LEN]
        masked, negatives, *segments = (interaction[name] for name in pretrain_columns(self.ITEM_SEQ))
        # Four kinds of sequences go through the layers together: a quarter of the kernels.
        output = self.encoded(torch.cat([masked, *segments]), bidirectional=True)
        sequences, context, own, others = output.chunk(4)
        hidden = masked == self.mask_token
        present, missing = self._attribute_losses(sequences, items, hidden)
        rows = len(items)
        ends = [self.gather_indexes(one, lengths - 1) for one in (context, own, others)]
        return (
            self.aap_weight * present.sum() / rows,
            self.mip_weight * (self._item_losses(sequences, items, negatives) * hidden).sum() / rows,
            self.map_weight * missing.sum() / rows,
            # A sequence of one item has no segment.
            self.sp_weight * (self._segment_losses(*ends) * (lengths > 1)).sum() / rows,
        )

    def _attribute_losses(self, output: Tensor, items: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return how badly attributes are told, of items that are there, and of hidden ones; 0 at other positions."""
        # A position has one of the two tasks, so that one product with all attributes does for both.
        asked = torch.where(hidden.unsqueeze(2), self.map_norm(output), self.aap_norm(output))
        scores = at_least_float32(torch.matmul(asked, self.attribute_embedding.weight.T))
        known = self.attributes.of_items[items].to(scores.dtype)
        losses = functional.binary_cross_entropy_with_logits(scores, known, reduction="none").sum(dim=2)
        return losses * ((items != 0) & ~hidden), losses * hidden

    def _item_losses(self, output: Tensor, items: Tensor, negatives: Tensor) -> Tensor:
        """Return how badly the item of each position is told from another one."""
        asked = self.mip_norm(output)
        return _ranking_losses(dot(asked, self.item_embedding(items)), dot(asked, self.item_embedding(negatives)))

    def _segment_losses(self, context: Tensor, own: Tensor, others: Tensor) -> Tensor:
        """Return how badly the segment of each sequence is told from that of another one."""
        asked = self.sp_norm(context)
        return _ranking_losses(dot(asked, own), dot(asked, others))

    def loss_weight(self, interaction: Interaction) -> Tensor | None:
        """Return how many targets the loss of a batch is a mean over; None where that is its rows."""
        if self.POS_ITEM_SEQ not in interaction or pretrain_columns(self.ITEM_SEQ)[0] in interaction:
            return None
        count: Tensor = (interaction[self.POS_ITEM_SEQ] != 0).sum()
        return count


def _ranking_losses(chosen: Tensor, others: Tensor) -> Tensor:
    """Return how badly what was chosen is told from something else; scores are probabilities, as in the paper."""
    margin = torch.sigmoid(at_least_float32(chosen)) - torch.sigmoid(at_least_float32(others))
    return -functional.logsigmoid(margin)


def _attribute_field(config: Config, dataset: Dataset) -> str:
    name = config["item_attribute"]
    known = [one for one in dataset.fields(source=[FeatureSource.ITEM]) if dataset.field2type[one].is_token]
    if name not in known:
        near = did_you_mean(str(name), known) or f"; there are {known}"
        raise ConfigError(
            f"item_attribute={name!r}: the items of {dataset.dataset_name!r} have no tokens of that name{near}; "
            "load them with load_col: {item: [item_id, ...]}"
        )
    return str(name)


def _attributes(dataset: Dataset, field: str) -> Tensor:
    """Return which of all attributes each item has, as a matrix."""
    values = dataset.get_item_feature()[field]
    listed = values.reshape(len(values), -1)
    marked = torch.zeros(len(values), dataset.num(field), dtype=torch.bool)
    # Padding is no attribute.
    return marked.scatter_(1, listed, True)[:, 1:].contiguous()
