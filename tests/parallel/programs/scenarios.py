"""What every program of this folder is made of: scenarios that run on all ranks and report by rank."""

import json
import os
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

Report = dict[str, Any]
Scenario = Callable[[], Report]

PATIENCE_SECONDS = 20
"""How long a rank that is done with a scenario waits for the others before it takes them for hung."""


class Program:
    """Scenarios by name; each rank runs them in the same order and writes a report after each.

    Args:
        name: What the program is called, and the folder of its reports.

    Attributes:
        fragile: Scenarios that may not end on every rank, to be run after all others.
        scenarios: All of them by name.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.fragile: list[str] = []
        self._folder: Path | None = None
        self.scenarios: dict[str, Scenario] = {}

    @property
    def folder(self) -> Path:
        """Where reports and whatever else scenarios write go; known when the program is run."""
        # A folder to begin with would be the working one, which is the checkout.
        assert self._folder is not None, f"{self.name} is not run; call run(folder) first"
        return self._folder

    def scenario(self, function: Scenario) -> Scenario:
        """Decorate a function without arguments that returns numbers, strings, lists and tensors by name."""
        self.add(function.__name__, function)
        return function

    def fragile_scenario(self, function: Scenario) -> Scenario:
        """Decorate a scenario that may not end on every rank."""
        self.fragile.append(function.__name__)
        return self.scenario(function)

    def add(self, name: str, function: Scenario) -> None:
        """Add a scenario under a name of its own."""
        self.scenarios[name] = function

    def run(self, folder: Path, *, fragile: bool = False) -> None:
        """Run the scenarios, the fragile ones or all others, and write their reports under `folder`."""
        self._folder = folder / self.name
        self.folder.mkdir(parents=True, exist_ok=True)
        rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        for name, function in self.scenarios.items():
            if (name in self.fragile) is fragile:
                _write(self.folder / f"{name}.rank_{rank}", _run(function))
                _await([self.folder / f"{name}.rank_{other}.json" for other in range(ranks)])


def _run(function: Scenario) -> Report:
    try:
        return function()
    except Exception:
        return {"error": traceback.format_exc()}


def _write(path: Path, report: Report) -> None:
    tensors = {name: value.detach().contiguous().clone() for name, value in report.items() if isinstance(value, Tensor)}
    if tensors:
        save_file(tensors, f"{path}.safetensors")
    temporary = Path(f"{path}.part")
    temporary.write_text(json.dumps({name: value for name, value in report.items() if name not in tensors}))
    temporary.rename(f"{path}.json")


def _await(reports: list[Path]) -> None:
    """Wait for the other ranks without a collective, which a rank that failed would never answer."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not all(report.exists() for report in reports):
        if time.monotonic() > deadline:
            print(f"gave up waiting for {[report.name for report in reports if not report.exists()]}", flush=True)
            # Not sys.exit: leaving the process group in good order would wait for the rank that hangs.
            os._exit(3)
        time.sleep(0.002)
