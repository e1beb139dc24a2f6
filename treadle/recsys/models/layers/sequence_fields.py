"""Embeddings of what is known of users and of the items in their sequences."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from treadle.errors import ConfigError, did_you_mean
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.models.constants import Constants
from treadle.recsys.models.layers.fields import FieldEmbeddings

Embedded = dict[str, Tensor | None]


class _Features(FieldEmbeddings):
    """The embeddings of the features of all users, or of all items."""

    def __init__(self, dataset: Dataset, features: Interaction, names: Sequence[str], size: int) -> None:
        super().__init__()
        self.build_field_embeddings(dataset.config, dataset, size, names)
        self.known = Constants(**{name: features[name].cpu() for name in self.field_names})

    def embed(self, ids: Tensor, mode: str) -> tuple[Tensor | None, Tensor | None]:
        columns = {name: getattr(self.known, name)[ids] for name in self.field_names}
        return self.embed_input_fields(columns, mode)


class ContextSeqEmbAbstractLayer(nn.Module):
    """Embeds the features of users and items that are given by their ids.

    Attributes:
        types: "user" and "item", or one of them.
        tables: The embeddings of each type.
        pooling_mode: What is made of a field that is itself a sequence: "mean", "sum" or "max".
    """

    def __init__(self, pooling_mode: str = "mean") -> None:
        super().__init__()
        if pooling_mode not in ("mean", "sum", "max"):
            raise ConfigError(f"pooling_mode={pooling_mode!r} must be 'mean', 'sum' or 'max'")
        self.pooling_mode = pooling_mode
        self.tables = nn.ModuleDict()

    @property
    def types(self) -> list[str]:
        """What is embedded."""
        return list(self.tables)

    @property
    def token_field_names(self) -> dict[str, list[str]]:
        """The fields with one token of each type."""
        return {kind: list(_table(self.tables[kind]).token_field_names) for kind in self.tables}

    def num_fields(self, kind: str) -> int:
        """Return how many fields "user" or "item" has."""
        return _table(self.tables[kind]).num_feature_field

    def embed_input_fields(self, user_idx: Tensor | None, item_idx: Tensor | None) -> tuple[Embedded, Embedded]:
        """Return the embeddings of tokens and those of numbers, by type; None where there are none.

        Args:
            user_idx: Users, of any shape.
            item_idx: Items, of any shape; the embeddings have two more dimensions, fields and size.
        """
        sparse: Embedded = {}
        dense: Embedded = {}
        for kind, ids in (("user", user_idx), ("item", item_idx)):
            if ids is not None and kind in self.tables:
                sparse[kind], dense[kind] = _table(self.tables[kind]).embed(ids, self.pooling_mode)
        return sparse, dense

    def joined(self, kind: str, ids: Tensor) -> Tensor:
        """Return the embeddings of all fields of "user" or "item" one after the other, `[..., fields * size]`."""
        found = _table(self.tables[kind]).embed(ids, self.pooling_mode)
        return torch.cat([part for part in found if part is not None], dim=-2).flatten(-2)

    def forward(self, user_idx: Tensor | None, item_idx: Tensor | None) -> tuple[Embedded, Embedded]:
        """Return the embeddings of tokens and those of numbers, by type."""
        return self.embed_input_fields(user_idx, item_idx)


class ContextSeqEmbLayer(ContextSeqEmbAbstractLayer):
    """Embeds all features of users and items, their ids included.

    Args:
        dataset: The data.
        embedding_size: The length of an embedding.
        pooling_mode: What is made of a field that is itself a sequence.
        device: Not used; the layer goes where its model goes.
    """

    def __init__(self, dataset: Dataset, embedding_size: int, pooling_mode: str = "mean", device: Any = None) -> None:
        super().__init__(pooling_mode)
        for kind, features in (("user", dataset.get_user_feature()), ("item", dataset.get_item_feature())):
            self.tables[kind] = _Features(dataset, features, features.columns, embedding_size)


class FeatureSeqEmbLayer(ContextSeqEmbAbstractLayer):
    """Embeds some features of items.

    Args:
        dataset: The data.
        embedding_size: The length of an embedding.
        selected_features: The fields.
        pooling_mode: What is made of a field that is itself a sequence.
        device: Not used; the layer goes where its model goes.

    Raises:
        ConfigError: Items have no such field.
    """

    def __init__(
        self,
        dataset: Dataset,
        embedding_size: int,
        selected_features: Sequence[str],
        pooling_mode: str = "mean",
        device: Any = None,
    ) -> None:
        super().__init__(pooling_mode)
        features = dataset.get_item_feature()
        for name in selected_features:
            if name not in features:
                near = did_you_mean(name, features.columns) or f"; items have {features.columns}"
                raise ConfigError(f"selected_features names {name!r}, which is no feature of items{near}")
        self.tables["item"] = _Features(dataset, features, selected_features, embedding_size)


def _table(module: nn.Module) -> _Features:
    assert isinstance(module, _Features)
    return module
