"""Embeddings of fields: tokens, numbers, and sequences of either."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from treadle.errors import ConfigError
from treadle.recsys.config.configurator import Config
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.enums import FeatureSource, FeatureType

SOURCES = (
    FeatureSource.INTERACTION,
    FeatureSource.USER,
    FeatureSource.USER_ID,
    FeatureSource.ITEM,
    FeatureSource.ITEM_ID,
)
"""Where the fields come from that a model of rows of fields looks at."""


def field_offsets(field_dims: Sequence[int]) -> list[int]:
    """Return where each field begins in a table that holds all of them.

    >>> field_offsets([3, 5, 2])
    [0, 3, 8]
    """
    return [sum(field_dims[:place]) for place in range(len(field_dims))]


class FMEmbedding(nn.Module):
    """The embeddings of several fields of tokens, in one table.

    Args:
        field_dims: How many ids each field has.
        offsets: Where each field begins in the table.
        embed_dim: The length of an embedding.
    """

    offsets: Tensor

    def __init__(self, field_dims: Sequence[int], offsets: Sequence[int], embed_dim: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(int(sum(field_dims)), embed_dim)
        self.register_buffer("offsets", torch.as_tensor(offsets, dtype=torch.int64), persistent=False)

    def forward(self, input_x: Tensor) -> Tensor:
        """Return the embeddings `[rows, fields, embed_dim]` of ids `[rows, fields]`."""
        embedded: Tensor = self.embedding(input_x + self.offsets)
        return embedded


class FLEmbedding(FMEmbedding):
    """The embeddings of several fields of numbers, in one table: `field_dims` says how many buckets each has."""

    def forward(self, input_x: Tensor) -> Tensor:
        """Return the embeddings `[rows, fields, embed_dim]` of pairs (number, bucket) `[rows, fields, 2]`."""
        embedded = super().forward(input_x[..., 1].long())
        # Times have 64 bit, and would make everything behind them have so, too.
        return embedded * input_x[..., :1].to(embedded.dtype)


class FieldEmbeddings(nn.Module):
    """A part of models that embed the fields of a row; see `build_field_embeddings`.

    Attributes:
        token_field_names, float_field_names, token_seq_field_names, float_seq_field_names: The fields of each type.
        token_field_dims, float_field_dims, token_seq_field_dims, float_seq_field_dims: How many ids each of them has.
        token_embedding_table, float_embedding_table: The embeddings of fields with one value, if there are any.
        token_seq_embedding_table, float_seq_embedding_table: Those of each field of sequences.
        num_feature_field: How many fields there are.
    """

    field_names: list[str]
    token_field_names: list[str]
    float_field_names: list[str]
    token_seq_field_names: list[str]
    float_seq_field_names: list[str]

    def build_field_embeddings(
        self, config: Config, dataset: Dataset, size: int, names: Sequence[str] | None = None
    ) -> None:
        """Make the tables; call it once, after `super().__init__()`.

        Args:
            config: The settings.
            dataset: The data.
            size: The length of an embedding.
            names: The fields; by default all of interactions, users and items. The label is left out, and so are
                numbers that are not in `numerical_features`.

        Raises:
            ConfigError: No field is left.
        """
        embedded = set(config["numerical_features"] or ())
        found: dict[FeatureType, list[str]] = {kind: [] for kind in FeatureType}
        for name in dataset.fields(source=SOURCES) if names is None else names:
            kind = dataset.field2type[name]
            if name != config["LABEL_FIELD"] and (kind.is_token or name in embedded):
                found[kind].append(name)
        self.num_feature_field = sum(map(len, found.values()))
        if not self.num_feature_field:
            raise ConfigError(
                f"{type(self).__name__} has no field to embed: the data has {list(dataset.field2type)}; load fields of "
                "tokens, or name numbers in numerical_features"
            )
        self._keep_names(found)
        self._make_tables(dataset, size)

    def _keep_names(self, found: dict[FeatureType, list[str]]) -> None:
        self.token_field_names, self.float_field_names = found[FeatureType.TOKEN], found[FeatureType.FLOAT]
        self.token_seq_field_names = found[FeatureType.TOKEN_SEQ]
        self.float_seq_field_names = found[FeatureType.FLOAT_SEQ]
        self.field_names = [name for names in found.values() for name in names]

    def _make_tables(self, dataset: Dataset, size: int) -> None:
        self.token_field_dims = [dataset.num(name) for name in self.token_field_names]
        self.float_field_dims = [dataset.num(name) for name in self.float_field_names]
        self.token_seq_field_dims = [dataset.num(name) for name in self.token_seq_field_names]
        self.float_seq_field_dims = [dataset.num(name) for name in self.float_seq_field_names]
        if self.token_field_dims:
            self.token_field_offsets = field_offsets(self.token_field_dims)
            self.token_embedding_table = FMEmbedding(self.token_field_dims, self.token_field_offsets, size)
        if self.float_field_dims:
            self.float_field_offsets = field_offsets(self.float_field_dims)
            self.float_embedding_table = FLEmbedding(self.float_field_dims, self.float_field_offsets, size)
        self.token_seq_embedding_table = nn.ModuleList([nn.Embedding(dim, size) for dim in self.token_seq_field_dims])
        self.float_seq_embedding_table = nn.ModuleList([nn.Embedding(dim, size) for dim in self.float_seq_field_dims])

    def embedded_names(self) -> list[str]:
        """Return the fields in the order of their embeddings: tokens, then numbers, of each single values first."""
        return [
            *self.token_field_names,
            *self.token_seq_field_names,
            *self.float_field_names,
            *self.float_seq_field_names,
        ]

    def field_size(self) -> int:
        """Return the length of an embedding of a field."""
        tables = [table for table in self.modules() if isinstance(table, nn.Embedding)]
        return tables[0].embedding_dim

    def field_inputs(self) -> Mapping[str, tuple[int, ...]] | None:
        """Return which weights go by the order of the fields: patterns of their names, and the dimensions.

        Along such a dimension there stand the numbers of all embeddings first, one field after the other. A checkpoint
        of a system with another order of fields is brought into this one by it.

        Returns:
            None if the model does not say.
        """
        return None

    def field_vectors(self, name: str) -> Tensor | None:
        """Return the embedding of each id of a field with one token, `[ids, size]`; None if there is no such field."""
        if name not in self.token_field_names:
            return None
        place = self.token_field_names.index(name)
        begin = self.token_field_offsets[place]
        return self.token_embedding_table.embedding.weight[begin : begin + self.token_field_dims[place]]

    def embed_token_fields(self, token_fields: Tensor | None) -> Tensor | None:
        """Return the embeddings `[rows, fields, size]` of ids `[rows, fields]`."""
        return None if token_fields is None else self.token_embedding_table(token_fields)

    def embed_float_fields(self, float_fields: Tensor | None) -> Tensor | None:
        """Return the embeddings `[rows, fields, size]` of pairs (number, bucket) `[rows, fields, 2]`."""
        return None if float_fields is None else self.float_embedding_table(float_fields)

    def embed_token_seq_fields(self, token_seq_fields: Sequence[Tensor], mode: str = "mean") -> Tensor | None:
        """Return the embeddings `[rows, fields, size]` of sequences, each `[rows, length]` and padded with 0.

        Args:
            token_seq_fields: The ids of each field.
            mode: What is made of the embeddings of a sequence: "mean", "sum" or "max".
        """
        tables = zip(self.token_seq_embedding_table, token_seq_fields, strict=True)
        return _stacked([pooled(table(ids), ids != 0, mode) for table, ids in tables])

    def embed_float_seq_fields(self, float_seq_fields: Sequence[Tensor], mode: str = "mean") -> Tensor | None:
        """Return the embeddings `[rows, fields, size]` of sequences of (number, bucket), each `[rows, length, 2]`.

        Args:
            float_seq_fields: The pairs of each field.
            mode: What is made of the embeddings of a sequence: "mean", "sum" or "max".
        """
        made = []
        for table, pairs in zip(self.float_seq_embedding_table, float_seq_fields, strict=True):
            buckets = pairs[..., 1].long()
            embedded = table(buckets)
            made.append(pooled(embedded * pairs[..., :1].to(embedded.dtype), buckets != 0, mode))
        return _stacked(made)

    def embed_input_fields(
        self, interaction: Interaction | Mapping[str, Tensor], mode: str = "mean"
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return the embeddings of tokens and those of numbers, each `[rows, fields, size]`; None where there are none.

        Single values come before sequences. Where columns have further dimensions, such as the items of a history, so
        have the embeddings: `[rows, length, fields, size]`.

        Args:
            interaction: The columns by name.
            mode: What is made of the embeddings of a sequence.
        """
        tokens = [interaction[name] for name in self.token_field_names]
        numbers = [interaction[name] for name in self.float_field_names]
        sparse = [
            self.embed_token_fields(torch.stack(tokens, dim=-1) if tokens else None),
            self.embed_token_seq_fields([interaction[name] for name in self.token_seq_field_names], mode),
        ]
        dense = [
            self.embed_float_fields(torch.stack(numbers, dim=-2) if numbers else None),
            self.embed_float_seq_fields([interaction[name] for name in self.float_seq_field_names], mode),
        ]
        return _joined(sparse), _joined(dense)

    def concat_embed_input_fields(self, interaction: Interaction) -> Tensor:
        """Return the embeddings of all fields, `[rows, num_feature_field, size]`: tokens, then numbers."""
        together = _joined(list(self.embed_input_fields(interaction)))
        assert together is not None, "there is a field"
        return together

    def double_tower_embed_input_fields(
        self, interaction: Interaction
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
        """Return the embeddings of users' tokens, users' numbers, items' tokens and items' numbers.

        Raises:
            ConfigError: The model is not set up so.
        """
        owned: set[str] = set(getattr(self, "user_field_names", ()))
        if not owned:
            raise ConfigError("double_tower must be True for fields of users and items to be embedded apart")
        sparse, dense = self.embed_input_fields(interaction)
        tokens = self.token_field_names + self.token_seq_field_names
        numbers = self.float_field_names + self.float_seq_field_names
        return (
            _some(sparse, [name in owned for name in tokens]),
            _some(dense, [name in owned for name in numbers]),
            _some(sparse, [name not in owned for name in tokens]),
            _some(dense, [name not in owned for name in numbers]),
        )


class FMFirstOrderLinear(FieldEmbeddings):
    """The linear part of a factorisation machine: a weight for each value of each field, and a bias.

    Args:
        config: The settings.
        dataset: The data.
        output_dim: How many outputs there are.
    """

    def __init__(self, config: Config, dataset: Dataset, output_dim: int = 1) -> None:
        super().__init__()
        self.build_field_embeddings(config, dataset, output_dim)
        self.bias = nn.Parameter(torch.zeros(output_dim))

    def embed_token_seq_fields(self, token_seq_fields: Sequence[Tensor], mode: str = "sum") -> Tensor | None:
        """Return the sums of the weights of all tokens, whatever `mode` is: each token is a feature of its own."""
        return super().embed_token_seq_fields(token_seq_fields, "sum")

    def forward(self, interaction: Interaction) -> Tensor:
        """Return the outputs `[rows, output_dim]`."""
        return self.concat_embed_input_fields(interaction).sum(dim=-2) + self.bias


def pooled(embedded: Tensor, inside: Tensor, mode: str = "mean") -> Tensor:
    """Return one embedding `[rows, size]` of each sequence of them, `[rows, length, size]`.

    >>> pooled(torch.tensor([[[1.0], [3.0], [9.0]]]), torch.tensor([[True, True, False]])).tolist()
    [[2.0]]

    Args:
        embedded: The sequences.
        inside: Which positions count, `[rows, length]`; a row without any gives zeros.
        mode: "mean", "sum" or "max".

    Raises:
        ConfigError: There is no such mode.
    """
    mask = inside.unsqueeze(-1)
    if mode == "max":
        largest = embedded.masked_fill(~mask, -torch.inf).amax(dim=-2)
        return largest.masked_fill(~mask.any(dim=-2), 0)
    total = (embedded * mask).sum(dim=-2)
    if mode == "sum":
        return total
    if mode == "mean":
        return total / mask.sum(dim=-2).clamp(min=1)
    raise ConfigError(f"sequences are pooled by 'mean', 'sum' or 'max', not by {mode!r}")


def _stacked(made: list[Tensor]) -> Tensor | None:
    return torch.stack(made, dim=-2) if made else None


def _joined(parts: list[Any]) -> Tensor | None:
    there: list[Tensor] = [part for part in parts if part is not None]
    if len(there) < 2:
        return there[0] if there else None
    return torch.cat(there, dim=-2)


def _some(embedded: Tensor | None, wanted: list[bool]) -> Tensor | None:
    """Return the embeddings of some fields, chosen on the host."""
    if embedded is None or not any(wanted):
        return None
    return torch.stack([embedded[:, place] for place, own in enumerate(wanted) if own], dim=1)
