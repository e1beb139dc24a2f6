"""What the settings of an evaluation name of users and items: divisions into groups, categories, relevance."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from treadle.errors import ConfigError, did_you_mean
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.data.sampling.user_items import UserItems
from treadle.recsys.enums import FeatureType
from treadle.recsys.evaluation.breakdown import NO_GROUP, Groups, groups_by_quantile, groups_by_value
from treadle.recsys.evaluation.full_ranking import relevance_by_key

PARTS = 4
"""Into how many groups numbers are divided, each of about as many users or items."""
MOST_GROUPS = 50
"""Tokens that a field may have to divide by."""
ACTIVITY, POPULARITY, COLD = "activity", "popularity", "cold"


def user_divisions(names: Sequence[str] | None, dataset: Dataset, counts: Tensor) -> list[Groups]:
    """Return the divisions of users that the setting `user_groups` names.

    Args:
        names: `activity` for quantiles of interactions in training, `cold` for whether there are any, and fields of
            users.
        dataset: The data.
        counts: How many interactions each user has in training.

    Raises:
        ConfigError: There is no such field, or it cannot divide users.
    """
    return [_division(name, "user", dataset, counts, ACTIVITY) for name in names or ()]


def item_divisions(names: Sequence[str] | None, dataset: Dataset, counts: Tensor) -> list[Groups]:
    """Return the divisions of items that the setting `item_groups` names, as `user_divisions` does of users."""
    return [_division(name, "item", dataset, counts, POPULARITY) for name in names or ()]


def _division(name: str, holder: str, dataset: Dataset, counts: Tensor, by_count: str) -> Groups:
    if name == by_count:
        return groups_by_quantile(name, counts, PARTS, first_id=1)
    if name == COLD:
        of = (counts > 0).long()
        of[0] = NO_GROUP
        return Groups(f"{COLD} {holder}s", (COLD, "warm"), of)
    column = _column(f"{holder}_groups", name, holder, dataset, (by_count, COLD))
    kind = dataset.field2type[name]
    if kind.is_sequence:
        raise ConfigError(
            f"{holder}_groups names {name!r}, which has several values for each {holder}; groups need one"
        )
    if not kind.is_token:
        return groups_by_value(name, column, PARTS, first_id=1)
    tokens = [str(token) for token in dataset.vocabulary(name).tokens[1:].tolist()]
    if len(tokens) > MOST_GROUPS:
        raise ConfigError(
            f"{holder}_groups names {name!r}, which has {len(tokens)} values; divide by a field of at most "
            f"{MOST_GROUPS}, or by one of numbers, which is cut into quantiles"
        )
    of = column.long() - 1  # 0 stands for an unknown value, and becomes no group
    of[0] = NO_GROUP
    return Groups(name, tuple(tokens), of)


def item_categories(field: str | None, dataset: Dataset) -> Tensor | None:
    """Return which categories each item has, `[items, categories]`, from a field of items with one or several tokens.

    Raises:
        ConfigError: There is no such field, or it has no tokens.
    """
    if field is None:
        return None
    column = _column("item_category_field", field, "item", dataset, ())
    if not dataset.field2type[field].is_token:
        raise ConfigError(f"item_category_field={field!r} has numbers; categories are tokens")
    found = torch.zeros(len(column), dataset.num(field), dtype=torch.bool)
    found.scatter_(1, column.view(len(column), -1).long(), True)
    return found[:, 1:]


def positive_relevance(loader: Any) -> Tensor:
    """Return how relevant the positives of a loader are, as the field says that the settings name.

    Raises:
        ConfigError: There is no such field, or it has no numbers.
    """
    data, config = loader.dataset, loader.config
    field = config["relevance_field"] or config["RATING_FIELD"]
    if field not in data.inter_feat:
        raise ConfigError(
            f"GradedNDCG needs to know what each positive is worth, and relevance_field={field!r} is none of the "
            f"loaded fields of interactions, {data.inter_feat.columns}; name one, or add it to load_col"
        )
    if data.field2type[field] is not FeatureType.FLOAT:
        raise ConfigError(f"relevance_field={field!r} holds {data.field2type[field].value}, not numbers")
    items, values = data.inter_feat[str(data.iid_field)], data.inter_feat[field]
    users = torch.arange(len(data), device=items.device) if loader.by_row else data.inter_feat[str(data.uid_field)]
    return relevance_by_key(loader.positives, users, items, values)


def by_query(
    loader: Any, divisions: Sequence[Groups], history: UserItems | None
) -> tuple[list[Groups], UserItems | None]:
    """Return divisions and histories of users as those of what a loader ranks for: of a sequential model, rows."""
    if not loader.by_row:
        return list(divisions), history
    owners = loader.dataset.inter_feat[str(loader.dataset.uid_field)].cpu()
    groups = [Groups(one.name, one.labels, one.of[owners]) for one in divisions]
    if history is None:
        return groups, None
    rows, items = history.select(owners)
    return groups, UserItems(rows, items, num_users=len(owners), num_items=history.num_items)


def _column(setting: str, field: str, holder: str, dataset: Dataset, others: Sequence[str]) -> Tensor:
    """Return a field of users or items, one that models do not get included."""
    table: Interaction | None = dataset.prepared.features.get(holder)
    there = [name for name in (table.columns if table is not None else []) if name not in _ids(dataset)]
    if table is None or field not in there:
        known = [*others, *there]
        near = did_you_mean(field, known) or (f"; there are {known}" if known else "")
        raise ConfigError(
            f"{setting} names {field!r}, which is no field of {holder}s that is loaded (load_col: {{{holder}: "
            f"[{_ids(dataset)[holder == 'item']}, {field}]}} would load it){near}"
        )
    column: Tensor = table[field].cpu()
    return column


def _ids(dataset: Dataset) -> tuple[str, str]:
    return str(dataset.uid_field), str(dataset.iid_field)
