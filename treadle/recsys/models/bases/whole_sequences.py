"""What models share that are trained on whole sequences at once, with losses over all items or over sampled ones."""

from abc import abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional

from treadle.errors import ConfigError
from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataloader.packed_dataloader import LENGTH, NEGATIVE_SEED, PLACE, POSITION
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.enums import InputType
from treadle.recsys.models.abstract_recommender import SequentialRecommender
from treadle.recsys.models.layers.causal import SequencePlaces, alone_in_rows, sharing_rows
from treadle.recsys.models.layers.functional import dot
from treadle.recsys.models.next_item_losses import NextItemLoss
from treadle.recsys.models.settings import number, share, whole

NUMBERS_AT_ONCE = {"cuda": 2**26, "cpu": 2**20}
"""How many scores an attention has at a time in an evaluation, by the kind of device."""


class WholeSequenceRecommender(SequentialRecommender):
    """A model that gives a vector for each item of a sequence, from it and what came before it.

    The score of an item is the inner product of its embedding with the vector of the last item, or their cosine divided
    by `temperature`, if there is one. `sequence_layout` says how batches look, and `NextItemLoss` which losses there
    are. A subclass defines `encode`.

    Attributes:
        takes_whole_sequences: Says that `sequence_layout` is for this model, and that it samples items by itself.
        predicts_logits: That scores are no probabilities; a sigmoid makes them some.
        item_embedding: The embeddings; that of padding stays zero.
        position_embedding: Those of places in a sequence.
        loss: What the model is trained with.
    """

    input_type = InputType.POINTWISE
    takes_whole_sequences = True
    predicts_logits = True

    def __init__(self, config: Config, dataset: Dataset) -> None:
        super().__init__(config, dataset)
        self.n_layers, self.n_heads = whole(config, "n_layers"), whole(config, "n_heads")
        self.hidden_size = whole(config, "hidden_size")
        self.hidden_dropout_prob = share(config, "hidden_dropout_prob")
        self.attn_dropout_prob = share(config, "attn_dropout_prob")
        self.layer_norm_eps = number(config, "layer_norm_eps")
        self.initializer_range = number(config, "initializer_range")
        self.positions_from_end = bool(config["positions_from_end"])
        self.temperature = None if config["temperature"] is None else number(config, "temperature")
        if self.temperature == 0:
            raise ConfigError("temperature=0: cosines are divided by it; give a number above 0, or none for products")
        self.item_embedding = nn.Embedding(self.n_items, self.hidden_size, padding_idx=0)
        self.position_embedding = nn.Embedding(self.max_seq_length, self.hidden_size)
        self.input_dropout = nn.Dropout(self.hidden_dropout_prob)
        self.loss = NextItemLoss(config, dataset)

    @abstractmethod
    def encode(self, embedded: Tensor, places: SequencePlaces, interaction: Interaction) -> Tensor:
        """Return the vector of each item, `[rows, length, hidden_size]`.

        Args:
            embedded: The embeddings of items and places, `[rows, length, hidden_size]`.
            places: Where each item stands, and what it sees.
            interaction: The batch, for further columns.
        """

    def draw_weights(self) -> None:
        """Draw all weights; call it when the layers are made."""
        self.apply(self._init_weights)
        with torch.no_grad():
            self.item_embedding.weight[0].zero_()

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, 0.0, self.initializer_range)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def position_outputs(self, interaction: Interaction) -> Tensor:
        """Return the vector of each item of a batch, `[rows, length, hidden_size]`."""
        items = interaction[self.ITEM_SEQ]
        shared = POSITION in interaction
        places = sharing_rows(interaction[POSITION], interaction[LENGTH]) if shared else alone_in_rows(items)
        order = self.max_seq_length - 1 - places.from_end if self.positions_from_end else places.positions
        embedded = self.item_embedding(items) + self.position_embedding(order)
        return self._scaled(self.encode(self.input_dropout(embedded), places, interaction))

    def calculate_loss(self, interaction: Interaction) -> Tensor:
        """Return the mean loss of the item after each position."""
        output = self.position_outputs(interaction)
        targets, seed = interaction[self.POS_ITEM_SEQ], interaction[NEGATIVE_SEED]
        loss: Tensor = self.loss(output, self.item_table(), targets, seed[0], interaction[PLACE])
        return loss

    def loss_weight(self, interaction: Interaction) -> Tensor:
        """Return how many targets the loss of a batch is a mean over."""
        count: Tensor = (interaction[self.POS_ITEM_SEQ] != 0).sum()
        return count

    def item_table(self) -> Tensor:
        """Return the vector of each item that a sequence's vector is multiplied with, `[n_items, hidden_size]`."""
        table = self.item_embedding.weight
        return table if self.temperature is None else functional.normalize(table, dim=-1)

    def _scaled(self, output: Tensor) -> Tensor:
        return output if self.temperature is None else functional.normalize(output, dim=-1) / self.temperature

    def sequence_output(self, interaction: Interaction) -> Tensor:
        """Return the vector of the last item of each sequence, `[rows, hidden_size]`."""
        if torch.compiler.is_exporting():
            # A program takes any number of rows, and cannot say in how many parts they come.
            return self._last_output(interaction)
        known = self._without_padding(interaction)
        length = known[self.ITEM_SEQ].shape[1]
        rows = max(1, NUMBERS_AT_ONCE.get(interaction[self.ITEM_SEQ].device.type, NUMBERS_AT_ONCE["cpu"]) // length**2)
        parts = [known[start : start + rows] for start in range(0, len(known), rows)]
        return torch.cat([self._last_output(part) for part in parts])

    def _last_output(self, interaction: Interaction) -> Tensor:
        return self.gather_indexes(self.position_outputs(interaction), interaction[self.ITEM_SEQ_LEN] - 1)

    def _without_padding(self, interaction: Interaction) -> Interaction:
        """Return the histories without columns in which no row has an item, where asking for them costs nothing."""
        items, lengths = interaction[self.ITEM_SEQ], interaction[self.ITEM_SEQ_LEN]
        width = items.shape[1] if items.device.type != "cpu" else max(int(lengths.max()), 1)
        columns = {
            name: column[:, :width] if column.shape[1:2] == items.shape[1:] else column
            for name, column in interaction.interaction.items()
        }
        return Interaction.of_columns(columns, len(interaction))

    def forward(self, interaction: Interaction) -> Tensor:
        """Return the vector of the last item of each sequence, `[rows, hidden_size]`."""
        return self.sequence_output(interaction)

    def predict(self, interaction: Interaction) -> Tensor:
        """Return the score of each row's item, `[rows]`."""
        items = functional.embedding(interaction[self.ITEM_ID], self.item_table())
        return dot(self.sequence_output(interaction), items)

    def full_sort_predict(self, interaction: Interaction) -> Tensor:
        """Return the scores of all items, `[rows, n_items]`."""
        return torch.matmul(self.sequence_output(interaction), self.item_table().T)
