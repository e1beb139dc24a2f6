"""What torch recorded of the collectives of this process: kept when one of them timed out."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

FOLDER = "flight_recorder"
ENTRIES = "2000"
"""How many collectives are remembered, which costs next to nothing."""


def record_collectives(folder: Path | None) -> None:
    """Have torch remember the last collectives; before processes join, for it looks at its settings only then.

    On GPUs it is torch that notices a timeout, and it writes what it remembers into the folder itself. What somebody
    has set stays.

    Args:
        folder: The folder of the run, if it has one.
    """
    settings = {"TORCH_FR_BUFFER_SIZE": ENTRIES, "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
    if folder is not None:
        settings["TORCH_FR_DUMP_TEMP_FILE"] = str(folder.absolute() / FOLDER / "rank_")
    for name, value in settings.items():
        os.environ.setdefault(name, value)


def keep_record(folder: Path, rank: int) -> str:
    """Write what this process recorded into the folder of a run, and return where, for a message; empty if nowhere.

    There are two files: JSON to read, and torch's own form for its `torchfrtrace`, which compares all processes.
    """
    target = folder / FOLDER
    written = []
    for name, dump in ((f"rank_{rank}.json", _dump("_json")), (f"rank_{rank}", _dump(""))):
        with suppress(Exception):  # the error that it belongs to must not be hidden
            if dump is not None:
                target.mkdir(parents=True, exist_ok=True)
                (target / name).write_bytes(dump())
                written.append(name)
    return f"; what each process was doing is in {target}" if written else ""


def _dump(form: str) -> Callable[[], bytes] | None:
    """Return torch's function that dumps its record; None if this build has none."""
    from torch._C import _distributed_c10d as distributed

    found: Any = getattr(distributed, f"_dump_fr_trace{form}", None) or getattr(
        distributed, f"_dump_nccl_trace{form}", None
    )
    return found  # type: ignore[no-any-return]
