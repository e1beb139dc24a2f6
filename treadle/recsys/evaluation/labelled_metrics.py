"""Metrics of scores whose true labels are known, over all rows together."""

import torch
from torch import Tensor

from treadle.errors import DataError
from treadle.recsys.evaluation.inputs import LabelledRows, OrderedPairs
from treadle.recsys.evaluation.registry import register_metric

SMALLEST = 1e-15
"""How near to 0 and 1 a probability may come before its logarithm is taken."""


@register_metric("AUC", kind="labelled")
def auc(rows: LabelledRows) -> Tensor:
    """The probability that a random positive has a higher score than a random negative; a tie is half.

    This is the area under the ROC curve, counted exactly.
    """
    _check_binary(rows, "AUC")
    positive = rows.labels > 0.5
    ordered = rows.scores[~positive].sort().values
    scores = rows.scores[positive]
    if not len(ordered) or not len(scores):
        raise DataError(
            f"AUC needs positives and negatives; there are {len(scores)} and {len(ordered)}; look at the labels, or at "
            "the threshold that made them"
        )
    below = torch.searchsorted(ordered, scores).sum()
    up_to = torch.searchsorted(ordered, scores, right=True).sum()
    return (below + up_to).double() / (2 * len(scores) * len(ordered))


@register_metric("LogLoss", kind="labelled", smaller=True)
def log_loss(rows: LabelledRows) -> Tensor:
    """The mean of -log of the probability that was given to what happened."""
    _check_binary(rows, "LogLoss")
    if rows.logits:
        return torch.nn.functional.binary_cross_entropy_with_logits(rows.scores, rows.labels)
    least, most = float(rows.scores.min()), float(rows.scores.max())
    if least < 0 or most > 1:
        raise DataError(
            f"LogLoss takes probabilities, but scores go from {least:.4g} to {most:.4g}; pass logits=True if a sigmoid "
            "makes them probabilities, or apply it in the model's predict"
        )
    likely = rows.scores.clamp(SMALLEST, 1 - SMALLEST)
    return -(rows.labels * likely.log() + (1 - rows.labels) * torch.log1p(-likely)).mean()


@register_metric("MAE", kind="labelled", smaller=True)
def mae(rows: LabelledRows) -> Tensor:
    """The mean absolute difference between score and label."""
    return (rows.scores - rows.labels).abs().mean()


@register_metric("RMSE", kind="labelled", smaller=True)
def rmse(rows: LabelledRows) -> Tensor:
    """The root of the mean squared difference between score and label."""
    return (rows.scores - rows.labels).square().mean().sqrt()


def ordered_pairs(rows: LabelledRows) -> OrderedPairs:
    """Return, for each user with rows, how many pairs of a positive and a negative are in order."""
    _check_binary(rows, "GAUC")
    if rows.users is None:
        raise DataError("GAUC needs to know whose row is whose; pass users with the scores and labels")
    users = torch.unique(rows.users, return_inverse=True)[1]
    by_score = rows.scores.argsort(stable=True)
    order = by_score[users[by_score].argsort(stable=True)]
    users, scores, positive = users[order], rows.scores[order], rows.labels[order] > 0.5
    run = _runs(users, scores)
    number = int(users[-1]) + 1 if len(users) else 0
    negatives = _sums(run, (~positive).double(), int(run[-1]) + 1 if len(run) else 0)
    total = _sums(users, (~positive).double(), number)
    below = negatives.cumsum(0) - negatives
    first = total.cumsum(0) - total
    wins = torch.where(positive, below[run] + negatives[run] / 2 - first[users], 0.0)
    return OrderedPairs(_sums(users, wins, number), _sums(users, positive.double(), number), total)


def _runs(users: Tensor, scores: Tensor) -> Tensor:
    """Number the stretches in which neither user nor score changes."""
    changed = torch.zeros_like(users)
    changed[1:] = ((users[1:] != users[:-1]) | (scores[1:] != scores[:-1])).long()
    return changed.cumsum(0)


def _sums(places: Tensor, values: Tensor, number: int) -> Tensor:
    return values.new_zeros(number).index_add_(0, places, values)


def _check_binary(rows: LabelledRows, name: str) -> None:
    other = rows.labels[(rows.labels != 0) & (rows.labels != 1)]
    if len(other):
        raise DataError(f"{name} needs labels 0 and 1, but a label is {float(other[0]):.4g}; set a threshold for them")
