"""All rows of a loader at once, with their labels: trees do not learn by batches."""

from dataclasses import dataclass
from typing import Any

import torch

from treadle.recsys.boosting.features import Matrix, TreeFeatures
from treadle.recsys.interaction import Interaction, cat_interactions
from treadle.recsys.loading import AbstractDataLoader, FullSortEvalDataLoader, NegSampleEvalDataLoader, TrainDataLoader


@dataclass(frozen=True)
class LabelledRows:
    """Rows for trees.

    Attributes:
        features: `[rows, columns]`.
        labels: `[rows]`.
    """

    features: Matrix
    labels: Matrix

    def __len__(self) -> int:
        return len(self.labels)


def rows_of(loader: Any, features: TreeFeatures, label: str) -> LabelledRows | None:
    """Return the rows of a loader; None of one that ranks all items, and so has no rows with labels.

    Where nothing is drawn, the rows are in the order of the data. Where negatives are, they are those of the loader's
    first epoch.
    """
    if isinstance(loader, FullSortEvalDataLoader):
        return None
    rows = _all_rows(loader)
    return LabelledRows(features.matrix(rows), rows[label].cpu().numpy().astype("float32"))


def _all_rows(loader: AbstractDataLoader) -> Interaction:
    drawn = loader.times > 1 if isinstance(loader, TrainDataLoader) else getattr(loader, "negatives", None) is not None
    if not drawn and isinstance(loader, (TrainDataLoader, NegSampleEvalDataLoader)):
        return loader.dataset[torch.arange(len(loader.dataset), device=loader.device)]
    batches = (loader.batch_at(0, index) for index in range(len(loader)))
    return cat_interactions([batch[0] if isinstance(batch, tuple) else batch for batch in batches])
