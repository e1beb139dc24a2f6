"""Which ways of carrying out a step there are, and which a device allows."""

import torch

from treadle.errors import ConfigError

EXECUTIONS = ("eager", "compile", "graph", "auto")


def check_execution(execution: str, device: torch.device) -> None:
    """Refuse a way of execution that does not exist, or not on `device`.

    Raises:
        ConfigError: It does not.
    """
    if execution not in EXECUTIONS:
        raise ConfigError(f"execution={execution!r} is unknown; use one of {EXECUTIONS}")
    if execution == "graph" and device.type != "cuda":
        raise ConfigError(
            f"execution='graph' records the step on a CUDA device, and this run is on {device.type}; "
            "use execution='compile' here, or 'auto' to record wherever it is possible"
        )
