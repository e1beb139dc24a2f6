"""Metrics that are sums: each batch adds to one tensor on the device, which is read when a metric is asked for."""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from treadle.errors import ConfigError, did_you_mean
from treadle.loop.metric_inputs import Classes, Measured, YesOrNo, read_answers, read_classes, read_sides, read_values
from treadle.precision.loss_scaling import widest_float

BINS = 2**16
"""So many scores are told apart by "auroc": those of floats with the eight significant bits that bf16 has."""
MOST_CLASSES = 16
"""Of so many classes "auroc" keeps its counts: they take a megabyte each."""


class SummedMetric(ABC):
    """A metric whose value follows from sums over all samples, so that batches, processes and resumes give the same.

    Args:
        name: What its value is called.

    Attributes:
        sums: What was added up so far, in rows, on the device; None before the first batch.
        names: What its values are called; a function may return several.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.sums: Tensor | None = None
        self.names = [name]

    @abstractmethod
    def measure(self, measured: Measured) -> Tensor:
        """Return what a batch adds to the sums: a tensor of some rows, of the same shape for every batch."""

    @abstractmethod
    def finish(self, sums: Tensor) -> dict[str, float]:
        """Return the values that `sums`, which are on the host, stand for; none if they are over no sample."""

    @torch.no_grad()
    def update(self, measured: Measured) -> None:
        """Add a batch; nothing is read from the device."""
        found = self.measure(measured).to(widest_float(measured.device))
        if self.sums is None:
            self.sums = torch.zeros_like(found)
        elif self.sums.shape != found.shape:
            raise ConfigError(
                f"the metric {self.name!r} had sums of shape {tuple(self.sums.shape)} for the batches before and "
                f"{tuple(found.shape)} for this one; the outputs must have as many classes or columns in every batch"
            )
        elif self.sums.device != found.device:
            self.sums = self.sums.to(found.device, found.dtype)
        # In place: recorded steps hold on to it.
        self.sums.add_(found)

    def fresh(self) -> Self:
        """Return the same metric of no batch."""
        made = copy.copy(self)
        made.sums, made.names = None, list(self.names)
        return made

    def reset(self) -> None:
        """Forget every batch."""
        if self.sums is not None:
            self.sums.zero_()

    def state_dict(self) -> dict[str, Any]:
        """Return the sums, where they are."""
        return {"sums": self.sums, "names": list(self.names)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take sums back."""
        self.sums, self.names = state["sums"], [str(name) for name in state["names"]]


class FunctionMetric(SummedMetric):
    """The mean of a function of outputs and targets, weighted by the samples of each batch.

    Args:
        name: What its value is called, unless it returns a dict.
        function: Called as `function(outputs, targets)`: returns a tensor with one value, or with one for each sample;
            or a dict of such.
        waits: Whether it may return numbers that it has read from the device.
    """

    def __init__(self, name: str, function: Callable[[Any, Any], Any], *, waits: bool = True) -> None:
        super().__init__(name)
        self.function, self.waits = function, waits

    def measure(self, measured: Measured) -> Tensor:
        """Return the sum of each value, and over how many samples it is."""
        found = self.function(measured.outputs, measured.targets)
        values = dict(found) if isinstance(found, Mapping) else {self.name: found}
        self.names = list(map(str, values))
        sums = torch.stack([self._sum_of(name, value, measured) for name, value in values.items()])
        return torch.stack([sums, torch.full_like(sums, measured.size)])

    def _sum_of(self, name: str, value: Any, measured: Measured) -> Tensor:
        wide, size = widest_float(measured.device), measured.size
        if not isinstance(value, Tensor) and not self.waits:
            raise ConfigError(
                f"the metric {name!r} returned a {type(value).__name__} for a batch of training; return a tensor, that "
                "is read once an epoch, or leave training out with train_metrics=False"
            )
        if not isinstance(value, Tensor):
            return torch.full((), float(value) * size, dtype=wide, device=measured.device)
        if value.numel() == 1:
            return value.detach().reshape(()).to(measured.device, wide) * size
        if value.dim() and len(value) == size:
            return value.detach().to(measured.device, wide).reshape(size, -1).mean(1).sum()
        raise ConfigError(
            f"the metric {name!r} returned a tensor of shape {tuple(value.shape)} for a batch of {size} samples; "
            "return one value, or one for each sample"
        )

    def finish(self, sums: Tensor) -> dict[str, float]:
        """Return the means."""
        found = zip(self.names, *sums.tolist(), strict=True)
        return {name: total / weight for name, total, weight in found if weight}


