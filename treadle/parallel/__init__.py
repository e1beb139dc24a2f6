"""Many processes: who this one is, how they agree, and how they are started."""

from treadle.parallel.averaging import GradientAverager
from treadle.parallel.copying import strategy_of
from treadle.parallel.decorators import local_process_zero_first, local_process_zero_only, world_process_zero_only
from treadle.parallel.exchange import GradientExchange, local_updates
from treadle.parallel.launching import notebook_launcher
from treadle.parallel.loss_module import LossModule
from treadle.parallel.plan import Plan
from treadle.parallel.processes import Processes
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
