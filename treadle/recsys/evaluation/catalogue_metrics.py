"""Metrics of the recommendations as a whole: how they spread over the items.

`counts` says how often each item is recommended to somebody within the first k; padding is left out of it.
"""

import torch
from torch import Tensor

from treadle.recsys.evaluation.registry import register_metric


@register_metric("ItemCoverage", kind="catalogue")
def item_coverage(counts: Tensor, k: int) -> Tensor:
    """The share of all items that are recommended to anybody."""
    return (counts > 0).double().mean()


@register_metric("GiniIndex", kind="catalogue", smaller=True)
def gini_index(counts: Tensor, k: int) -> Tensor:
    """How unevenly items are recommended: 0 if all alike, near 1 if few get everything.

    Sum of (2 i - n - 1) c_i / (n sum of c), with the counts c_1 <= ... <= c_n of all n items, those that nobody is
    recommended included.
    """
    ordered = counts.sort().values.double()
    number = ordered.numel()
    places = torch.arange(1, number + 1, dtype=torch.float64, device=counts.device)
    return ((2 * places - number - 1) * ordered).sum() / (number * ordered.sum())


@register_metric("ShannonEntropy", kind="catalogue")
def shannon_entropy(counts: Tensor, k: int) -> Tensor:
    """The entropy of the recommended item, in nats: minus the sum of p ln p."""
    shares = counts.double() / counts.sum()
    return torch.nansum(-shares * shares.log())
