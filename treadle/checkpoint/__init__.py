"""Checkpoints: plain data and tensors on disk, never pickles."""

from treadle.checkpoint.file import read_file, write_file
from treadle.checkpoint.tracked import Stateful, Tracked

__all__ = ["Stateful", "Tracked", "read_file", "write_file"]
