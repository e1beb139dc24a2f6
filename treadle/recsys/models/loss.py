"""Losses and penalties that several models share."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional


class BPRLoss(nn.Module):
    """The pairwise loss of Bayesian personalised ranking: the mean of `-log(sigmoid(positive - negative))`.

    Rendle, Freudenthaler, Gantner and Schmidt-Thieme, "BPR: Bayesian personalized ranking from implicit feedback",
    2009. It is calculated in float32 at least, as a logarithm of a sigmoid, so that no difference is too large for it.

    Args:
        gamma: Added to the sigmoid, which bounds the loss of a pair by `-log(gamma)`; 0 adds nothing.

    >>> BPRLoss()(torch.tensor([0.0, 0.0]), torch.tensor([0.0, 0.0])).item() == torch.tensor(2.0).log().item()
    True
    """

    def __init__(self, gamma: float = 0.0) -> None:
        super().__init__()
        self.gamma = gamma

    def forward(self, pos_score: Tensor, neg_score: Tensor) -> Tensor:
        """Return the loss of positives `[rows]` against negatives `[rows]`, or `[rows, n]` for several."""
        if neg_score.dim() > pos_score.dim():
            pos_score = pos_score.unsqueeze(-1)
        return self.from_differences(pos_score - neg_score)

    def from_differences(self, differences: Tensor) -> Tensor:
        """Return the loss of scores of positives from which those of negatives are subtracted already."""
        log_likelihood = functional.logsigmoid(at_least_float32(differences))
        if self.gamma > 0:
            bound = log_likelihood.new_full((), self.gamma).log()
            log_likelihood = torch.logaddexp(log_likelihood, bound)
        return -log_likelihood.mean()


class RegLoss(nn.Module):
    """The sum of the norms of some parameters."""

    def forward(self, parameters: Iterable[Tensor]) -> Tensor:
        """Return the sum of their norms, which are not squared."""
        norms = [at_least_float32(one).norm(2) for one in parameters]
        return torch.stack(norms).sum()


class EmbLoss(nn.Module):
    """A penalty on the embeddings of a batch: their norm, divided by the number of rows.

    Args:
        norm: Which norm.
    """

    def __init__(self, norm: float = 2) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, *embeddings: Tensor, require_pow: bool = False, rows: int | None = None) -> Tensor:
        """Return the penalty.

        Args:
            embeddings: Each `[rows, ...]`.
            require_pow: Take the norms to the power of `norm`, and divide by it. With the norm 2 this is half the sum
                of squares, the weight decay that papers mean. Without it, the norm of each tensor counts as it is.
            rows: What to divide by; by default the rows of the last tensor.
        """
        rows = max(embeddings[-1].shape[0] if rows is None else rows, 1)
        if require_pow and self.norm == 2:
            # Without the root, which would be squared again, and whose gradient has to look out for zeros.
            squares = [at_least_float32(one).square().sum() for one in embeddings]
            return (squares[0] if len(squares) == 1 else torch.stack(squares).sum()) / (2 * rows)
        norms = torch.stack([at_least_float32(one).norm(self.norm) for one in embeddings])
        if require_pow:
            norms = norms.pow(self.norm) / self.norm
        return norms.sum() / rows


class EmbMarginLoss(nn.Module):
    """A penalty on embeddings whose sum of powers is above 1.

    Args:
        power: Which power.
    """

    def __init__(self, power: float = 2) -> None:
        super().__init__()
        self.power = power

    def forward(self, *embeddings: Tensor) -> Tensor:
        """Return the sum of what is above 1, divided by the number of rows."""
        above = [functional.relu(at_least_float32(one).pow(self.power).sum(dim=1) - 1).sum() for one in embeddings]
        return torch.stack(above).sum() / max(embeddings[-1].shape[0], 1)


def at_least_float32(values: Tensor) -> Tensor:
    """Return values of half precision as float32, in which a loss neither overflows nor rounds to nothing."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values