class Named(NamedTuple):
    """A metric that is asked for by its name.

    Attributes:
        measure: What a batch adds, in rows.
        finish: The value of the sums, on the host.
    """

    measure: Callable[[Measured], Tensor]
    finish: Callable[[Tensor], float | None]


class NamedMetric(SummedMetric):
    """A metric that is asked for by its name, such as "accuracy".

    What it is of, how many classes there are and where they lie in the outputs follows from the shapes and types of the
    first batch, and from the loss.
    """

    def __init__(self, kind: str, name: str | None = None) -> None:
        if kind not in NAMED:
            near = did_you_mean(kind, NAMED) or f"; the names are {list(NAMED)}"
            raise ConfigError(
                f"the metric {kind!r} does not exist{near}. Others are functions of (outputs, targets), or torchmetrics"
            )
        super().__init__(kind if name is None else name)
        self.kind = kind

    def measure(self, measured: Measured) -> Tensor:
        """Return what a batch adds."""
        return NAMED[self.kind].measure(measured._replace(metric=self.kind))

    def finish(self, sums: Tensor) -> dict[str, float]:
        """Return the value."""
        value = NAMED[self.kind].finish(sums)
        return {} if value is None else {self.name: value}


# Shares of samples -------------------------------------------------------------------------------------------


def _ratio(sums: Tensor) -> float | None:
    total, count = sums.flatten().tolist()
    return total / count if count else None


def _share(right: Tensor, counts: Tensor | None = None) -> Tensor:
    if counts is None:
        return torch.stack([right.sum(), torch.full_like(right.sum(), right.numel())])
    return torch.stack([(right & counts).sum(), counts.sum()])


def _accuracy(measured: Measured) -> Tensor:
    found = read_answers(measured)
    if isinstance(found, YesOrNo):
        return _share(found.answers == found.truth, found.counts)
    return _share(found.scores.argmax(1) == found.labels, found.counts)


def _top5_accuracy(measured: Measured) -> Tensor:
    found = read_classes(measured)
    if found.scores.shape[1] <= 5:
        raise ConfigError(
            f"the metric 'top5_accuracy' asks for the best five of {found.scores.shape[1]} classes, which is always "
            "right; use 'accuracy'"
        )
    best = found.scores.topk(5, dim=1).indices
    return _share((best == found.labels[:, None]).any(1), found.counts)


# What was found, and what was there ----------------------------------------------------------------------------


def _hits(measured: Measured) -> Tensor:
    """Return for each class how often it was answered rightly, answered at all, and there."""
    found = read_sides(measured)
    if isinstance(found, YesOrNo):
        marks = (found.answers & found.truth, found.answers, found.truth)
        return torch.stack([(mark & found.counts).sum() for mark in marks])[:, None]
    answers, counts = found.scores.argmax(1), found.counts.long()
    # An ignored target is no index: it stands for class 0, and counts nothing.
    labels = torch.where(found.counts, found.labels, 0)
    rows = torch.zeros(3, found.scores.shape[1], dtype=torch.long, device=answers.device)
    rows[0].index_add_(0, labels, counts * (answers == labels))
    rows[1].index_add_(0, answers, counts)
    rows[2].index_add_(0, labels, counts)
    return rows


def _mean_over_classes(values: Tensor, sums: Tensor) -> float | None:
    """Return the mean over the classes that were there, or were answered."""
    there = sums[1] + sums[2] > 0
    return float(values[there].mean()) if there.any() else None


def _precision(sums: Tensor) -> float | None:
    return _mean_over_classes(sums[0] / sums[1].clamp_min(1), sums)


def _recall(sums: Tensor) -> float | None:
    return _mean_over_classes(sums[0] / sums[2].clamp_min(1), sums)


def _f1(sums: Tensor) -> float | None:
    return _mean_over_classes(2 * sums[0] / (sums[1] + sums[2]).clamp_min(1), sums)


