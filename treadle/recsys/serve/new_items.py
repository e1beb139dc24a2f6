"""Scores of items that the data does not have, by their features."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from treadle.errors import ConfigError, DataError, did_you_mean
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.enums import FeatureType, ModelType
from treadle.recsys.models.layers.fields import FieldEmbeddings

BY_FEATURES = (ModelType.CONTEXT, ModelType.DECISIONTREE)
"""Kinds of models that score rows of fields, whatever they hold."""


def new_item_rows(
    model: Any, dataset: Dataset, items: Mapping[str, Mapping[str, Any]], changed: Mapping[str, str]
) -> Interaction:
    """Return the features of new items as rows; their id is that of padding.

    Args:
        model: The model that is to score them.
        dataset: The data.
        items: The features of each item by its token; what is left out of a field of tokens is missing.
        changed: Fields whose numbers are not those of the data any more, each with what was done to them.

    Raises:
        ConfigError: The model does not go by features, or the items have none, or one of them is not what it has to be.
        DataError: A token of a feature is not in the data.
    """
    name = type(model).__name__
    if getattr(model, "type", None) not in BY_FEATURES:
        raise ConfigError(
            f"new_items: {name} knows items by what was done with them; FM, DeepFM and other models of fields, and "
            "trees, score items by their features"
        )
    if dataset.item_feat is None or len(dataset.item_feat.columns) < 2:
        raise ConfigError(f"new_items: the data has no features of items, so that {name} knows nothing of new ones")
    id_field = str(dataset.iid_field)
    known = set(dataset.item_feat.columns) - {id_field}
    for token, features in items.items():
        if token in dataset.vocabulary(id_field).ids:
            raise ConfigError(f"new_items has {token!r}, which the data has already; leave it out")
        if not isinstance(features, Mapping):
            raise ConfigError(f"new_items[{token!r}] is a {type(features).__name__}, and no dict of features")
        wrong = [one for one in features if one not in known]
        if wrong:
            near = did_you_mean(str(wrong[0]), known) or f"; items have {sorted(known)}"
            raise ConfigError(f"new_items[{token!r}] names {wrong[0]!r}, which is no field of items{near}")
    columns = {
        field: torch.stack([_value(dataset, field, token, given.get(field), changed) for token, given in items.items()])
        for field in known
    }
    device = dataset.item_feat[id_field].device
    rows = {id_field: torch.zeros(len(items), dtype=torch.int64), **columns}
    return Interaction.of_columns({field: column.to(device) for field, column in rows.items()}, len(items))


def _value(dataset: Dataset, field: str, token: str, given: Any, changed: Mapping[str, str]) -> Tensor:
    assert dataset.item_feat is not None
    column, kind = dataset.item_feat[field], dataset.field2type[field]
    if kind.is_token:
        return _token_value(dataset, field, token, given, column)
    if field in changed:
        raise ConfigError(
            f"new_items: the data has {field!r} {changed[field]}, so that a new number cannot be compared"
        )
    if kind is not FeatureType.FLOAT or isinstance(given, bool) or not isinstance(given, (int, float)):
        raise ConfigError(f"new_items[{token!r}] needs a number for {field!r}, not {given!r}")
    value = torch.tensor(float(given), dtype=column.dtype)
    # A number that is embedded stands beside its bucket, of which there is one.
    return torch.stack([value, torch.ones_like(value)]) if column.dim() > 1 else value


def _token_value(dataset: Dataset, field: str, token: str, given: Any, column: Tensor) -> Tensor:
    several = [] if given is None else list(given) if isinstance(given, (list, tuple)) else [given]
    try:
        ids = torch.from_numpy(dataset.vocabulary(field).ids_of(several)) if several else torch.zeros(0).long()
    except DataError as error:
        raise DataError(f"new_items[{token!r}]: {error}") from error
    if column.dim() == 1:
        if len(ids) > 1:
            raise ConfigError(f"new_items[{token!r}] has {len(ids)} values for {field!r}, which takes one")
        return ids[0] if len(ids) else torch.tensor(0)
    padded = torch.zeros(column.shape[1], dtype=torch.int64)
    padded[: len(ids)] = ids[: column.shape[1]]
    return padded


@contextmanager
def mean_item(model: Any, id_field: str) -> Iterator[None]:
    """Let padding, as an item, be the mean of all items; nothing has ever been learned of it."""
    kept = []
    for module in model.modules() if hasattr(model, "modules") else ():
        if isinstance(module, FieldEmbeddings) and id_field in module.token_field_names:
            place = module.token_field_names.index(id_field)
            begin, number = module.token_field_offsets[place], module.token_field_dims[place]
            table = module.token_embedding_table.embedding.weight.data
            kept.append((table, begin, table[begin].clone()))
            table[begin] = table[begin + 1 : begin + number].mean(dim=0)
    try:
        yield
    finally:
        for table, row, before in kept:
            table[row] = before


@torch.no_grad()
def score_new_items(model: Any, users: Interaction, items: Interaction, id_field: str) -> Tensor:
    """Return the scores of new items for users, `[users, items]`."""
    pairs = users.repeat_interleave(len(items))
    pairs.update(items.repeat(len(users)))
    with mean_item(model, id_field):
        found: Tensor = model.predict(pairs)
    return found.view(len(users), len(items)).float()
