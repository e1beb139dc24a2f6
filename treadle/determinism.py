"""The switch that makes torch give the same bits each time, or fail."""

import os
from typing import Any, Self

import torch

from treadle.errors import ConfigError

WORKSPACES = (":4096:8", ":16:8")


class Deterministic:
    """While entered, torch uses deterministic algorithms only; what it was set to before comes back afterwards.

    Raises:
        ConfigError: On CUDA, `CUBLAS_WORKSPACE_CONFIG` is not set as torch needs it before the process starts.
    """

    def __init__(self, device: torch.device) -> None:
        workspace = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
        if device.type == "cuda" and workspace not in WORKSPACES:
            raise ConfigError(
                f"deterministic=True on CUDA needs CUBLAS_WORKSPACE_CONFIG to be one of {WORKSPACES} "
                f"before the process starts; it is {workspace!r}"
            )

    def __enter__(self) -> Self:
        self._algorithms = torch.are_deterministic_algorithms_enabled()
        self._warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
        self._benchmark = torch.backends.cudnn.benchmark
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
        return self

    def __exit__(self, *exception: Any) -> None:
        torch.use_deterministic_algorithms(self._algorithms, warn_only=self._warn_only)
        torch.backends.cudnn.benchmark = self._benchmark
