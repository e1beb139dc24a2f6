"""The one module that data-parallel wrappers see."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn


class LossModule(nn.Module):
    """A model together with the verb that computes its loss.

    DDP and FSDP act in the `forward` of what they wrap; models whose loss is not in their own `forward`
    (`model.calculate_loss(batch)`) are seen because the verb is called from here.

    The parameter `weight` collects, as its gradient, the weight of all losses of a window. It rides in the
    wrapper's own all-reduce, so the sum over all ranks costs no collective of its own.
    """

    def __init__(self, model: nn.Module, device: torch.device, others: Iterable[nn.Parameter] = ()) -> None:
        super().__init__()
        self.model = model
        # What the loss learns beside the model, such as the proxies of a metric loss.
        self.others = nn.ParameterList(others)
        kinds = {parameter.dtype for parameter in model.parameters()}
        # A weight of the parameters' own type shares their bucket; a half would lose the count.
        exact = torch.float64 if torch.float64 in kinds else torch.float32
        self.weight = nn.Parameter(torch.zeros(1, device=device, dtype=exact))

    def forward(self, verb: Callable[[Any], dict[str, Any]], batch: Any) -> tuple[dict[str, Any], Tensor]:
        """Return what `verb` makes of `batch`, and a zero through which `weight` gets its gradient."""
        output = verb(batch)
        return output, self.weight.sum()
