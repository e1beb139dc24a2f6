"""How much memory of the device a run takes."""

import torch


def peak_device_memory(device: torch.device) -> int | None:
    """Return the most bytes that were allocated on a CUDA device at once; None elsewhere.

    The allocator counts on the host, so nothing waits for the device.
    """
    if device.type != "cuda":
        return None
    # What `max_memory_allocated` does, less the sorting of some hundred other counters, which costs as much as steps.
    counters = torch.cuda.memory_stats_as_nested_dict(device)
    return int(counters["allocated_bytes"]["all"]["peak"]) if counters else 0


def forget_peak(device: torch.device) -> None:
    """Count the peak of memory from here."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
