"""What a training costs: seconds, memory, weights."""

import hashlib
import re
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from treadle.callback import TrainerCallback
from treadle.memory.device import forget_peak, peak_device_memory
from treadle.trainer import Trainer

PROCESS = Path("/proc/self")
FORGET_PEAK = "5"
"""What has Linux count the peak of a process from here."""


class EpochSeconds(TrainerCallback):
    """Times the training of every epoch; one that a resume began in the middle is left out.

    Attributes:
        seconds: How long each took.
    """

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._began: float | None = None

    def on_train_epoch_start(self, trainer: Trainer, **kwargs: Any) -> None:
        """Start the clock."""
        self._began = None if trainer.progress.mid_epoch else time.perf_counter()

    def on_train_epoch_end(self, trainer: Trainer, **kwargs: Any) -> None:
        """Take the time."""
        if self._began is not None:
            if trainer.device.type == "cuda":
                torch.cuda.synchronize(trainer.device)
            self.seconds.append(time.perf_counter() - self._began)

    def typical(self) -> float | None:
        """Return the median; the first epoch, which gets things ready, counts only if there is no other."""
        counted = self.seconds[1:] or self.seconds
        return statistics.median(counted) if counted else None

    def state_dict(self) -> dict[str, Any]:
        """Return the times."""
        return {"seconds": list(self.seconds)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the times back."""
        self.seconds = [float(one) for one in state["seconds"]]


class PeakMemory:
    """The most memory that is in use from here on: of the device, or of this process if it trains by the CPU.

    Args:
        device: Where it trains.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type == "cuda":
            forget_peak(device)
        else:
            _reset_peak()

    def mib(self) -> float | None:
        """Return it in MiB; None where the machine does not tell."""
        peak = peak_device_memory(self._device)
        return _own_peak() if peak is None else peak / 2**20


def _reset_peak() -> None:
    try:
        (PROCESS / "clear_refs").write_text(FORGET_PEAK)
    except OSError:
        return


def _own_peak() -> float | None:
    try:
        found = re.search(r"^VmHWM:\s+(\d+) kB", (PROCESS / "status").read_text(), re.MULTILINE)
    except OSError:
        return None
    return None if found is None else int(found.group(1)) / 1024


def count_parameters(model: torch.nn.Module) -> int:
    """Return how many weights of a model are trained."""
    return sum(one.numel() for one in model.parameters() if one.requires_grad)


def fingerprint_rows(dataset: Any, label: str | None = None) -> str:
    """Return a fingerprint of the rows of a part, which knows users and items by their tokens, in any order.

    Args:
        dataset: The part.
        label: The field of the labels, if it is they that models are tested by.
    """
    names = [name for name in (dataset.uid_field, dataset.iid_field) if name is not None]
    if not names:
        rows = [repr(row) for row in zip(*(column.tolist() for column in dataset.tensors), strict=True)]
    else:
        columns = [dataset.id2token(name, dataset.inter_feat[name].cpu()).tolist() for name in names]
        columns += [] if label is None else [dataset.inter_feat[label].tolist()]
        rows = ["\t".join(map(str, row)) for row in zip(*columns, strict=True)]
    return hashlib.blake2b("\n".join(sorted(rows)).encode(), digest_size=6).hexdigest()
