"""Which ways of carrying out a step there are, and which a device allows."""

from typing import Any

import torch

from treadle.errors import ConfigError, did_you_mean
from treadle.execution.compiling import RECORDING_MODES, Compile

EXECUTIONS = ("eager", "compile", "graph", "auto")


def check_execution(execution: Any, device: torch.device, compile: Compile | None = None) -> None:
    """Refuse a way of execution that does not exist, or not on `device`, or not with this compilation.

    Raises:
        ConfigError: It does not.
    """
    if callable(execution):
        return
    if execution not in EXECUTIONS:
        near = did_you_mean(str(execution), EXECUTIONS) or f"; use one of {EXECUTIONS}"
        raise ConfigError(f"execution={execution!r} is unknown{near}")
    if execution != "graph":
        return
    if device.type != "cuda":
        raise ConfigError(
            f"execution='graph' records the step on a CUDA device, and this run is on {device.type}; "
            "use execution='compile' here, or 'auto' to record wherever it is possible"
        )
    if compile is not None and compile.mode in RECORDING_MODES:
        raise ConfigError(
            f"compile={compile.mode!r} records CUDA graphs of its own, which execution='graph' cannot record again; "
            "use compile=True or 'max-autotune-no-cudagraphs'"
        )
