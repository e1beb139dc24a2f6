"""Everything that a doctor looks at, each by one class."""

from treadle.tools.doctor.detectors.base import Detector
from treadle.tools.doctor.detectors.data import DataOrder, DataWait, EvaluationData
from treadle.tools.doctor.detectors.memory import HeadRoom, Memory
from treadle.tools.doctor.detectors.model import LossInputs, Modes
from treadle.tools.doctor.detectors.optimization import Accumulation, Learning, Schedule
from treadle.tools.doctor.detectors.speed import Blocking, Recording

__all__ = ["DETECTORS", "Detector"]

DETECTORS: tuple[type[Detector], ...] = (
    Blocking,
    DataWait,
    Learning,
    Modes,
    Schedule,
    EvaluationData,
    Accumulation,
    LossInputs,
    DataOrder,
    Memory,
    Recording,
    # The last one: it fills the memory, which others look at.
    HeadRoom,
)
