"""Checkpoints: plain data and tensors on disk, never pickles."""

from treadle.checkpoint.file import read_file, write_file
from treadle.checkpoint.policy import Policy
from treadle.checkpoint.saver import Saver
from treadle.checkpoint.store import CheckpointStore
from treadle.checkpoint.tracked import Stateful, Tracked

__all__ = ["CheckpointStore", "Policy", "Saver", "Stateful", "Tracked", "read_file", "write_file"]
