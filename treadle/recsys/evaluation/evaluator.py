"""The metrics of Treadle as classes by RecBole's names, and what calculates all that the settings name."""

import copy
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from types import new_class
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from treadle.errors import ConfigError
from treadle.recsys.enums import EvaluatorType
from treadle.recsys.evaluation import beyond_accuracy
from treadle.recsys.evaluation.inputs import NO_ITEM, Catalogue, LabelledRows, OrderedPairs, Ranking
from treadle.recsys.evaluation.metric_classes import AbstractMetric, ClassMetric, DataStruct, LossMetric, TopkMetric
from treadle.recsys.evaluation.metrics import Metric, find_metric, metric_names
from treadle.recsys.evaluation.plan import MetricPlan
from treadle.recsys.evaluation.ranking_state import mean_ranks
from treadle.recsys.evaluation.scoring import pairs_in_order, top_items

Array = np.ndarray[Any, Any]


class OfLists(TopkMetric, register=False):
    """A metric of where the positives stand in the list of each user."""

    metric: ClassVar[Metric]

    def calculate_metric(self, dataobject: DataStruct) -> dict[str, float]:
        """Return the means over users, for each k."""
        return self.topk_result(self.metric.key, self.metric_info(*self.used_info(dataobject)))

    def metric_info(self, pos_index: Array, pos_len: Any = None) -> Array:
        """Return the value of each user at each rank."""
        hits = torch.as_tensor(np.asarray(pos_index), dtype=torch.bool)
        number = hits.sum(dim=1) if pos_len is None else torch.as_tensor(np.asarray(pos_len), dtype=torch.int64)
        nothing = torch.full(hits.shape, NO_ITEM)
        ranking = Ranking(hits, number, nothing, Catalogue(0))
        values = [self.metric.function(ranking, k) for k in range(1, hits.shape[1] + 1)]
        found: Array = torch.stack(values, dim=1).numpy()
        return found


class OfItems(TopkMetric, register=False):
    """A metric of which items are recommended."""

    metric: ClassVar[Metric]
    metric_need: ClassVar[list[str]] = ["rec.items", "data.num_items"]

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._tail_ratio = float(config["tail_ratio"])

    def calculate_metric(self, dataobject: DataStruct) -> dict[str, float]:
        """Return the values for each k."""
        items, number = dataobject.get("rec.items").cpu(), int(dataobject.get("data.num_items"))
        values = {k: float(self._value(dataobject, items, number, k)) for k in self.topk}
        return {f"{self.metric.key}@{k}": round(value, self.decimal_place) for k, value in values.items()}

    def _value(self, dataobject: DataStruct, items: Tensor, number: int, k: int) -> Tensor:
        if self.metric.kind == "catalogue":
            shown = items[:, :k].flatten()
            counts = torch.bincount(shown[shown > 0], minlength=number)[1:]
            value: Tensor = self.metric.function(counts, k)
            return value
        counts = torch.zeros(number, dtype=torch.int64)
        for item, count in dataobject.get("data.count_items").items():
            counts[int(item)] = int(count)
        plan = MetricPlan([self.metric.name], k, num_items=number, item_counts=counts, tail_ratio=self._tail_ratio)
        nobody = torch.zeros(len(items), dtype=torch.int64)
        ranking = Ranking(torch.zeros_like(items, dtype=torch.bool), nobody, items, plan.catalogue)
        per_user: Tensor = self.metric.function(ranking, k)
        return per_user.nanmean()


class OfRanks(AbstractMetric, register=False):
    """A metric of the ranks of positives among all items of a user."""

    metric: ClassVar[Metric]
    metric_type = EvaluatorType.RANKING
    metric_need: ClassVar[list[str]] = ["rec.meanrank"]

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._weight = str(config["gauc_weight"])

    def calculate_metric(self, dataobject: DataStruct) -> dict[str, float]:
        """Return the mean over users."""
        ranks, items, positives = dataobject.get("rec.meanrank").cpu().double().T
        negatives = items - positives
        in_order = positives * (positives + 1) / 2 + positives * negatives - ranks
        values, weights = self.metric.function(OrderedPairs(in_order, positives, negatives, self._weight))
        there = ~values.isnan()
        mean = (values[there] * weights[there]).sum() / weights[there].sum()
        return {self.metric.key: round(float(mean), self.decimal_place)}


class OfMoreThanLists(AbstractMetric, register=False):
    """A metric that needs to know more of users and items than what RecBole's evaluation collects."""

    metric: ClassVar[Metric]
    metric_type = EvaluatorType.RANKING
    metric_need: ClassVar[list[str]] = []

    def calculate_metric(self, dataobject: DataStruct) -> dict[str, float]:
        """Refuse: an evaluation of one's own has not collected what it takes."""
        raise ConfigError(
            f"metric {self.metric.name!r} needs to know more than an Evaluator is told; leave it out of metrics, or do "
            "not override evaluate"
        )