def _scores_by_bin(measured: Measured) -> Tensor:
    """Return for each class how many samples that are not of it, and are, had which score."""
    found = read_sides(measured, needs_answers=False)
    if isinstance(found, YesOrNo):
        scores, truth, counts = found.scores[:, None], found.truth[:, None], found.counts
    else:
        classes = found.scores.shape[1]
        if classes > MOST_CLASSES:
            raise ConfigError(
                f"the metric 'auroc' counts scores for {MOST_CLASSES} classes at most, and there are {classes}; pass "
                f"torchmetrics' AUROC(task='multiclass', num_classes={classes})"
            )
        scores, counts = found.scores.log_softmax(1), found.counts
        truth = found.labels[:, None] == torch.arange(classes, device=scores.device)
    columns = scores.shape[1]
    first = (truth * columns + torch.arange(columns, device=scores.device)) * BINS
    places = (first + _bin_of(scores)).flatten()
    rows = torch.zeros(2 * columns * BINS, dtype=torch.long, device=scores.device)
    return rows.index_add_(0, places, counts.long().repeat_interleave(columns)).reshape(2, columns, BINS)


def _bin_of(scores: Tensor) -> Tensor:
    # The bits of floats are in their order, once those of negative ones are turned round. Adding 0 makes -0 be 0.
    bits = (scores + 0.0).contiguous().view(torch.int32)
    return (torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits) >> 16) + BINS // 2


def _auroc(sums: Tensor) -> float | None:
    """Return how often a sample of a class scores higher than one that is not, the same score counting half."""
    negatives, positives = sums[0], sums[1]
    below = negatives.cumsum(1) - negatives
    won = (positives * (below + negatives / 2)).sum(1)
    pairs = positives.sum(1) * negatives.sum(1)
    return float((won[pairs > 0] / pairs[pairs > 0]).mean()) if (pairs > 0).any() else None


# Losses and errors -----------------------------------------------------------------------------------------------


def _log_loss(measured: Measured) -> Tensor:
    found: Classes = read_classes(measured)
    labels = torch.where(found.counts, found.labels, 0)
    losses = F.cross_entropy(found.scores, labels, reduction="none")
    total = torch.where(found.counts, losses, 0.0).sum(dtype=widest_float(losses.device))
    return torch.stack([total, found.counts.sum().to(total.dtype)])


def _perplexity(sums: Tensor) -> float | None:
    mean = _ratio(sums)
    return None if mean is None else math.exp(min(mean, 700.0))


def _errors(power: int) -> Callable[[Measured], Tensor]:
    def measure(measured: Measured) -> Tensor:
        outputs, targets = read_values(measured)
        errors = (outputs - targets).abs() ** power
        return torch.stack([errors.sum(), torch.full_like(errors.sum(), errors.numel())])

    return measure


def _root(sums: Tensor) -> float | None:
    mean = _ratio(sums)
    return None if mean is None else math.sqrt(mean)


def _moments(measured: Measured) -> Tensor:
    """Return for each column the number of targets, their sum, that of their squares, and that of squared errors."""
    outputs, targets = (values.reshape(len(values), -1) for values in read_values(measured))
    count = torch.full_like(targets[0], len(targets))
    return torch.stack([count, targets.sum(0), (targets**2).sum(0), ((outputs - targets) ** 2).sum(0)])


def _r2(sums: Tensor) -> float | None:
    count, total, squares, errors = sums
    if not count.any():
        return None
    spread = squares - total**2 / count
    # As scikit-learn has it: targets that are all alike are explained by no errors only.
    alike = torch.where(errors == 0, 1.0, 0.0).to(sums.dtype)
    return float(torch.where(spread > 0, 1 - errors / spread, alike).mean())


NAMED: dict[str, Named] = {
    "accuracy": Named(_accuracy, _ratio),
    "top5_accuracy": Named(_top5_accuracy, _ratio),
    "precision": Named(_hits, _precision),
    "recall": Named(_hits, _recall),
    "f1": Named(_hits, _f1),
    "auroc": Named(_scores_by_bin, _auroc),
    "perplexity": Named(_log_loss, _perplexity),
    "mae": Named(_errors(1), _ratio),
    "mse": Named(_errors(2), _ratio),
    "rmse": Named(_errors(2), _root),
    "r2": Named(_moments, _r2),
}
"""The metrics that can be asked for by name."""
