"""`ModelFreezer`: train only a part of a model, and more of it later."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import nn

from treadle.errors import ConfigError

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class Layer(NamedTuple):
    """A module without children, or one that owns parameters itself.

    Attributes:
        layer_group_idx: the index of its group, counted from the front and from the back.
        module: the module.
        is_frozen: whether none of its own parameters trains; without parameters, whether it is in `eval` mode.
    """

    layer_group_idx: tuple[int, int]
    module: nn.Module
    is_frozen: bool


class LayerGroup(NamedTuple):
    """A direct child of the model, with all that is in it.

    Attributes:
        layer_group_idx: its index, counted from the front and from the back.
        module: the child.
        is_frozen: whether something in it is frozen, and nothing trains but batch norms that were left out.
    """

    layer_group_idx: tuple[int, int]
    module: nn.Module
    is_frozen: bool


class ModelFreezer:
    """Freeze and unfreeze the parts of a model, which are its direct children, in the order of definition.

    Every parameter belongs to one group. Those that the model itself owns (a class token, a table of positions)
    belong to the first; a tied parameter belongs to the first group that holds it.

    Building a freezer changes nothing: what was frozen before stays so until `unfreeze` is called for its group,
    which then trains all of it.

    Batch norms are left as they are, trainable and in their mode, unless `freeze_batch_norms` is set. Freezing
    their parameters does not stop their running statistics: that takes `set_modules_as_eval`, and `model.train()`
    at the start of the next epoch undoes it.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 1))
    >>> freezer = ModelFreezer(model)
    >>> freezer.freeze()
    >>> [group.is_frozen for group in freezer.get_layer_groups()]
    [True, True, False]
    >>> unfrozen = freezer.unfreeze(from_index=-1, to_index=1)
    >>> {index: len(group["params"]) for index, group in unfrozen.items()}
    {1: 2}

    Args:
        model: what to freeze; the groups are found when the freezer is built.
        freeze_batch_norms: whether batch norms are frozen and unfrozen with the rest.
    """

    def __init__(self, model: nn.Module, freeze_batch_norms: bool = False) -> None:
        self.model = model
        self.freeze_bn = freeze_batch_norms
        self._groups = list(model.children())
        self.num_groups = len(self._groups)
        if not self._groups:
            raise ConfigError(
                f"{type(model).__name__} has no child modules, so it has no layer groups to freeze; "
                "set requires_grad of its parameters instead"
            )

    def get_layer_groups(self) -> list[LayerGroup]:
        """Return the groups, and whether each is frozen."""
        parameters = self._parameters_by_group()
        return [
            LayerGroup(self._both_indices(index), module, self._is_frozen(parameters[index]))
            for index, module in enumerate(self._groups)
        ]

    def get_layers(self) -> list[Layer]:
        """Return the modules that have no children or own parameters themselves, and whether each is frozen."""
        return [
            Layer(self._both_indices(index), module, _layer_is_frozen(module))
            for index, module in self._modules_by_group()
            if _is_layer(module)
        ]

    def get_trainable_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that train, in the model's order."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def freeze(self, from_index: int = 0, to_index: int = -2, set_modules_as_eval: bool = False) -> None:
        """Freeze the groups from `from_index` to `to_index`, both included; by default all but the last.

        Args:
            from_index: the first group; negative counts from the back.
            to_index: the last group.
            set_modules_as_eval: whether to put them into `eval` mode too.
        """
        self._set_trainable(from_index, to_index, False, change_mode=set_modules_as_eval)

    def unfreeze(
        self,
        from_index: int = -1,
        to_index: int = 0,
        set_modules_as_training: bool = True,
        *,
        with_names: bool = False,
    ) -> dict[int, dict[str, list[Any]]]:
        """Unfreeze the groups from `from_index` to `to_index`, both included and in either order; by default all.

        Args:
            from_index: one end of the groups; negative counts from the back.
            to_index: the other end.
            set_modules_as_training: whether to put them into `train` mode too.
            with_names: whether to return `param_names` too, which an optimizer needs for a new group if its other
                groups have them, as those of `treadle.optim.param_groups` do.

        Returns:
            For each group, by index, the parameters that were frozen until now: `{index: {"params": [...]}}`, ready
            for `optimizer.add_param_group`. Groups in which nothing was frozen are left out.
        """
        changed = self._set_trainable(from_index, to_index, True, change_mode=set_modules_as_training)
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        groups: dict[int, dict[str, list[Any]]] = {}
        for index, parameters in changed.items():
            groups[index] = {"params": parameters}
            if with_names:
                groups[index]["param_names"] = [names[id(parameter)] for parameter in parameters]
        return groups

    def _set_trainable(
        self, from_index: int, to_index: int, trainable: bool, *, change_mode: bool
    ) -> dict[int, list[nn.Parameter]]:
        first, last = self._convert_idxs(from_index, to_index)
        changed: dict[int, list[nn.Parameter]] = {}
        for index, owned in enumerate(self._parameters_by_group()):
            if not first <= index <= last:
                continue
            wrong = [parameter for parameter, left_out in owned if not left_out and _differs(parameter, trainable)]
            for parameter in wrong:
                parameter.requires_grad_(trainable)
            if wrong:
                changed[index] = wrong
            if change_mode:
                self._set_mode(self._groups[index], trainable)
        return changed

    def _set_mode(self, group: nn.Module, training: bool) -> None:
        left_out = [(module, module.training) for module in group.modules() if self._is_left_out(module)]
        group.train(training)
        for module, mode in left_out:
            module.train(mode)

    def _convert_idxs(self, from_index: int, to_index: int) -> tuple[int, int]:
        first, last = sorted((self._convert_idx(from_index), self._convert_idx(to_index)))
        return first, last

    def _convert_idx(self, index: int) -> int:
        if not -self.num_groups <= index < self.num_groups:
            raise ConfigError(
                f"there is no layer group {index}: {type(self.model).__name__} has {self.num_groups}, "
                f"from 0 to {self.num_groups - 1}, or {-self.num_groups} to -1 from the back"
            )
        return index % self.num_groups

    def _both_indices(self, index: int) -> tuple[int, int]:
        return index, index - self.num_groups

    def _is_left_out(self, module: nn.Module) -> bool:
        return isinstance(module, BATCH_NORMS) and not self.freeze_bn

    def _is_frozen(self, owned: list[tuple[nn.Parameter, bool]]) -> bool:
        frozen = any(not parameter.requires_grad for parameter, _ in owned)
        return frozen and not any(parameter.requires_grad for parameter, left_out in owned if not left_out)

    def _modules_by_group(self) -> Iterator[tuple[int, nn.Module]]:
        """Yield every module with the index of its group; the model itself goes with the first."""
        yield 0, self.model
        seen = {id(self.model)}
        for index, group in enumerate(self._groups):
            for module in group.modules():
                if id(module) not in seen:
                    seen.add(id(module))
                    yield index, module

    def _parameters_by_group(self) -> list[list[tuple[nn.Parameter, bool]]]:
        """Return for each group its parameters, each with whether it belongs to a batch norm that is left out."""
        groups: list[list[tuple[nn.Parameter, bool]]] = [[] for _ in self._groups]
        seen: set[int] = set()
        for index, module in self._modules_by_group():
            for parameter in module.parameters(recurse=False):
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    groups[index].append((parameter, self._is_left_out(module)))
        return groups


def _is_layer(module: nn.Module) -> bool:
    has_children = next(module.children(), None) is not None
    return not has_children or next(module.parameters(recurse=False), None) is not None


def _layer_is_frozen(module: nn.Module) -> bool:
    own = list(module.parameters(recurse=False))
    return not any(parameter.requires_grad for parameter in own) if own else not module.training


def _differs(parameter: nn.Parameter, trainable: bool) -> bool:
    # Integers (quantised weights) have no gradient and cannot be asked to have one.
    can_train = parameter.is_floating_point() or parameter.is_complex()
    return can_train and parameter.requires_grad != trainable
