"""How much memory of the device a run takes, and that of the host, which is kept from step to step."""

from pathlib import Path

import torch

LARGEST_KEPT = (32 << 20) - (8 << 10)
"""Bytes of the largest block whose release tells the C library to keep memory; of a larger one it learns nothing."""


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


def keep_host_memory() -> None:
    """Have the host keep what a step sets free for the next step, which then finds it ready.

    A C library gives free memory back to the kernel, and gets it page by page and zeroed when it is asked again. How
    much it keeps follows from the largest block that was ever set free. So one is taken and set free; it is never
    written to, and takes no memory. The process then keeps up to 64 MiB more. What the user set for the library
    (`MALLOC_TRIM_THRESHOLD_`) stays.

    A step of a small CNN on a CPU takes 11.0 ms with it, and 14.2 ms with 1,742 page faults without it; one of an MLP,
    whose blocks are small, the same (benchmarks/RESULTS.md, "Shortcuts of a step on a CPU", 2026-11-19).
    """
    torch.empty(LARGEST_KEPT, dtype=torch.uint8)


def available_host_memory() -> int | None:
    """Return how many bytes of memory programs can still get on this machine; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return found[0] * 1024 if found else None
