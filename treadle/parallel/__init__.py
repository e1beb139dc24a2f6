"""Many processes: who this one is, how they agree, and how they are started."""

from treadle.parallel.averaging import GradientAverager
from treadle.parallel.decorators import local_process_zero_first, local_process_zero_only, world_process_zero_only
from treadle.parallel.launching import notebook_launcher
from treadle.parallel.loss_module import LossModule
from treadle.parallel.processes import Processes

__all__ = [
    "GradientAverager",
    "LossModule",
    "Processes",
    "local_process_zero_first",
    "local_process_zero_only",
    "notebook_launcher",
    "world_process_zero_only",
]
