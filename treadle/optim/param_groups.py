"""Parameter groups for any torch optimizer: by name pattern, by module class, by depth.

Everything here returns a list of dicts to pass to an optimizer's constructor. Each group has a `name` and the
`param_names` of its parameters, so a checkpoint can be matched by name instead of by position.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from treadle.errors import ConfigError, did_you_mean, some_of

Rule = str | type[nn.Module]
ParameterGroup = dict[str, Any]

NORM_MODULES: tuple[type[nn.Module], ...] = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.SyncBatchNorm,
    nn.GroupNorm,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
    nn.LayerNorm,
    nn.RMSNorm,
)
# Attention calls its bias `in_proj_bias`, a recurrent layer `bias_ih_l0`.
BIASES_AND_NORMS: tuple[Rule, ...] = ("bias", "*.bias", "*_bias", "*bias_[ih]h_l*", *NORM_MODULES)
NAMES_WITHOUT_DECAY = tuple(
    map(re.compile, (r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)"))
)
"""What transformers' Trainer knows biases and normalization by, in the names of parameters in small letters."""
_RESERVED = ("params", "param_names", "name")


@dataclass(frozen=True)
class _NamedParameter:
    """A parameter with every name that leads to it (several if it is tied) and the modules that own it."""

    parameter: nn.Parameter
    names: list[str]
    owners: list[nn.Module]

    def matches(self, rule: Rule) -> bool:
        if isinstance(rule, str):
            return any(fnmatchcase(name, rule) for name in self.names)
        return any(isinstance(owner, rule) for owner in self.owners)


def parameter_groups(
    model: nn.Module, rules: Mapping[Rule, Mapping[str, Any]], **defaults: Any
) -> list[ParameterGroup]:
    """Return the trainable parameters of `model` in groups, with the settings that `rules` give them.

    A rule is a pattern for names, as a shell has them for files, or a class of modules, for the parameters that
    such a module owns itself. The settings of all rules that match are merged in order: later ones win, setting by
    setting. Parameters with equal settings share a group; groups stand in the order of their first parameters.
    Frozen parameters are left out. A tied parameter counts once, under its first name, and any of its names can
    match.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), nn.Linear(2, 1))
    >>> rules = {"0.*": {"lr": 1e-5}, "*.bias": {"weight_decay": 0.0}, nn.LayerNorm: {"weight_decay": 0.0}}
    >>> for group in parameter_groups(model, rules, lr=1e-3, weight_decay=0.1):
    ...     print(group["name"], group["param_names"], group["lr"], group["weight_decay"])
    0.* ['0.weight'] 1e-05 0.1
    0.*, *.bias ['0.bias'] 1e-05 0.0
    LayerNorm ['1.weight', '1.bias', '2.bias'] 0.001 0.0
    default ['2.weight'] 0.001 0.1

    Args:
        model: whose parameters to group.
        rules: settings for each pattern or class.
        defaults: settings of parameters for which no rule says otherwise.

    Raises:
        ConfigError: a rule matches no parameter, not even a frozen one, or nothing is trainable.
    """
    _check_settings(rules, defaults)
    parameters = _named_parameters(model)
    for rule in rules:
        _require_match(model, parameters, rule)

    def settings(parameter: _NamedParameter) -> tuple[str, dict[str, Any]]:
        matching = [rule for rule in rules if parameter.matches(rule)]
        merged = dict(defaults)
        for rule in matching:
            merged.update(rules[rule])
        return ", ".join(map(_rule_name, matching)) or "default", merged

    return _grouped(model, parameters, settings)


