"""How much memory of the device a run takes."""

import torch


def peak_device_memory(device: torch.device) -> int | None:
    """Return the most bytes that were allocated on a CUDA device at once; None elsewhere.

    The allocator counts on the host, so nothing waits for the device.
    """
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


def forget_peak(device: torch.device) -> None:
    """Count the peak of memory from here."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
