"""What a benchmark knows of one training."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from treadle.checkpoint.durable import replace_text
from treadle.run_reading import read_json

RECORD = "bench.json"
DONE, FAILED = "done", "failed"


@dataclass
class Record:
    """One training of a benchmark.

    Attributes:
        model: The model.
        seed: What its weights, orders and negatives were drawn with.
        state: "done" or "failed".
        error: Why it failed.
        valid: The metrics of the best epoch on the validation part.
        test: The metrics on the test part.
        epochs: How many epochs were trained.
        seconds_per_epoch: How long the training of an epoch took; of several the median.
        memory_mib: The most memory it took: of the device, or of the process where it was trained by the CPU.
        device: Where it was trained.
        parameters: How many weights were trained.
        test_rows: How many rows the test part has.
        test_print: A fingerprint of them: the same for all models that were tested on the same.
        settings: Every setting.
    """

    model: str
    seed: int
    state: str = DONE
    error: str = ""
    valid: dict[str, float] = field(default_factory=dict)
    test: dict[str, float] = field(default_factory=dict)
    epochs: int = 0
    seconds_per_epoch: float | None = None
    memory_mib: float | None = None
    device: str = ""
    parameters: int = 0
    test_rows: int = 0
    test_print: str = ""
    settings: dict[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Keep it in the folder of its run."""
        folder.mkdir(parents=True, exist_ok=True)
        replace_text(folder / RECORD, json.dumps(asdict(self), indent=1, default=str))

    @classmethod
    def read(cls, folder: Path) -> "Record | None":
        """Return what is kept in the folder of a run; None if it has not come to its end."""
        content = read_json(folder / RECORD)
        known = {name: value for name, value in content.items() if name in cls.__dataclass_fields__}
        try:
            return cls(**known)
        except TypeError:
            return None
