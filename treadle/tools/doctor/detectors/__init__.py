"""Everything that a doctor looks at, each by one class."""

from treadle.tools.doctor.detectors.base import Detector
from treadle.tools.doctor.detectors.data import DataOrder, DataWait, EvaluationData
from treadle.tools.doctor.detectors.memory import Memory, MemoryHeadroom
from treadle.tools.doctor.detectors.model import LossInputs, TrainingMode
from treadle.tools.doctor.detectors.optimization import Accumulation, Schedule, WeightUpdates
from treadle.tools.doctor.detectors.speed import GraphCapture, HostSync

__all__ = ["DETECTORS", "Detector"]

DETECTORS: tuple[type[Detector], ...] = (
    HostSync,
    DataWait,
    WeightUpdates,
    TrainingMode,
    Schedule,
    EvaluationData,
    Accumulation,
    LossInputs,
    DataOrder,
    Memory,
    GraphCapture,
    # The last one: it fills the memory, which others look at.
    MemoryHeadroom,
)
