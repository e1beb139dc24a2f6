"""Rows of fields as a matrix for trees: numbers as they are, tokens as categories."""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from treadle.errors import DataError
from treadle.recsys.data.dataloader import (
    AbstractDataLoader,
    FullSortEvalDataLoader,
    NegSampleEvalDataLoader,
    TrainDataLoader,
)
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.interaction import Interaction, cat_interactions
from treadle.recsys.enums import FeatureType
from treadle.recsys.models.layers.fields import SOURCES

MOST_COLUMNS = 1000
"""How many columns of 0 and 1 one field may become; a matrix of more would be nearly all zeros."""
Matrix = np.ndarray[Any, Any]


class TreeFeatures:
    """The columns that trees see of a row: all of its fields but the label.

    A number is a column. A token is a column of categories, its id; a missing one is nan, which the libraries know what
    to do with. A field of several tokens is a column of 0 and 1 for each token, and a field of several numbers a column
    for each position.

    Args:
        dataset: The data for training.
        label: The field of the label.
        one_hot: Whether tokens are columns of 0 and 1, too.

    Attributes:
        names: What each column is called, in letters that the libraries allow.
        categories: The places of the columns of categories.

    Raises:
        DataError: There is no field but the label, or a field has too many tokens for a column each.
    """

    def __init__(self, dataset: Dataset, label: str, *, one_hot: bool = False) -> None:
        self._fields = [name for name in dataset.fields(source=SOURCES) if name != label]
        if not self._fields:
            raise DataError(
                f"the data set {dataset.dataset_name!r} has no field but the label {label!r}; see load_col for what is "
                "loaded"
            )
        self._kinds = {name: dataset.field2type[name] for name in self._fields}
        self._widths = {name: self._width(dataset, name, one_hot) for name in self._fields}
        self.names: list[str] = []
        self.categories: list[int] = []
        for name in self._fields:
            if self._kinds[name] is FeatureType.TOKEN and not self._widths[name]:
                self.categories.append(len(self.names))
            self.names += self._column_names(name, dataset)

    def _width(self, dataset: Dataset, name: str, one_hot: bool) -> int:
        """Return how many columns of 0 and 1 a field has, 0 if it has others."""
        kind = self._kinds[name]
        if not kind.is_token or (kind is FeatureType.TOKEN and not one_hot):
            return 0
        number = dataset.num(name) - 1
        if number > MOST_COLUMNS:
            why = "convert_token_to_onehot" if kind is FeatureType.TOKEN else "a field of several tokens a row"
            raise DataError(
                f"the field {name!r} has {number} tokens, and {why} makes a column of each; {MOST_COLUMNS} are the "
                "most: leave it out with unload_col"
            )
        return number

    def _column_names(self, name: str, dataset: Dataset) -> list[str]:
        plain = re.sub(r"\W", "_", name)
        if self._widths[name]:
            return [f"{plain}_{number}" for number in range(1, self._widths[name] + 1)]
        if self._kinds[name] is FeatureType.FLOAT_SEQ:
            return [f"{plain}_{number}" for number in range(dataset.num(name))]
        return [plain]

    def matrix(self, interaction: Interaction) -> Matrix:
        """Return the columns of some rows, `[rows, columns]`, of 32 bit, or of 64 where a column needs them."""
        parts = [self._columns(name, interaction[name]) for name in self._fields]
        return np.concatenate([part if part.ndim == 2 else part[:, None] for part in parts], axis=1)

    def _columns(self, name: str, column: Tensor) -> Matrix:
        values: Matrix = column.detach().cpu().numpy()
        kind, width = self._kinds[name], self._widths[name]
        if width:
            return _indicators(values.reshape(len(values), -1), width)
        if kind is FeatureType.TOKEN:
            codes = values.astype(np.float32)
            codes[values == 0] = np.nan
            return codes
        if kind is FeatureType.FLOAT and values.ndim == 2:
            # A number that other models embed is a pair: itself and 1, or 1 and its bucket.
            values = values.prod(axis=1)
        return values if values.dtype == np.float64 else values.astype(np.float32)


def _indicators(ids: Matrix, number: int) -> Matrix:
    """Return a column of 0 and 1 for each of `number` ids from 1 on; 0 is padding.

    >>> _indicators(np.array([[1, 0], [2, 3]]), 3).tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]]
    """
    found = np.zeros((len(ids), number + 1), np.float32)
    np.put_along_axis(found, ids, 1.0, axis=1)
    return found[:, 1:]


# All rows of a loader at once, with their labels: trees do not learn by batches


@dataclass(frozen=True)
class TreeRows:
    """Rows for trees.

    Attributes:
        features: `[rows, columns]`.
        labels: `[rows]`.
    """

    features: Matrix
    labels: Matrix

    def __len__(self) -> int:
        return len(self.labels)


def labelled_rows(loader: Any, features: TreeFeatures, label: str) -> TreeRows | None:
    """Return the rows of a loader; None of one that ranks all items, and so has no rows with labels.

    Where nothing is drawn, the rows are in the order of the data. Where negatives are, they are those of the loader's
    first epoch.
    """
    if isinstance(loader, FullSortEvalDataLoader):
        return None
    rows = _all_rows(loader)
    return TreeRows(features.matrix(rows), rows[label].cpu().numpy().astype("float32"))


def _all_rows(loader: AbstractDataLoader) -> Interaction:
    drawn = loader.times > 1 if isinstance(loader, TrainDataLoader) else getattr(loader, "negatives", None) is not None
    if not drawn and isinstance(loader, (TrainDataLoader, NegSampleEvalDataLoader)):
        return loader.dataset[torch.arange(len(loader.dataset), device=loader.device)]
    batches = (loader.batch_at(0, index) for index in range(len(loader)))
    return cat_interactions([batch[0] if isinstance(batch, tuple) else batch for batch in batches])
