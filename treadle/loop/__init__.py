"""The parts of a run that its loop is made of."""

from treadle.loop.cadence import Due, DueNow
from treadle.loop.evaluator import Evaluator
from treadle.loop.log import Log
from treadle.loop.schedule import Schedule
from treadle.loop.stop import Stop
from treadle.loop.update import Updater

__all__ = ["Due", "DueNow", "Evaluator", "Log", "Schedule", "Stop", "Updater"]