def layerwise_decay(
    model: nn.Module,
    blocks: Sequence[str | Sequence[str]] | Callable[[str], int],
    *,
    lr: float,
    decay: float,
    weight_decay: float | None = None,
    skip: Sequence[Rule] = BIASES_AND_NORMS,
) -> list[ParameterGroup]:
    """Return groups whose rate shrinks by the factor `decay` with each block towards the input.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 1))
    >>> for group in layerwise_decay(model, ["0", "1", "2"], lr=0.1, decay=0.5, weight_decay=0.01):
    ...     print(group["name"], group["param_names"], group["lr"], group["weight_decay"])
    block 0 ['0.weight'] 0.025 0.01
    block 0, no decay ['0.bias'] 0.025 0.0
    block 1 ['1.weight'] 0.05 0.01
    block 1, no decay ['1.bias'] 0.05 0.0
    block 2 ['2.weight'] 0.1 0.01
    block 2, no decay ['2.bias'] 0.1 0.0

    Args:
        model: whose parameters to group.
        blocks: the blocks from input to output, each the name of a module or parameter, or several that belong
            together; every parameter must lie in one of them. Or a function that gives the depth of a parameter's
            name, 0 being the input.
        lr: the rate of the last block.
        decay: what one block towards the input multiplies the rate by; above 0, at most 1.
        weight_decay: the weight decay of what is not in `skip`; None leaves it to the optimizer.
        skip: patterns and module classes whose parameters get no weight decay.

    Raises:
        ConfigError: a parameter lies in no block, a block holds no parameter, or a number is out of range.
    """
    _check_rates(lr, decay)
    parameters = _named_parameters(model)
    if skip is not BIASES_AND_NORMS:  # the standard list names more than any one model has
        for rule in skip:
            _require_match(model, parameters, rule)
    depths = _depths(model, parameters, blocks)
    deepest = max(depths.values(), default=0)

    def settings(parameter: _NamedParameter) -> tuple[str, dict[str, Any]]:
        depth = depths[parameter.names[0]]
        name, values = f"block {depth}", {"lr": lr * decay ** (deepest - depth)}
        if weight_decay is None:
            return name, values
        if any(parameter.matches(rule) for rule in skip):
            return f"{name}, no decay", {**values, "weight_decay": 0.0}
        return name, {**values, "weight_decay": weight_decay}

    return _grouped(model, parameters, settings)


