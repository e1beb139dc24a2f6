"""Everything that a doctor looks at, each by one class."""

from treadle.doctor.detectors.accumulation import Accumulation
from treadle.doctor.detectors.blocking import Blocking
from treadle.doctor.detectors.data_order import DataOrder
from treadle.doctor.detectors.data_wait import DataWait
from treadle.doctor.detectors.detector import Detector
from treadle.doctor.detectors.evaluation_data import EvaluationData
from treadle.doctor.detectors.head_room import HeadRoom
from treadle.doctor.detectors.learning import Learning
from treadle.doctor.detectors.loss_inputs import LossInputs
from treadle.doctor.detectors.memory import Memory
from treadle.doctor.detectors.modes import Modes
from treadle.doctor.detectors.recording import Recording
from treadle.doctor.detectors.schedule import Schedule

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
