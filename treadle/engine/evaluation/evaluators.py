"""What every evaluator is."""

import math
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from treadle.data import size_of
from treadle.errors import ConfigError, DataError
from treadle.loop.verbs import refuse_misspelt
from treadle.ops.losses import read_targets
from treadle.parallel import Processes
from treadle.precision.loss_scaling import widest_float


class DatasetEvaluator:
    """Takes what a model says of the samples of a data set, batch by batch, and makes numbers of it at the end.

    Every sample comes exactly once. With several processes, `process` gets the samples of all of them, on each; an
    evaluator that sets `local` gets those of its own process only, and joins its sums in `evaluate`.
    """

    local: bool = False
    """Whether `process` is to be given the samples of its own process only."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        refuse_misspelt(cls, ("reset", "process", "evaluate"))

    def reset(self) -> None:
        """Begin anew."""

    def process(self, inputs: Any, outputs: Any) -> None:
        """Take the inputs and outputs of the model for one batch."""

    def evaluate(self) -> dict[str, Any]:
        """Return the numbers by name; nested dicts are reported as `a/b`."""
        return {}


class DatasetEvaluators(DatasetEvaluator):
    """Several evaluators as one.

    Args:
        evaluators: The evaluators; no two may return a number of the same name.
    """

    def __init__(self, evaluators: Sequence[DatasetEvaluator]) -> None:
        self._evaluators = list(evaluators)
        self.local = all(evaluator.local for evaluator in self._evaluators)
        if not self.local and any(evaluator.local for evaluator in self._evaluators):
            names = [type(evaluator).__name__ for evaluator in self._evaluators if evaluator.local]
            raise ConfigError(f"evaluators that are local, {names}, cannot be joined with others; run them apart")

    def reset(self) -> None:
        """Begin anew."""
        for evaluator in self._evaluators:
            evaluator.reset()

    def process(self, inputs: Any, outputs: Any) -> None:
        """Hand one batch to all."""
        for evaluator in self._evaluators:
            evaluator.process(inputs, outputs)

    def evaluate(self) -> dict[str, Any]:
        """Return the numbers of all."""
        results: dict[str, Any] = {}
        for evaluator in self._evaluators:
            own = evaluator.evaluate() or {}
            twice = sorted(set(own) & set(results))
            if twice:
                raise ConfigError(f"two evaluators report {twice}; rename what one of them returns")
            results |= own
        return results


# Accuracy of a classification


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
        scores, labels = extract_scores(outputs), read_targets(inputs)
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


def extract_scores(outputs: Any) -> Tensor:
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


# Perplexity of a language model


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
        named = outputs if isinstance(outputs, Mapping) else {}
        losses = {name: value for name, value in named.items() if "loss" in name}
        if not losses:
            raise DataError("PPLEvaluator needs losses; have the model return a dict with names that contain 'loss'")
        weight = outputs.get("num_items_in_batch", size_of(inputs))
        for name, loss in losses.items():
            mean = loss.detach().mean().to(widest_float(loss.device))
            self._totals[name] = self._totals.get(name, 0.0) + mean * weight
        self._weight = self._weight + weight

    def evaluate(self) -> dict[str, float]:
        """Return perplexities and losses over the samples of all processes."""
        processes = Processes()
        # A process that shares its samples with another counts none, and knows no name.
        names = sorted({name for known in processes.gather_objects(sorted(self._totals)) for name in known})
        totals = [self._totals.get(name, 0.0) for name in names]
        own = torch.stack([_as_tensor(value) for value in (*totals, self._weight)])
        *totals, weight = processes.reduce(own.tolist())
        if not weight:
            raise DataError("PPLEvaluator saw no sample; check the test data and evaluation.eval_iter")
        means = {name: total / weight for name, total in zip(names, totals, strict=True)}
        return {f"{name}_PPL": math.exp(min(mean, LARGEST)) for name, mean in means.items()} | means


def _as_tensor(value: Any) -> Tensor:
    return torch.as_tensor(value).cpu().to(torch.float64)
