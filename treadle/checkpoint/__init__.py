"""Checkpoints: plain data and tensors on disk, never pickles."""

from treadle.checkpoint.file import read_file, write_file
from treadle.checkpoint.fsspec_storage import FsspecStorage
from treadle.checkpoint.importing import export_torch, import_torch
from treadle.checkpoint.policy import Policy
from treadle.checkpoint.saver import Saver
from treadle.checkpoint.storage import LocalStorage, Storage
from treadle.checkpoint.store import CheckpointStore
from treadle.checkpoint.tracked import Stateful, Tracked

__all__ = [
    "CheckpointStore",
    "FsspecStorage",
    "LocalStorage",
    "Policy",
    "Saver",
    "Stateful",
    "Storage",
    "Tracked",
    "export_torch",
    "import_torch",
    "read_file",
    "write_file",
]
