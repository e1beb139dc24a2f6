"""What a run is made of, in plain data, so that a resumed one can be compared with it."""

import sys
import zlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from treadle.config.dict_diff import differences
from treadle.precision.tf32 import rounding

SAMPLED_ROWS = 64


def fingerprint_model(model: nn.Module) -> dict[str, Any]:
    """Return the class of a model, and the shape and type of each of its weights and buffers."""
    state = {
        name.replace("_orig_mod.", ""): f"{tuple(tensor.shape)} {tensor.dtype}"
        for name, tensor in model.state_dict().items()
        if isinstance(tensor, Tensor)
    }
    return {"class": type(getattr(model, "_orig_mod", model)).__name__, **state}


def fingerprint_optimizer(optimizer: Optimizer) -> dict[str, Any]:
    """Return the class of an optimizer and the sizes of its groups."""
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    return {"class": type(optimizer).__name__, "parameters in each group": sizes}


def plain_values(values: dict[str, Any]) -> dict[str, Any]:
    """Return those of the values that are numbers, words or tuples of them."""
    plain = (bool, int, float, str, type(None))
    found = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, plain) or (isinstance(value, list) and all(isinstance(item, plain) for item in value))
    }


def fingerprint_data(dataset: Any) -> dict[str, Any]:
    """Return the class and length of a data set, what its files are known by, and a checksum of rows of tensors."""
    facts: dict[str, Any] = {"class": type(dataset).__name__}
    if callable(found := getattr(dataset, "fingerprint", None)) and isinstance(known := found(), Mapping):
        facts["files"] = dict(known)
    try:
        facts["length"] = len(dataset)
    except TypeError:
        return facts
    tensors = getattr(dataset, "tensors", ())
    if tensors and all(isinstance(tensor, Tensor) for tensor in tensors):
        facts["rows"] = f"{_rows_checksum(tensors):08x}"
    return facts


def _rows_checksum(tensors: tuple[Tensor, ...]) -> int:
    value = 0
    for tensor in tensors:
        count = min(SAMPLED_ROWS, len(tensor))
        rows = torch.arange(count) * (len(tensor) - 1) // max(count - 1, 1)
        sample = tensor.detach()[rows.to(tensor.device)].cpu().contiguous()
        value = zlib.crc32(sample.view(torch.uint8).numpy().tobytes() if sample.numel() else b"", value)
    return value


def environment() -> dict[str, Any]:
    """Return the versions and settings on which the bits of a result depend."""
    return {
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "fp32 products": rounding(),
    }


def changes(saved: dict[str, Any], present: dict[str, Any]) -> list[str]:
    """Return, in words, every place at which two trees of plain data differ.

    >>> changes({"model": {"a": 1, "b": 2}}, {"model": {"a": 1, "b": 3}})
    ['model.b: 2 in the checkpoint, 3 now']
    """
    found = differences(saved, present, absent="absent")
    return [f"{one.name}: {one.first} in the checkpoint, {one.second} now" for one in found]
