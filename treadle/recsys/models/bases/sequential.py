"""What models share that sum a sequence up in one vector: the loss of the next item, and scores."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from treadle.errors import ConfigError
from treadle.ops.linear_cross_entropy import linear_cross_entropy
from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.models.abstract_recommender import SequentialRecommender
from treadle.recsys.models.layers.attention import TransformerEncoder
from treadle.recsys.models.layers.functional import dot
from treadle.recsys.models.loss import BPRLoss, at_least_float32
from treadle.recsys.models.settings import choice, number, share, whole

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

    def __init__(self, config: Config, dataset: Dataset) -> None:
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

    def sequence_output(self, interaction: Interaction) -> Tensor:
        """Return the vector of each sequence, `[rows, size]`."""
        output: Tensor = self(interaction[self.ITEM_SEQ], interaction[self.ITEM_SEQ_LEN])
        return output

    def calculate_loss(self, interaction: Interaction) -> Tensor:
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

    def predict(self, interaction: Interaction) -> Tensor:
        """Return the score of each row's item, `[rows]`."""
        return self.score(self.sequence_output(interaction), interaction[self.ITEM_ID])

    def full_sort_predict(self, interaction: Interaction) -> Tensor:
        """Return the scores of all items, `[rows, n_items]`."""
        return torch.matmul(self.sequence_output(interaction), self.item_embedding.weight[: self.n_items].T)

    def clear_padding(self) -> None:
        """Make the embedding of padding zero; call it when the weights are drawn."""
        with torch.no_grad():
            self.item_embedding.weight[0].zero_()


# What recommenders that are Transformers share: their settings, their input, their initial weights


CPU_NUMBERS = 2**20
"""How many numbers the widest layer may give at a time on a CPU: small enough to be warm in its caches."""


class TransformerRecommender(NextItemRecommender):
    """A Transformer over the embeddings of items and positions.

    Args:
        config: The settings.
        dataset: The data.
        further_items: How many embeddings there are beside those of items.
    """

    def __init__(self, config: Config, dataset: Dataset, further_items: int = 0) -> None:
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
        # A program takes any number of rows, and cannot say in how many parts they come.
        if item_seq.device.type != "cpu" or torch.compiler.is_exporting():
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
