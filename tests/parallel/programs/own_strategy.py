"""A way of sharing a model that a user wrote, in this one file: the scenarios of `equality`, trained by it."""

from collections.abc import Sequence
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from tests.parallel.programs import equality
from tests.parallel.programs.models import trainer_of
from tests.parallel.programs.scenarios import Program, Report
from treadle.parallel import Strategy

program = Program("own_strategy")


class GatheredMeans(Strategy):
    """Has every process see the gradients of all, one parameter after the other, and take their mean itself."""

    reduced = 0

    def wrap(self, module: Any, *, finds_unreached: bool) -> None:
        """Wrap nothing: gradients are averaged after the passes."""

    def reduce(self, parameters: Sequence[Any]) -> None:
        for parameter in parameters:
            if not self.processes.reduce([float(parameter.grad is not None)], "max")[0]:
                continue
            own = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            parts = [torch.empty_like(own) for _ in range(self.processes.size)]
            dist.all_gather(parts, own.contiguous())
            parameter.grad = torch.stack(parts).mean(0)
        self.reduced += 1


def trained_so(scenario: Any) -> Report:
    """Run a scenario of `equality` with trainers that share their model in this way."""
    trainers: list[Any] = []

    def made(*args: Any, **kwargs: Any) -> Any:
        trainers.append(trainer_of(*args, **kwargs, parallel=GatheredMeans))
        return trainers[-1]

    with patch.object(equality, "trainer_of", made):
        report: Report = scenario()
    assert trainers
    return {**report, "reduced": trainers[-1].parallel.reduced, "strategy": type(trainers[-1].parallel).__name__}


for name, scenario in equality.program.scenarios.items():
    program.add(name, partial(trained_so, scenario))