class OfLabels(LossMetric, register=False):
    """A metric of scores whose labels are known."""

    metric: ClassVar[Metric]

    def calculate_metric(self, dataobject: DataStruct) -> dict[str, float]:
        """Return the value."""
        return self.output_metric(self.metric.key, dataobject)

    def metric_info(self, preds: Array, trues: Array) -> float:
        """Return the value."""
        scores, labels = (torch.as_tensor(np.asarray(one)).double() for one in (preds, trues))
        return float(self.metric.function(LabelledRows(scores, labels)))


def metric_class(name: str) -> type[AbstractMetric]:
    """Return the class of a metric by its name, in any case: one's own, or one that calculates as Treadle does.

    Raises:
        ConfigError: There is no such metric.
    """
    metric = find_metric(name)
    if isinstance(metric.function, ClassMetric):
        return metric.function.kind
    if metric.key not in _classes or _classes[metric.key].metric is not metric:
        _classes[metric.key] = _made(metric)
    found: type[AbstractMetric] = _classes[metric.key]
    return found


_classes: dict[str, Any] = {}


def _made(metric: Metric) -> Any:
    kinds: dict[str, Any] = {"pairs": OfRanks, "catalogue": OfItems, "labelled": OfLabels, "ranking": OfLists}
    base: Any = kinds.get(metric.kind, OfMoreThanLists)
    if metric.function.__module__ == beyond_accuracy.__name__ or set(metric.requires) - {"item_counts"}:
        base = OfMoreThanLists
    own: dict[str, Any] = {"metric": metric, "smaller": metric.smaller, "__module__": __name__}
    own["__doc__"] = metric.function.__doc__
    if metric.needs_item_counts and base is not OfMoreThanLists:
        base, own["metric_need"] = OfItems, ["rec.items", "data.count_items", "data.num_items"]

    def fill(space: dict[str, Any]) -> None:
        space.update(own)

    return new_class(metric.name, (base,), {"register": False}, fill)


def __getattr__(name: str) -> Any:
    """Return the class of a metric that is asked for by its name, such as `NDCG`."""
    if name not in ("__path__", "__all__") and name in metric_names():
        return metric_class(name)
    raise AttributeError(f"there is no metric {name!r}")


class MetricClasses(Mapping[str, type[AbstractMetric]]):
    """The class of each metric, by its name in lower case."""

    __name__ = "metrics_dict"

    def __getitem__(self, name: str) -> type[AbstractMetric]:
        try:
            return metric_class(name)
        except ConfigError as error:
            raise KeyError(name) from error

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(name.lower() for name in metric_names()))

    def __len__(self) -> int:
        return len(metric_names())


metrics_dict = MetricClasses()


def cluster_info(module_name: str | None = None) -> tuple[list[str], dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return which metrics are better when smaller, and what each needs, is and is calculated by, by name.

    Args:
        module_name: Not used: a metric is known wherever it is defined.
    """
    classes = dict(metrics_dict)
    smaller = [name for name, kind in classes.items() if kind.smaller]
    needs = {name: kind.metric_need for name, kind in classes.items()}
    return smaller, needs, {name: kind.metric_type for name, kind in classes.items()}, classes


class Register:
    """What the metrics of the settings are calculated from.

    Args:
        config: The settings.

    Raises:
        ConfigError: A metric does not exist.
    """

    def __init__(self, config: Any) -> None:
        self.config = config
        self.metrics = [str(metric).lower() for metric in config["metrics"]]
        self._needs = {need for metric in self.metrics for need in metric_class(metric).metric_need}

    def has_metric(self, metric: str) -> bool:
        """Return whether a metric is among those of the settings."""
        return metric.lower() in self.metrics

    def need(self, key: str) -> bool:
        """Return whether one of the metrics needs something, such as `rec.topk`."""
        return key in self._needs


class Evaluator:
    """Calculates the metrics of the settings from what a `Collector` has collected.

    Args:
        config: The settings.

    Raises:
        ConfigError: A metric does not exist.
    """

    def __init__(self, config: Any) -> None:
        self.config = config
        self.metrics = [str(metric).lower() for metric in config["metrics"]]
        self.metric_class = {metric: metric_class(metric)(config) for metric in self.metrics}

    def evaluate(self, dataobject: DataStruct) -> "OrderedDict[str, float]":
        """Return the metrics by name, rounded as the settings say."""
        found: OrderedDict[str, float] = OrderedDict()
        for metric in self.metric_class.values():
            found.update(metric.calculate_metric(dataobject))
        return found


# Collects what metrics need from batches, by RecBole's names, for evaluations that people write themselves


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
        for name, value in dataset_facts(train_data.dataset).items():
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


def dataset_facts(dataset: Any) -> dict[str, Any]:
    """Return what is known of the users and items of a data set, by RecBole's names."""
    if dataset.uid_field is None or dataset.iid_field is None:
        return {}
    return {
        "data.num_items": dataset.item_num,
        "data.num_users": dataset.user_num,
        "data.count_items": dataset.item_counter,
        "data.count_users": dataset.user_counter,
    }
