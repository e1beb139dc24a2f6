"""Optimizers that do all of a step in one kernel, and whose steps can be recorded."""

import inspect
from collections.abc import Iterable
from functools import cache
from operator import attrgetter, itemgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim import optimizer as base

from treadle.errors import ConfigError
from treadle.optim.combined import CombinedOptimizer

_Group = dict[str, Any]
_Update = tuple[_Group, list[Any], list[dict[str, Tensor]]]
STEPPING = ("_run_training", "update", "apply_gradients", "optimizer_step")
"""The verbs of a trainer in which an optimizer may be stepped."""
_PLAIN = (nn.Parameter, Tensor)


def direct_step(optimizer: Optimizer) -> None:
    """Let `optimizer` make its update; a fused Adam, AdamW or SGD by torch's operation alone, others by their own code.

    Around the one operation that updates all weights, torch calls hooks, keeps a record for profilers, keeps compilers
    out and sorts tensors by device; around the code of every optimizer, the first three. Where somebody listens or has
    replaced `step`, and wherever anything is out of the ordinary, the optimizer's own `step` is called. The numbers are
    the same bits either way.

    It pays in small steps: one of the MLP 64-64-64-10 on a CPU takes 187 µs, and 242 µs by the optimizer's own `step`;
    one of a small CNN the same by both (benchmarks/RESULTS.md, "Shortcuts of a step on a CPU", 2026-11-19).
    """
    if isinstance(optimizer, CombinedOptimizer):
        for member in optimizer.members:
            direct_step(member)
        optimizer._opt_called = True  # type: ignore[attr-defined]
        return
    if type(optimizer) not in WRAPPED or not _is_unobserved(optimizer):
        refuse_closures(optimizer)
        optimizer.step()
        return
    # Most are not fused on a CPU, which is known from their first group.
    fused = type(optimizer) in FUSED and optimizer.param_groups[0]["fused"] is True
    updates = _plain_updates(optimizer) if fused else None
    if updates is None and (optimizer._optimizer_step_pre_hooks or base._global_optimizer_pre_hooks):
        # They let a fused update pass, and no other.
        optimizer.step()
        return
    kind: Any = type(optimizer)
    with torch.no_grad():
        if updates is None:
            # The code of a step without what torch puts around it, which nobody would notice.
            _code_of(kind)(optimizer)
        else:
            for update in updates:
                _make(*update)
    # Schedules of torch's complain if no update came before them.
    optimizer._opt_called = True  # type: ignore[attr-defined]


@cache
def _code_of(kind: Any) -> Any:
    return inspect.unwrap(kind.step)


def refuse_closures(optimizer: Optimizer) -> None:
    """Refuse an optimizer that wants to calculate the loss again, and again, within one step.

    Raises:
        ConfigError: It is such an optimizer.
    """
    kind: Any = type(optimizer)
    if needs_closure(kind):
        raise ConfigError(
            f"{kind.__name__} needs a closure that calculates the loss again within a step, but an update of the "
            "trainer's has one gradient; use another optimizer, or call self.optimizer.step(closure) in a loop of "
            "your own"
        )


def check_closures(trainer: Any, base: type) -> None:
    """Refuse such an optimizer before anything runs, in a trainer that steps as its class `base` does."""
    if all(getattr(type(trainer), verb) is getattr(base, verb) for verb in STEPPING):
        for optimizer in trainer.optimizers().values():
            refuse_closures(optimizer)


@cache
def needs_closure(kind: Any) -> bool:
    """Whether optimizers of this kind cannot step without a closure, as `LBFGS` cannot.

    >>> needs_closure(torch.optim.LBFGS), needs_closure(torch.optim.SGD)
    (True, False)
    """
    closure = inspect.signature(kind.step).parameters.get("closure")
    return closure is not None and closure.default is closure.empty


def _is_unobserved(optimizer: Optimizer) -> bool:
    """Whether nothing but an update can come of a call of `step`."""
    kept, of_class = vars(optimizer), type(optimizer).step
    hooks, global_hooks = kept["_optimizer_step_pre_hooks"], base._global_optimizer_pre_hooks
    for group in optimizer.param_groups:
        if group["differentiable"]:
            return False
    return (
        of_class.__module__.startswith("torch.optim.")
        and ("step" not in kept or _is_noted(of_class, kept["step"]))
        and not ("grad_scale" in kept or "found_inf" in kept)
        and not (kept["_optimizer_step_post_hooks"] or base._global_optimizer_post_hooks)
        and (not hooks or _pass(optimizer, hooks))
        and (not global_hooks or _pass(optimizer, global_hooks))
        and not torch.autograd._profiler_enabled()  # type: ignore[attr-defined]
    )


