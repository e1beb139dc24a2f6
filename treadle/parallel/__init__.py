"""Many processes: who this one is, and how they agree."""

from treadle.parallel.averaging import GradientAverager
from treadle.parallel.loss_module import LossModule
from treadle.parallel.processes import Processes

__all__ = ["GradientAverager", "LossModule", "Processes"]
