"""Accuracy of a classification."""

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from treadle.engine.evaluation.dataset_evaluator import DatasetEvaluator
from treadle.errors import ConfigError, DataError
from treadle.losses import targets_of
from treadle.parallel import Processes

SCORES = ("prediction_scores", "logits")
"""Where the scores are in what a model returns."""


class ClsEvaluator(DatasetEvaluator):
    """The share of samples, in percent, whose label is among the k highest scores, as `Acc@k`.

    The model returns scores of (samples, classes) as `prediction_scores` or `logits`, or as they are; the labels
    are among its inputs, as `labels`, `label`, `targets` or `target`.

    Args:
        topk: Each k to report.

    Raises:
        ConfigError: One of them is no whole number from 1 up.
    """

    local = True

    def __init__(self, topk: Sequence[int] | int = (1, 5)) -> None:
        self.topk = tuple(topk) if isinstance(topk, Sequence) else (topk,)
        if not self.topk or not all(_is_count(k) for k in self.topk):
            raise ConfigError(f"ClsEvaluator(topk={topk!r}): give whole numbers from 1 up, such as (1, 5)")
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        self._correct: Tensor | None = None
        self._samples = 0

    def process(self, inputs: Any, outputs: Any) -> None:
        """Count the samples of one batch; nothing is read from the device."""
        scores, labels = scores_of(outputs), targets_of(inputs)
        best = scores.topk(min(max(self.topk), scores.shape[-1]), dim=-1).indices
        hits = (best == labels.unsqueeze(-1)).sum(dim=0)
        counts = torch.stack([hits[:k].sum() for k in self.topk])
        self._correct = counts if self._correct is None else self._correct + counts
        self._samples += len(labels)

    def evaluate(self) -> dict[str, float]:
        """Return the accuracies over the samples of all processes."""
        own = [0] * len(self.topk) if self._correct is None else self._correct.tolist()
        *correct, samples = Processes().reduce([*map(float, own), float(self._samples)])
        if not samples:
            raise DataError("ClsEvaluator saw no sample; check the test data and evaluation.eval_iter")
        return {f"Acc@{k}": 100.0 * hits / samples for k, hits in zip(self.topk, correct, strict=True)}


def _is_count(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) > 0


def scores_of(outputs: Any) -> Tensor:
    """Return the scores in what a model returned.

    Raises:
        DataError: There are none.
    """
    if isinstance(outputs, Tensor):
        return outputs
    if isinstance(outputs, Mapping):
        for name in SCORES:
            if name in outputs:
                scores: Tensor = outputs[name]
                return scores
        raise DataError(f"the model returned {sorted(outputs)} in evaluation; return its scores as one of {SCORES}")
    raise DataError(f"the model returned a {type(outputs).__name__} in evaluation; return a dict with {SCORES[0]!r}")
