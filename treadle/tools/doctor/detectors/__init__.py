"""Everything that a doctor looks at, each by one class."""

from treadle.tools.doctor.detectors.base import Detector
from treadle.tools.doctor.detectors.content import DataContent
from treadle.tools.doctor.detectors.data_wait import DataWait
from treadle.tools.doctor.detectors.layers import BatchNorms, Dropout, InputScale, TrainingMode
from treadle.tools.doctor.detectors.losses import LossInputs
from treadle.tools.doctor.detectors.memory import Memory, MemoryHeadroom
from treadle.tools.doctor.detectors.optimization import Accumulation, Divergence, Schedule, WeightDecay, WeightUpdates
from treadle.tools.doctor.detectors.speed import GraphCapture, HostSync

__all__ = ["DETECTORS", "Detector"]

DETECTORS: tuple[type[Detector], ...] = (
    HostSync,
    DataWait,
    LossInputs,
    DataContent,
    InputScale,
    WeightUpdates,
    Divergence,
    WeightDecay,
    Dropout,
    BatchNorms,
    TrainingMode,
    Schedule,
    Accumulation,
    Memory,
    GraphCapture,
    # The last one: it fills the memory, which others look at.
    MemoryHeadroom,
)
