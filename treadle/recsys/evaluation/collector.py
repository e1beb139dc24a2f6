"""Collects what metrics need from batches, by RecBole's names, for evaluations that people write themselves."""

import copy
from typing import Any

import torch
from torch import Tensor

from treadle.recsys.evaluation.collected import mean_ranks
from treadle.recsys.evaluation.evaluator import Register
from treadle.recsys.evaluation.inputs import NO_ITEM
from treadle.recsys.evaluation.metric_classes import DataStruct
from treadle.recsys.evaluation.pairs import pairs_in_order
from treadle.recsys.evaluation.top_items import top_items

OF_BATCHES = ("rec.topk", "rec.meanrank", "rec.score", "rec.items", "data.label")


class Collector:
    """Collects what the metrics of the settings need: from the data for training, and from batches with their scores.

    Args:
        config: The settings.

    Attributes:
        data_struct: What is collected.
        register: What is needed.
    """

    def __init__(self, config: Any) -> None:
        self.config = config
        self.data_struct = DataStruct()
        self.register = Register(config)
        self.topk: list[int] = list(config["topk"])
        self.device: torch.device = config["device"]

    def data_collect(self, train_data: Any) -> None:
        """Take from the loader for training what is known of users and items."""
        for name, value in facts_of(train_data.dataset).items():
            if self.register.need(name):
                self.data_struct.set(name, value)

    def eval_batch_collect(self, scores_tensor: Tensor, interaction: Any, positive_u: Any, positive_i: Any) -> None:
        """Take in a batch.

        Args:
            scores_tensor: The scores of all items, `[users, items]`, -inf for those that are no candidates; of rows
                with labels, one score for each.
            interaction: The batch.
            positive_u, positive_i: Which row each positive belongs to, and which item it is.
        """
        struct, needed = self.data_struct, self.register.need
        if needed("rec.items") or needed("rec.topk"):
            items, values, _ = top_items(scores_tensor.float(), max(self.topk))
            items = items.masked_fill(values == -torch.inf, NO_ITEM)
            if needed("rec.items"):
                struct.update_tensor("rec.items", items)
            if needed("rec.topk"):
                struct.update_tensor("rec.topk", self._hits(scores_tensor, items, positive_u, positive_i))
        if needed("rec.meanrank"):
            struct.update_tensor("rec.meanrank", self._ranks(scores_tensor, positive_u, positive_i))
        if needed("rec.score"):
            struct.update_tensor("rec.score", scores_tensor)
        if needed("data.label"):
            struct.update_tensor("data.label", interaction[self.config["LABEL_FIELD"]].to(scores_tensor.device))

    @staticmethod
    def _hits(scores: Tensor, items: Tensor, positive_u: Tensor, positive_i: Tensor) -> Tensor:
        wanted = torch.zeros_like(scores, dtype=torch.int32)
        wanted[positive_u, positive_i] = 1
        hits = wanted.gather(1, items.clamp(min=0)) * (items != NO_ITEM)
        return torch.cat([hits, wanted.sum(dim=1, keepdim=True)], dim=1)

    @staticmethod
    def _ranks(scores: Tensor, positive_u: Tensor, positive_i: Tensor) -> Tensor:
        places = torch.unique(positive_u * scores.shape[1] + positive_i)
        positives = torch.bincount(places // scores.shape[1], minlength=len(scores))
        absent = scores == -torch.inf
        absent.view(-1)[places] = False
        return mean_ranks(pairs_in_order(scores.float(), places, positives, absent.sum(dim=1)))

    def model_collect(self, model: Any) -> None:
        """Do nothing: no metric asks for something of the model itself; override it for one that does."""

    def eval_collect(self, eval_pred: Tensor, data_label: Tensor) -> None:
        """Take in all scores and labels at once."""
        if self.register.need("rec.score"):
            self.data_struct.update_tensor("rec.score", eval_pred)
        if self.register.need("data.label"):
            self.data_struct.update_tensor("data.label", data_label)

    def get_data_struct(self) -> DataStruct:
        """Return what is collected, on the host, and forget what came from batches."""
        found = copy.copy(self.data_struct)
        found._data_dict = {
            name: value.cpu() if isinstance(value, Tensor) else value
            for name, value in self.data_struct._data_dict.items()
        }
        for name in OF_BATCHES:
            if name in self.data_struct:
                del self.data_struct[name]
        return found


def facts_of(dataset: Any) -> dict[str, Any]:
    """Return what is known of the users and items of a data set, by RecBole's names."""
    if dataset.uid_field is None or dataset.iid_field is None:
        return {}
    return {
        "data.num_items": dataset.item_num,
        "data.num_users": dataset.user_num,
        "data.count_items": dataset.item_counter,
        "data.count_users": dataset.user_counter,
    }
