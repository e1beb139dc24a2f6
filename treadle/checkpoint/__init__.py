"""Checkpoints: plain data and tensors on disk, never pickles."""

from treadle.checkpoint.format.file import read_file, write_file
from treadle.checkpoint.importers.weights import export_torch, import_torch
from treadle.checkpoint.policy import Policy
from treadle.checkpoint.saver import Saver
from treadle.checkpoint.store import CheckpointStore
from treadle.checkpoint.tracked import Stateful, Tracked
from treadle.files.fsspec_storage import FsspecStorage
from treadle.files.storage import LocalStorage, Storage

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
