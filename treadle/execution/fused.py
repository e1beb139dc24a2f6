"""Optimizers that do all of a step in one kernel, and whose steps can be recorded."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)
"""Optimizers that have a fused implementation on CUDA."""


def prefer_fused(optimizer: Optimizer) -> None:
    """Have an optimizer work in one kernel, if it can and nobody chose otherwise.

    The fused implementation is the fastest, takes the loss scale without the host looking at it, and can be
    recorded. An optimizer that was given `foreach` or `fused` is left as it is.
    """
    if type(optimizer) not in FUSED:
        return
    for group in optimizer.param_groups:
        chosen = group.get("foreach") is not None or group.get("fused") is not None
        if chosen or group.get("differentiable") or not all(map(_is_supported, group["params"])):
            return
        if group.get("momentum") and group["dampening"]:
            # Then a weight whose first gradient comes later than others cannot be given a momentum; see `give_momenta`.
            return
    for group in optimizer.param_groups:
        group["fused"] = True
    optimizer.defaults["fused"] = True
    if isinstance(optimizer, torch.optim.SGD):
        optimizer.register_step_pre_hook(give_momenta)
    optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]
    counters_to_device(optimizer)


def give_momenta(optimizer: Optimizer, *step: Any) -> None:
    """Give weights a momentum of zero where others have one already, which torch's fused SGD takes for granted.

    Weights get their first gradient late where layers are unfrozen, or where a search draws which of them take part.
    Without dampening a momentum that begins at zero is that of torch, which begins with the first gradient.
    """
    for group in optimizer.param_groups:
        if not group["momentum"] or not group["fused"]:
            continue
        trained = [parameter for parameter in group["params"] if parameter.grad is not None]
        late = [one for one in trained if optimizer.state.get(one, {}).get("momentum_buffer") is None]
        if len(late) < len(trained):
            for parameter in late:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


class Capturable:
    """Optimizers that keep their counters on the device, as a recorded step needs them.

    Args:
        optimizers: The optimizers; nothing is changed until `apply`.
    """

    def __init__(self, optimizers: Iterable[Optimizer]) -> None:
        self._optimizers = list(optimizers)
        self._groups: list[dict[str, Any]] = []

    def apply(self) -> None:
        """Have every optimizer count on the device that can; torch has no such choice on a CPU."""
        for optimizer in self._optimizers:
            groups = [group for group in optimizer.param_groups if group.get("capturable") is False]
            groups = [group for group in groups if all(parameter.is_cuda for parameter in group["params"])]
            for group in groups:
                group["capturable"] = True
            self._groups += groups
            counters_to_device(optimizer)

    def undo(self) -> None:
        """Have them count where they did before: in ordinary steps, each counter on the device would be read."""
        for group in self._groups:
            group["capturable"] = False
        self._groups = []
        for optimizer in self._optimizers:
            counters_to_device(optimizer)


def counters_to_device(optimizer: Optimizer) -> None:
    """Keep counters where they are expected: with the weights if fused or recorded, else on the host.

    ASGD has them with the weights whatever is chosen, and Adagrad, which has no choice, where it made them.
    """
    beside = isinstance(optimizer, torch.optim.ASGD)
    for group in optimizer.param_groups:
        if "capturable" not in group:
            continue
        on_device = beside or group.get("fused") or group["capturable"]
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            wanted = parameter.device if on_device else torch.device("cpu")
            # NAdam has a product of momenta besides the step, ASGD two factors.
            for name in ("step", "mu_product", "eta", "mu"):
                if isinstance(state.get(name), Tensor):
                    state[name] = state[name].to(wanted)


def state_to_weights(optimizer: Optimizer) -> None:
    """Bring all state but counters to where its weights are.

    Adagrad makes its state when it is built: where the weights were then, and not where a trainer moves them to.
    """
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.dim() and value.device != parameter.device:
                state[name] = value.to(parameter.device)


def _is_supported(parameter: Tensor) -> bool:
    return parameter.is_cuda and parameter.is_floating_point() and parameter.layout == torch.strided