def _pass(optimizer: Optimizer, hooks: dict[int, Any]) -> bool:
    """Whether the hooks say that none of them would act before a step of `optimizer`."""
    return all(getattr(hook, "passes", _acts)(optimizer) for hook in hooks.values())


def _acts(optimizer: Optimizer) -> bool:
    return False


def _is_noted(of_class: Any, of_object: Any) -> bool:
    """Whether `step` is that of the class with what a schedule of torch's puts around it, to note that it came."""
    return hasattr(of_object, "_wrapped_by_lr_sched") and of_object.__wrapped__ is of_class


def _plain_updates(optimizer: Optimizer) -> list[_Update] | None:
    """Return each group with the weights that have a gradient and their states, or nothing if one is not plain."""
    updates = []
    for group in optimizer.param_groups:
        weights = [weight for weight in group["params"] if weight.grad is not None]
        # A weight without a state is updated for the first time: making the state is the optimizer's.
        states: list[Any] = [optimizer.state.get(weight) for weight in weights]
        plain = _is_plain_sgd(group, states) if "momentum" in group else _is_plain(group) and all(states)
        if not (plain and all(map(_is_dense, weights))):
            return None
        # The operation is for one device and type; it refuses others, but the optimizer sorts them.
        if len({(weight.device, weight.dtype) for weight in weights}) == 1:
            updates.append((group, weights, states))
        elif weights:
            return None
    return updates


def _is_plain(group: _Group) -> bool:
    """Whether the settings are those of a usual fused Adam, in numbers of Python's."""
    special = group["amsgrad"] or group["maximize"] or group["capturable"] or group["differentiable"]
    numbers = type(group["lr"]) is type(group["betas"][0]) is float
    return numbers and group["fused"] is True and not special


def _is_plain_sgd(group: _Group, states: list[Any]) -> bool:
    """Whether the settings are those of a usual fused SGD, and momenta are there if it has any."""
    special = group["maximize"] or group["differentiable"]
    known = not group["momentum"] or all(state and state.get("momentum_buffer") is not None for state in states)
    return type(group["lr"]) is float and group["fused"] is True and known and not special


def _is_dense(weight: Any) -> bool:
    return type(weight) in _PLAIN and not weight.grad.is_sparse


_STEP, _MEAN, _SQUARES = itemgetter("step"), itemgetter("exp_avg"), itemgetter("exp_avg_sq")
_GRADIENT, _MOMENTUM = attrgetter("grad"), itemgetter("momentum_buffer")


def _make(group: _Group, weights: list[Any], states: list[dict[str, Tensor]]) -> None:
    if "momentum" in group:
        torch._fused_sgd_(
            weights,
            list(map(_GRADIENT, weights)),
            list(map(_MOMENTUM, states)) if group["momentum"] else [],
            weight_decay=group["weight_decay"],
            momentum=group["momentum"],
            lr=group["lr"],
            dampening=group["dampening"],
            nesterov=group["nesterov"],
            maximize=False,
            is_first_step=False,
        )
        return
    operation = torch._fused_adamw_ if group["decoupled_weight_decay"] else torch._fused_adam_
    counts = list(map(_STEP, states))
    torch._foreach_add_(counts, 1)
    operation(
        weights,
        list(map(_GRADIENT, weights)),
        list(map(_MEAN, states)),
        list(map(_SQUARES, states)),
        [],
        counts,
        lr=group["lr"],
        beta1=group["betas"][0],
        beta2=group["betas"][1],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        amsgrad=False,
        maximize=False,
    )


NAMES = ("RMSprop", "Adagrad", "Adadelta", "NAdam", "RAdam", "Adamax", "ASGD", "Rprop")
FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)
"""Optimizers that have a fused implementation on CUDA."""
WRAPPED = (*FUSED, *(getattr(torch.optim, name) for name in NAMES))
"""Optimizers whose `step` is their code with nothing around it but what torch puts around every step."""


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


def _passes(optimizer: Optimizer) -> bool:
    """Say that `give_momenta` would do nothing: whoever asks goes on only where all momenta are there."""
    return True


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


give_momenta.passes = _passes  # type: ignore[attr-defined]


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
