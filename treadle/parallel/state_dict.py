"""Models that a trainer spread over its processes: copied, saved and loaded with the help of who spread them."""

from copy import deepcopy
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from torch import nn

if TYPE_CHECKING:
    from treadle.parallel.sharded import ShardedStrategy

_strategies: "WeakKeyDictionary[nn.Module, ShardedStrategy]" = WeakKeyDictionary()


def remember(model: nn.Module, strategy: "ShardedStrategy") -> None:
    """Note that `strategy` spread `model`."""
    _strategies[model] = strategy


def is_sharded(model: nn.Module) -> bool:
    """Whether a trainer spread `model` over its processes."""
    return model in _strategies


def strategy_of(model: Any) -> "ShardedStrategy | None":
    """Return who spread `model` over processes; None if nobody did."""
    return _strategies.get(model) if isinstance(model, nn.Module) else None


def copy_model(model: nn.Module) -> nn.Module:
    """Return a copy of `model`; that of a spread one is spread in the same way."""
    strategy = _strategies.get(model)
    if strategy is None:
        return deepcopy(model)
    copy = strategy.copy_of(model)
    remember(copy, strategy)
    return copy


def local_state_dict(model: nn.Module) -> dict[str, Any]:
    """Return weights and buffers to be saved: of a spread model the pieces that are here."""
    strategy = _strategies.get(model)
    return model.state_dict() if strategy is None else strategy.model_state(model)


def gather_state(model: nn.Module) -> dict[str, Any]:
    """Return weights and buffers as whole tensors; all processes must call it together."""
    strategy = _strategies.get(model)
    return model.state_dict() if strategy is None else strategy.full_model_state(model)


def load_state(model: nn.Module, state: dict[str, Any], *, where: str) -> bool:
    """Load weights and buffers into a spread model; return False, and do nothing, if it is none."""
    strategy = _strategies.get(model)
    if strategy is not None:
        strategy.load_model_state(model, state, where=where)
    return strategy is not None