def get_default_optimizer_params(
    model: nn.Module,
    base_lr: float | None = None,
    weight_decay: float | None = None,
    weight_decay_norm: float | None = None,
    weight_decay_bias: float | None = None,
    clip_grad_max_norm: float | None = None,
    clip_grad_norm_type: float | None = None,
    overrides: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[ParameterGroup]:
    """Return the trainable parameters of `model` in few groups, with norms, biases and single names set apart.

    The arguments are those of LiBai. Later ones win: the norms' weight decay over the general one, and `overrides`
    (the biases' weight decay is one of them) over both. What is None is left to the optimizer. Frozen parameters are
    left out, and a tied one counts once.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
    >>> groups = get_default_optimizer_params(model, weight_decay=0.1, weight_decay_norm=0.0, weight_decay_bias=0.0)
    >>> [(group["param_names"], group["weight_decay"]) for group in groups]
    [(['0.weight'], 0.1), (['0.bias', '1.weight', '1.bias'], 0.0)]

    Args:
        model: whose parameters to group.
        base_lr: the rate of all.
        weight_decay: the weight decay of all.
        weight_decay_norm: the weight decay of what a normalization layer owns.
        weight_decay_bias: the weight decay of parameters called `bias`.
        clip_grad_max_norm: written into each group, with `clip_grad_norm_type`, for the trainer that clips.
        clip_grad_norm_type: the kind of norm to clip by.
        overrides: settings for parameters by the last part of their names: `{"bias": {"lr": 0.01}}`.

    Raises:
        ConfigError: biases are set twice, an override matches no parameter, or nothing is trainable.
    """
    clipping = {"clip_grad_max_norm": clip_grad_max_norm, "clip_grad_norm_type": clip_grad_norm_type}
    general = {"lr": base_lr, "weight_decay": weight_decay}
    if None not in clipping.values():
        general.update(clipping)
    parameters = _named_parameters(model)
    by_name = _leaf_overrides(model, parameters, overrides or {}, weight_decay_bias)

    def settings(parameter: _NamedParameter) -> tuple[str, dict[str, Any]]:
        leaf = parameter.names[0].rpartition(".")[2]
        merged = {key: value for key, value in general.items() if value is not None}
        is_norm = isinstance(parameter.owners[0], NORM_MODULES)
        if is_norm and weight_decay_norm is not None:
            merged["weight_decay"] = weight_decay_norm
        return leaf if leaf in by_name else "norm" if is_norm else "default", {**merged, **by_name.get(leaf, {})}

    return _grouped(model, parameters, settings)


def transformers_parameter_groups(model: nn.Module, weight_decay: float) -> list[ParameterGroup]:
    """Return the trainable parameters of `model` in the groups that transformers' Trainer makes.

    No weight decay have the layer norms of torch, and whatever its name tells to be a bias or a norm: so it is with
    the norm of a Llama, `input_layernorm`, which is of a class of its own, and not with a batch norm called `bn`.

    >>> model = nn.Sequential()
    >>> model.first, model.input_norm, model.bn = nn.Linear(2, 2), nn.RMSNorm(2), nn.BatchNorm1d(2)
    >>> for group in transformers_parameter_groups(model, weight_decay=0.1):
    ...     print(group["param_names"], group["weight_decay"])
    ['first.weight', 'bn.weight'] 0.1
    ['first.bias', 'input_norm.weight', 'bn.bias'] 0.0

    Args:
        model: whose parameters to group.
        weight_decay: the weight decay of all others.

    Raises:
        ConfigError: nothing is trainable.
    """
    inside = {
        id(parameter)
        for name, module in model.named_modules()
        if name and isinstance(module, nn.LayerNorm)
        for parameter in module.parameters()
    }

    def settings(parameter: _NamedParameter) -> tuple[str, dict[str, Any]]:
        name = parameter.names[0].lower()
        spared = id(parameter.parameter) in inside or any(one.search(name) for one in NAMES_WITHOUT_DECAY)
        return ("no decay", {"weight_decay": 0.0}) if spared else ("default", {"weight_decay": weight_decay})

    return _grouped(model, _named_parameters(model), settings)


def _leaf_overrides(
    model: nn.Module,
    parameters: Sequence[_NamedParameter],
    overrides: Mapping[str, Mapping[str, Any]],
    weight_decay_bias: float | None,
) -> dict[str, Mapping[str, Any]]:
    _check_settings({name: overrides[name] for name in overrides}, {})
    leaves = list(dict.fromkeys(entry.names[0].rpartition(".")[2] for entry in parameters))
    for name in overrides:
        if name not in leaves:
            near = did_you_mean(name, leaves) or f"; the names are {some_of(list(map(repr, leaves)), 5)}"
            raise ConfigError(f"overrides: no parameter of {type(model).__name__} is called {name!r}{near}")
    if weight_decay_bias is None:
        return dict(overrides)
    if "bias" in overrides:
        raise ConfigError(
            f"biases are set twice: overrides['bias']={dict(overrides['bias'])} and weight_decay_bias="
            f"{weight_decay_bias}; give one of them"
        )
    return {**overrides, "bias": {"weight_decay": weight_decay_bias}}


def _named_parameters(model: nn.Module) -> list[_NamedParameter]:
    found: dict[int, _NamedParameter] = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        for own_name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            entry = found.setdefault(id(parameter), _NamedParameter(parameter, [], []))
            entry.names.append(f"{prefix}.{own_name}" if prefix else own_name)
            entry.owners.append(module)
    return list(found.values())


def _grouped(
    model: nn.Module,
    parameters: Iterable[_NamedParameter],
    settings: Callable[[_NamedParameter], tuple[str, dict[str, Any]]],
) -> list[ParameterGroup]:
    groups: list[tuple[dict[str, Any], ParameterGroup]] = []
    for entry in parameters:
        if not entry.parameter.requires_grad:
            continue
        name, values = settings(entry)
        group = next((group for known, group in groups if known == values), None)
        if group is None:
            group = {"params": [], "param_names": [], "name": name, **values}
            groups.append((values, group))
        group["params"].append(entry.parameter)
        group["param_names"].append(entry.names[0])
    if not groups:
        raise ConfigError(f"{type(model).__name__} has no trainable parameter; unfreeze some before grouping them")
    return [group for _, group in groups]


def _depths(
    model: nn.Module,
    parameters: Sequence[_NamedParameter],
    blocks: Sequence[str | Sequence[str]] | Callable[[str], int],
) -> dict[str, int]:
    names = [entry.names[0] for entry in parameters if entry.parameter.requires_grad]
    if callable(blocks):
        return {name: _checked_depth(name, blocks(name)) for name in names}
    depth_of_prefix = _block_prefixes(blocks)
    for prefix in depth_of_prefix:
        _require_match(model, parameters, prefix, kind="block", also=f"{prefix}.*")
    depths = {name: _deepest_prefix(name, depth_of_prefix) for name in names}
    homeless = [repr(name) for name, depth in depths.items() if depth is None]
    if homeless:
        raise ConfigError(
            f"layerwise_decay: {some_of(homeless, 5)} of {type(model).__name__} lie in none of the blocks; "
            "add them to the first block (the input side) or to the one they belong to"
        )
    return {name: depth for name, depth in depths.items() if depth is not None}


def _block_prefixes(blocks: Sequence[str | Sequence[str]]) -> dict[str, int]:
    if isinstance(blocks, str):
        raise ConfigError(f"layerwise_decay: blocks must be a list of names, got {blocks!r}; write [{blocks!r}]")
    depths: dict[str, int] = {}
    for depth, block in enumerate(blocks):
        for prefix in [block] if isinstance(block, str) else block:
            if prefix in depths:
                raise ConfigError(f"layerwise_decay: {prefix!r} is in block {depths[prefix]} and in block {depth}")
            depths[prefix] = depth
    return depths


def _deepest_prefix(name: str, depth_of_prefix: Mapping[str, int]) -> int | None:
    # The longest prefix wins: "encoder.head" may be a block apart from "encoder".
    parts = name.split(".")
    prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((depth_of_prefix[prefix] for prefix in prefixes if prefix in depth_of_prefix), None)


def _checked_depth(name: str, depth: Any) -> int:
    if isinstance(depth, bool) or not isinstance(depth, int) or depth < 0:
        raise ConfigError(f"layerwise_decay: the depth of {name!r} must be a whole number from 0 up, got {depth!r}")
    return depth


def _check_rates(lr: float, decay: float) -> None:
    if not (math.isfinite(lr) and lr >= 0):
        raise ConfigError(f"layerwise_decay: lr must be a number from 0 up, got {lr!r}")
    if not 0 < decay <= 1:
        raise ConfigError(f"layerwise_decay: decay must be above 0 and at most 1, got {decay!r}")


def _check_settings(rules: Mapping[Rule, Mapping[str, Any]], defaults: Mapping[str, Any]) -> None:
    for rule, settings in [*rules.items(), ("the defaults", defaults)]:
        if not isinstance(settings, Mapping):
            raise ConfigError(
                f"parameter_groups: the rule {_rule_name(rule)!r} needs a dict of settings, got {settings!r}"
            )
        for key in _RESERVED:
            if key in settings:
                raise ConfigError(
                    f"parameter_groups: {_rule_name(rule)!r} sets {key!r}, which the groups use themselves"
                )


def _require_match(
    model: nn.Module,
    parameters: Sequence[_NamedParameter],
    rule: Rule,
    *,
    kind: str = "rule",
    also: str | None = None,
) -> None:
    """Raise unless `rule`, or the pattern `also`, matches a parameter, frozen ones included."""
    accepted: list[Rule] = [rule] if also is None else [rule, also]
    if any(parameter.matches(each) for parameter in parameters for each in accepted):
        return
    names = [name for parameter in parameters for name in parameter.names]
    near = did_you_mean(rule, _patterns(names)) if isinstance(rule, str) else ""
    raise ConfigError(
        f"the {kind} {_rule_name(rule)!r} matches no parameter of {type(model).__name__}"
        f"{near or f'; it has {some_of(list(map(repr, names)), 5)}'}"
    )


def _patterns(names: Sequence[str]) -> list[str]:
    """Return the names, the modules they lie in, and the patterns for all of a module and for all of a kind."""
    candidates: dict[str, None] = dict.fromkeys(names)
    for name in names:
        parts = name.split(".")
        candidates[f"*.{parts[-1]}"] = None
        for length in range(1, len(parts)):
            module = ".".join(parts[:length])
            candidates[module] = candidates[f"{module}.*"] = None
    return list(candidates)


def _rule_name(rule: Rule) -> str:
    return rule if isinstance(rule, str) else rule.__name__
