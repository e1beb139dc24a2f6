"""Many processes: who this one is, how they agree, and how they are started. Names are loaded when they are used."""

from typing import TYPE_CHECKING, Any

from treadle.errors import load_module

if TYPE_CHECKING:
    from treadle.parallel.ddp import LossModule
    from treadle.parallel.grad_allreduce import GradientAverager, GradientExchange, local_updates
    from treadle.parallel.launch.notebook import notebook_launcher
    from treadle.parallel.plan import Plan
    from treadle.parallel.processes import (
        Processes,
        local_process_zero_first,
        local_process_zero_only,
        world_process_zero_only,
    )
    from treadle.parallel.state_dict import strategy_of
    from treadle.parallel.strategy import Strategy, in_step

__all__ = [
    "GradientAverager",
    "GradientExchange",
    "LossModule",
    "Plan",
    "Processes",
    "Strategy",
    "in_step",
    "local_process_zero_first",
    "local_process_zero_only",
    "local_updates",
    "notebook_launcher",
    "strategy_of",
    "world_process_zero_only",
]

_HOMES = {
    "GradientAverager": "grad_allreduce",
    "GradientExchange": "grad_allreduce",
    "LossModule": "ddp",
    "Plan": "plan",
    "Processes": "processes",
    "Strategy": "strategy",
    "in_step": "strategy",
    "local_process_zero_first": "processes",
    "local_process_zero_only": "processes",
    "local_updates": "grad_allreduce",
    "notebook_launcher": "launch.notebook",
    "strategy_of": "state_dict",
    "world_process_zero_only": "processes",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(load_module(f"treadle.parallel.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'treadle.parallel' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
