"""How many parameters a network has."""

from torch import nn

from treadle.nas.costs.cost import ALWAYS, Cost, Scope, find_scopes, value_scopes
from treadle.nas.space.choice import Choice
from treadle.nas.space.model_space import Space
from treadle.nas.space.parametrized import Built


def parameters_of(model: nn.Module) -> Cost:
    """Return the number of parameters of every network of a space; one that is used in several places counts once."""
    space = Space(model)
    cost = Cost("parameters")
    _count(space.model, "", ALWAYS, {}, cost, set())
    return cost


def _count(module: nn.Module, path: str, scope: Scope, inner: dict[str, Scope], cost: Cost, seen: set[int]) -> None:
    if path in inner:
        scope = inner[path].within(scope)
    if isinstance(module, Built) and module.sharing is not None:
        names = dict(module.shared.named_parameters())
        for arguments, when in value_scopes(module.arguments):
            parts = module.sharing.parts(module.shared, arguments)
            cost.add(when.within(scope), sum(parts[name].numel() for name in names))
        return
    if isinstance(module, Choice):
        inner = inner | {f"{path}.{name}".lstrip("."): one for name, one in find_scopes(module).items()}
    for parameter in module._parameters.values():
        if parameter is not None and id(parameter) not in seen:
            seen.add(id(parameter))
            cost.add(scope, parameter.numel())
    for name, child in module._modules.items():
        if child is not None:
            _count(child, f"{path}.{name}".lstrip("."), scope, inner, cost, seen)
