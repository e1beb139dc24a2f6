"""How long a run waits for its data."""

import time
from typing import Any

import torch


class Waiting:
    """Adds up how long the run waits for batches, as far as that costs it time.

    On the CPU that is all the time that fetching takes. A GPU works on while the host fetches, so there a wait counts
    only if the device had finished everything before the batch came; finding that out does not block.

    Args:
        device: What works on the batches.
    """

    def __init__(self, device: torch.device) -> None:
        self._seconds = 0.0
        self._began = 0.0
        self._given: Any = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def __enter__(self) -> None:
        if self._given is not None:
            self._given.record()
        self._began = time.perf_counter()

    def __exit__(self, *exception: object) -> None:
        seconds = time.perf_counter() - self._began
        if self._given is None or self._given.query():
            self._seconds += seconds

    def take(self) -> float:
        """Return the seconds since this was last asked."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds


def what_to_try(source: Any, device: torch.device, *, ahead: bool = False) -> str:
    """Return what may keep a run from waiting for `source`, for the user to read.

    Args:
        source: Where the batches come from.
        device: Where they go.
        ahead: Whether they are sent there ahead of their use.
    """
    if device.type == "cuda" and not ahead:
        return (
            "it keeps its own place, as an iterator or by a state_dict, so its batches are not sent ahead, as those of "
            f"a map-style data set are; {what_to_try(source, device, ahead=True)}"
        )
    workers = getattr(source, "num_workers", None)
    fits = f"if it fits {'on the GPU' if device.type == 'cuda' else 'into memory'} as tensors, use an InMemoryDataset"
    if workers is None:
        return "its batches come from an iterable of your own; put the work that makes them into a DataLoader's workers"
    if workers == 0:
        return f"give its loader workers, such as num_workers=4; {fits}"
    return f"its loader has num_workers={workers}: try more of them, or do less for each sample; {fits}"
