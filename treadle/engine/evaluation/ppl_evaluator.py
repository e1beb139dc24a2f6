"""Perplexity of a language model."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from treadle.data import size_of
from treadle.engine.evaluation.dataset_evaluator import DatasetEvaluator
from treadle.errors import DataError
from treadle.parallel import Processes

LARGEST = 700.0
"""The greatest mean loss whose exponential is a number."""


class PPLEvaluator(DatasetEvaluator):
    """The perplexity of each loss that the model returns, as `<name>_PPL`, and the mean loss as `<name>`.

    It is the exponential of the mean over all samples, not a mean over batches of exponentials. Where the losses are
    means over tokens, return the number of tokens as `num_items_in_batch`, and they count as many.
    """

    local = True

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        self._totals: dict[str, Any] = {}
        self._weight: Any = 0

    def process(self, inputs: Any, outputs: Any) -> None:
        """Add the losses of one batch; nothing is read from the device."""
        losses = {name: value for name, value in outputs.items() if "loss" in name} if _named(outputs) else {}
        if not losses:
            raise DataError("PPLEvaluator needs losses; have the model return a dict with names that contain 'loss'")
        weight = outputs.get("num_items_in_batch", size_of(inputs))
        for name, loss in losses.items():
            self._totals[name] = self._totals.get(name, 0.0) + loss.detach().mean().double() * weight
        self._weight = self._weight + weight

    def evaluate(self) -> dict[str, float]:
        """Return perplexities and losses over the samples of all processes."""
        processes = Processes()
        # A process that shares its samples with another counts none, and knows no name.
        names = sorted({name for known in processes.gather_objects(sorted(self._totals)) for name in known})
        own = torch.stack([_as_tensor(value) for value in (*map(self._total, names), self._weight)])
        *totals, weight = processes.reduce(own.tolist())
        if not weight:
            raise DataError("PPLEvaluator saw no sample; check the test data and evaluation.eval_iter")
        means = {name: total / weight for name, total in zip(names, totals, strict=True)}
        return {f"{name}_PPL": math.exp(min(mean, LARGEST)) for name, mean in means.items()} | means

    def _total(self, name: str) -> Any:
        return self._totals.get(name, 0.0)


def _named(outputs: Any) -> bool:
    return isinstance(outputs, Mapping)


def _as_tensor(value: Any) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float64).cpu()
