"""What models share that sum a sequence up in one vector: the loss of the next item, and scores."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from treadle.errors import ConfigError
from treadle.fused_loss import linear_cross_entropy
from treadle.recsys.models.abstract_recommender import SequentialRecommender
from treadle.recsys.models.loss import BPRLoss, at_least_float32
from treadle.recsys.models.scoring import dot
from treadle.recsys.models.settings import choice

if TYPE_CHECKING:
    from treadle.recsys.config import Config
    from treadle.recsys.dataset import Dataset
    from treadle.recsys.interaction import Interaction

PADDING = -1
"""What stands for padding where items are numbered from 0."""


class NextItemRecommender(SequentialRecommender):
    """A model whose score of an item is the inner product of its embedding with the vector of a sequence.

    With `loss_type` "CE" the next item is told from all others, with "BPR" it is ranked above sampled ones, and with
    "BCE" it is told from them. With `train_all_positions` a sequence is trained on at every position, from its first
    to its last; a model has to define `position_outputs` for that, and to say so with `trains_all_positions`.

    Attributes:
        trains_all_positions: Whether the model can be trained on all positions. A subclass with a `forward` or
            `calculate_loss` of its own is trained on the last one, unless it says so again.
        predicts_logits: That scores are no probabilities; a sigmoid makes them some.
        item_embedding: The embeddings, for a subclass to make; those of padding stay zero.
        loss_type: "CE", "BPR" or "BCE".
        loss_fct: The loss of that name, for subclasses that calculate their own.

    Raises:
        ConfigError: The model cannot be trained on all positions.
    """

    trains_all_positions = False
    predicts_logits = True
    item_embedding: nn.Embedding

    def __init__(self, config: "Config", dataset: "Dataset") -> None:
        super().__init__(config, dataset)
        losses = {"CE": nn.CrossEntropyLoss, "BPR": BPRLoss, "BCE": nn.BCEWithLogitsLoss}
        self.loss_type = choice(config, "loss_type", list(losses))
        self.loss_fct: nn.Module = losses[self.loss_type]()
        self.train_all_positions = bool(config["train_all_positions"])
        if self.train_all_positions and not self.trains_all_positions:
            raise ConfigError(f"train_all_positions=True: {config.model} has no output at each position; leave it out")

    def position_outputs(self, item_seq: Tensor) -> Tensor:
        """Return the vector of each sequence up to each of its positions, `[rows, length, size]`.

        Args:
            item_seq: The items, with zeros behind them; what comes after a position must not count there.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define position_outputs")

    def sequence_output(self, interaction: "Interaction") -> Tensor:
        """Return the vector of each sequence, `[rows, size]`."""
        output: Tensor = self(interaction[self.ITEM_SEQ], interaction[self.ITEM_SEQ_LEN])
        return output

    def calculate_loss(self, interaction: "Interaction") -> Tensor:
        """Return the loss of the next item, at the last position or at all of them."""
        if self.train_all_positions:
            output = self.position_outputs(interaction[self.ITEM_SEQ])
            target, negative = self.POS_ITEM_SEQ, self.NEG_ITEM_SEQ
        else:
            output, target, negative = self.sequence_output(interaction), self.POS_ITEM_ID, self.NEG_ITEM_ID
        return self.next_item_loss(output, interaction[target], None if self._softmax else interaction[negative])

    @property
    def _softmax(self) -> bool:
        return self.loss_type == "CE"

    def next_item_loss(self, output: Tensor, targets: Tensor, negatives: Tensor | None = None) -> Tensor:
        """Return the mean loss over all targets that are no padding; 0 if there is none.

        Args:
            output: The vectors, `[..., size]`.
            targets: The next items, 0 where there is none, `[...]`.
            negatives: Sampled items, `[...]`, or `[..., n]` for several; not needed for "CE".
        """
        inside = targets != 0
        counted = inside.sum().clamp(min=1)
        if self._softmax:
            # Padding is no class, so that its embedding stays zero.
            output, items = self.head(output)
            return linear_cross_entropy(output, items, targets - 1, ignore_index=PADDING, reduction="sum") / counted
        assert negatives is not None, f"{self.loss_type} needs negatives"
        chosen = at_least_float32(self.score(output, targets)).unsqueeze(-1)
        drawn = at_least_float32(self.score(output, negatives)).view(*targets.shape, -1)
        if self.loss_type == "BPR":
            losses = -functional.logsigmoid(chosen - drawn).mean(dim=-1)
        else:
            losses = -functional.logsigmoid(chosen).squeeze(-1) - functional.logsigmoid(-drawn).sum(dim=-1)
        return (losses * inside).sum() / counted

    def head(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """Return vectors, and one for each item but padding, whose inner products are the scores."""
        return output, self.item_embedding.weight[1 : self.n_items]

    def score(self, output: Tensor, items: Tensor) -> Tensor:
        """Return the scores of items, as many for each vector as there are dimensions more."""
        return dot(output, self.item_embedding(items))

    def predict(self, interaction: "Interaction") -> Tensor:
        """Return the score of each row's item, `[rows]`."""
        return self.score(self.sequence_output(interaction), interaction[self.ITEM_ID])

    def full_sort_predict(self, interaction: "Interaction") -> Tensor:
        """Return the scores of all items, `[rows, n_items]`."""
        return torch.matmul(self.sequence_output(interaction), self.item_embedding.weight[: self.n_items].T)

    def clear_padding(self) -> None:
        """Make the embedding of padding zero; call it when the weights are drawn."""
        with torch.no_grad():
            self.item_embedding.weight[0].zero_()
