"""What devices are capable of: operations per second, dense, by number format."""

import torch

TERA = 1e12

PEAKS: dict[str, dict[str, float]] = {
    "B200": {"half": 2250 * TERA, "fp32": 75 * TERA},
    "H200": {"half": 989 * TERA, "fp32": 67 * TERA},
    "H100 PCIe": {"half": 756 * TERA, "fp32": 51 * TERA},
    "H100": {"half": 989 * TERA, "fp32": 67 * TERA},
    "A100": {"half": 312 * TERA, "fp32": 19.5 * TERA},
    "L40S": {"half": 362 * TERA, "fp32": 91.6 * TERA},
    "L4": {"half": 121 * TERA, "fp32": 30.3 * TERA},
    "A10": {"half": 125 * TERA, "fp32": 31.2 * TERA},
    "V100": {"half": 125 * TERA, "fp32": 15.7 * TERA},
    "T4": {"half": 65 * TERA, "fp32": 8.1 * TERA},
}
"""By a part of the device's name; the first that fits is taken. Half is bf16 and fp16 with tensor cores."""


def peak_flops_of(device: torch.device, precision: str) -> float | None:
    """Return the operations per second that `device` is capable of; None if nobody has written it down.

    Args:
        device: The device of this process.
        precision: "fp32", "bf16" or "fp16"; fp32 means without TF32.
    """
    if device.type != "cuda":
        return None
    return peak_by_name(torch.cuda.get_device_name(device), precision)


def peak_by_name(name: str, precision: str) -> float | None:
    """Return the peak of the device called `name`.

    >>> peak_by_name("NVIDIA H200", "bf16") / TERA
    989.0
    """
    for part, peaks in PEAKS.items():
        if part.lower() in name.lower():
            return peaks["fp32" if precision == "fp32" else "half"]
    return None
