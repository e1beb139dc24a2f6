"""How well scores follow numbers: correlations over all samples."""

import logging
from typing import Any

import torch
from torch import Tensor

from treadle.engine.evaluation.evaluators import DatasetEvaluator, extract_scores
from treadle.errors import DataError
from treadle.ops.losses import read_targets

logger = logging.getLogger(__name__)


class RegEvaluator(DatasetEvaluator):
    """How well the scores of a regression follow their labels: `pearson`, `spearman`, and their mean as `corr`.

    The model returns one score for each sample as `prediction_scores` or `logits`, or as they are; the labels are among
    its inputs, as `labels`, `label`, `targets` or `target`. Where all scores, or all labels, are equal, no correlation
    is defined: it is nan then, and a line says so.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        self._pairs: list[Tensor] = []

    def process(self, inputs: Any, outputs: Any) -> None:
        """Keep the scores and labels of one batch; nothing is read from the device."""
        scores, labels = extract_scores(outputs), read_targets(inputs)
        if scores.numel() != labels.numel():
            raise DataError(
                f"RegEvaluator got scores of shape {tuple(scores.shape)} for labels of shape {tuple(labels.shape)}; "
                "have the model return one score for each sample"
            )
        # Counted from zero in double precision only once they are on the host: some devices have no doubles.
        self._pairs.append(torch.stack([scores.detach().flatten().float(), labels.flatten().float()]))

    def evaluate(self) -> dict[str, float]:
        """Return the correlations over the samples of all processes."""
        if sum(pair.shape[1] for pair in self._pairs) < 2:
            raise DataError("RegEvaluator needs two samples or more; check the test data and evaluation.eval_iter")
        pairs = torch.cat([pair.cpu() for pair in self._pairs], dim=1).double()
        if bool((pairs == pairs[:, :1]).all(dim=1).any()):
            logger.warning("RegEvaluator: all scores or all labels are equal, so that no correlation is defined")
        pearson, spearman = _correlation(pairs), _correlation(torch.stack([_ranks(row) for row in pairs]))
        return {"pearson": pearson, "spearman": spearman, "corr": (pearson + spearman) / 2}


def _correlation(pairs: Tensor) -> float:
    first, second = pairs - pairs.mean(dim=1, keepdim=True)
    return float((first @ second) / (first.norm() * second.norm()))


def _ranks(values: Tensor) -> Tensor:
    """Return the place of each value in order; equal ones share the mean of theirs."""
    _, group, counts = torch.unique(values, return_inverse=True, return_counts=True)
    ranks: Tensor = counts.cumsum(0) - (counts - 1) / 2
    return ranks[group]
