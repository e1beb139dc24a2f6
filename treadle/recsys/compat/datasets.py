"""Data sets as single models of RecBole's expect them."""

from typing import Any

import numpy as np

from treadle.recsys.dataset import Dataset
from treadle.recsys.dataset_knowledge import KnowledgeBasedDataset
from treadle.recsys.dataset_sequential import TARGET, SequentialDataset


class ListedDataset(SequentialDataset):
    """A sequential data set whose interactions have their histories as columns, which costs memory for every row.

    Rows that are asked for have them anyway; this is for models that look through all interactions when they are built.
    """

    def _part(self, rows: np.ndarray[Any, Any]) -> Dataset:
        part = super()._part(rows)
        assert isinstance(part, SequentialDataset)
        if part.flat is not None:
            places, lengths = part.inter_feat[TARGET], part.inter_feat[self.item_list_length_field]
            part.inter_feat.update(part.windows(places - lengths, lengths))
        return part


class KGSeqDataset(SequentialDataset, KnowledgeBasedDataset):
    """Histories, and a knowledge graph of their items."""


class GRU4RecKGDataset(KGSeqDataset):
    """The data set that RecBole gives the model GRU4RecKG."""


class KSRDataset(KGSeqDataset):
    """The data set that RecBole gives the model KSR."""


class DecisionTreeDataset(Dataset):
    """The data set of trees, which take it as it is: tokens are categories of the library."""
