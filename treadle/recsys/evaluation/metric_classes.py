"""Metrics that are classes, as RecBole has them: defined, and thereby known by their names in lower case."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from treadle.errors import ConfigError
from treadle.recsys.enums import EvaluatorType
from treadle.recsys.evaluation.inputs import LabelledRows
from treadle.recsys.evaluation.metrics import Metric, add_metric

LISTS = ("rec.topk", "rec.items")
RANKED = (*LISTS, "rec.meanrank", "data.num_items", "data.num_users", "data.count_items", "data.count_users")
"""What a metric of rankings can be told."""
VALUES = ("rec.score", "data.label", *RANKED[3:])
"""What a metric of rows with labels can be told."""
Array = np.ndarray[Any, Any]


class DataStruct:
    """What metrics are calculated from, by name: `rec.topk`, `rec.items`, `data.label` and others."""

    def __init__(self) -> None:
        self._data_dict: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        return self._data_dict[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._data_dict[name] = value

    def __delitem__(self, name: str) -> None:
        del self._data_dict[name]

    def __contains__(self, name: object) -> bool:
        return name in self._data_dict

    def get(self, name: str) -> Any:
        """Return what has this name.

        Raises:
            IndexError: Nothing has; a metric says with `metric_need` what it needs.
        """
        if name not in self._data_dict:
            raise IndexError(f"{name!r} is not collected; name it in metric_need. There are {sorted(self._data_dict)}")
        return self._data_dict[name]

    def set(self, name: str, value: Any) -> None:
        """Keep something by a name."""
        self._data_dict[name] = value

    def update_tensor(self, name: str, value: Tensor) -> None:
        """Add rows to the tensor of a name."""
        kept = self._data_dict.get(name)
        if kept is not None and not isinstance(kept, Tensor):
            raise ValueError(f"{name!r} is no tensor")
        rows = value.detach().clone()
        self._data_dict[name] = rows if kept is None else torch.cat([kept, rows.to(kept.device)])

    def __str__(self) -> str:
        return "\n".join(f"{name}: {value}" for name, value in self._data_dict.items())


class AbstractMetric:
    """A metric: a subclass is known by its name from the moment that it is defined.

    It says with `metric_need` what it is calculated from, with `metric_type` whether that is rankings or rows with
    labels, and with `calculate_metric` how. `class NDCG(TopkMetric, replace=True)` takes the place of a metric that
    there is.

    Args:
        config: The settings.

    Attributes:
        smaller: Whether a smaller value is a better one.
    """

    smaller: ClassVar[bool] = False
    metric_need: ClassVar[Sequence[str]]
    metric_type: ClassVar[EvaluatorType]

    def __init_subclass__(cls, *, register: bool = True, replace: bool = False, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if register and cls.calculate_metric is not AbstractMetric.calculate_metric:
            add_metric(_registered_metric(cls), replace=replace)

    def __init__(self, config: Any) -> None:
        self.decimal_place = int(config["metric_decimal_place"])

    def calculate_metric(self, dataobject: DataStruct) -> Mapping[str, float]:
        """Return the value by its name, or those of all k, such as `{"mymetric@10": 0.25}`."""
        raise NotImplementedError(f"{type(self).__name__} does not define calculate_metric")


class TopkMetric(AbstractMetric, register=False):
    """A metric of ranked lists, with a value for each k of `topk`."""

    metric_type = EvaluatorType.RANKING
    metric_need: ClassVar[Sequence[str]] = ["rec.topk"]

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.topk: list[int] = list(config["topk"])

    def used_info(self, dataobject: DataStruct) -> tuple[Array, Array]:
        """Return whether the item at each rank is a positive, `[users, max(topk)]`, and how many each user has."""
        lists = dataobject.get("rec.topk").cpu()
        return lists[:, :-1].bool().numpy(), lists[:, -1].numpy()

    def topk_result(self, metric: str, value: Array) -> dict[str, float]:
        """Return the means over users for each k, from the values at each rank, `[users, max(topk)]`."""
        means = value.mean(axis=0)
        return {f"{metric}@{k}": round(float(means[k - 1]), self.decimal_place) for k in self.topk}

    def metric_info(self, pos_index: Array, pos_len: Any = None) -> Array:
        """Return the value of each user at each rank."""
        raise NotImplementedError(f"{type(self).__name__} does not define metric_info")


class LossMetric(AbstractMetric, register=False):
    """A metric of scores whose labels are known."""

    metric_type = EvaluatorType.VALUE
    metric_need: ClassVar[Sequence[str]] = ["rec.score", "data.label"]

    def used_info(self, dataobject: DataStruct) -> tuple[Array, Array]:
        """Return the scores, and the labels."""
        return dataobject.get("rec.score").reshape(-1).numpy(), dataobject.get("data.label").reshape(-1).numpy()

    def output_metric(self, metric: str, dataobject: DataStruct) -> dict[str, float]:
        """Return the value by its name."""
        return {metric: round(float(self.metric_info(*self.used_info(dataobject))), self.decimal_place)}

    def metric_info(self, preds: Array, trues: Array) -> Any:
        """Return the value."""
        raise NotImplementedError(f"{type(self).__name__} does not define metric_info")


def _registered_metric(kind: type[AbstractMetric]) -> Metric:
    """Return a class as it is registered.

    Raises:
        ConfigError: It does not say what it needs, or needs something that there is not.
    """
    name = kind.__name__
    for attribute in ("metric_need", "metric_type"):
        if not hasattr(kind, attribute):
            raise ConfigError(f"metric {name!r} does not say with {attribute} what it is calculated from")
    ranks = kind.metric_type is EvaluatorType.RANKING
    known = RANKED if ranks else VALUES
    for need in kind.metric_need:
        if need not in known:
            raise ConfigError(f"metric {name!r} needs {need!r}; a metric of {kind.metric_type} has {list(known)}")
    return Metric(
        name,
        "collected" if ranks else "labelled",
        ClassMetric(kind),
        smaller=bool(kind.smaller),
        needs_item_counts="data.count_items" in kind.metric_need,
        rates_positives=False,
        needs=tuple(kind.metric_need),
        cutoff=issubclass(kind, TopkMetric),
    )


class ClassMetric:
    """A class of metric where Treadle's evaluation has a function.

    Args:
        kind: The class.
    """

    def __init__(self, kind: type[AbstractMetric]) -> None:
        self.kind = kind
        # What tells a class that is defined again, as in a notebook, from another one.
        self.__module__, self.__qualname__ = kind.__module__, kind.__qualname__

    def values(self, struct: DataStruct, config: Any, keys: Sequence[str]) -> dict[str, float]:
        """Return its values.

        Args:
            struct: What it is calculated from.
            config: The settings.
            keys: What its values are called.

        Raises:
            ConfigError: There are no settings, or the values have other names.
        """
        if config is None:
            raise ConfigError(f"metric {self.kind.__name__!r} is a class, which is made of settings: pass config=")
        found = self.kind(config).calculate_metric(struct)
        if set(found) != set(keys):
            raise ConfigError(
                f"metric {self.kind.__name__!r} returned {sorted(found)}, and is known as {sorted(keys)}: its values "
                "are called as the class, in lower case"
            )
        return {key: float(found[key]) for key in keys}

    def __call__(self, rows: LabelledRows, config: Any = None, facts: Mapping[str, Any] | None = None) -> Tensor:
        """Return the value of rows with labels."""
        struct = make_struct({"rec.score": rows.scores.cpu(), "data.label": rows.labels.cpu()}, facts)
        (value,) = self.values(struct, config, [self.kind.__name__.lower()]).values()
        return torch.tensor(value, dtype=torch.float64)


def make_struct(collected: Mapping[str, Any], facts: Mapping[str, Any] | None) -> DataStruct:
    """Return what was collected, and what is known of the data."""
    struct = DataStruct()
    for name, value in {**(facts or {}), **collected}.items():
        struct.set(name, value)
    return struct
