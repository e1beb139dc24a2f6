"""One trial's work, as a thing that can be sent to another process and done there."""

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from treadle.data.random_state import RandomState
from treadle.search.recorded_calls import reader
from treadle.search.space.extension import TrialTarget
from treadle.search.trial.context import NO_TRIAL, TrialContext, trial_context
from treadle.search.trial.evaluators import Evaluator, decode_evaluator
from treadle.search.trial.reports import Metrics, Reporter, ReportError, parse_metrics, report_trial_to


class TrialReporter(Reporter, Protocol):
    """Where a trial reports to, and whether it has said its last."""

    @property
    def finished(self) -> bool:
        """Whether the final result has been reported."""


@dataclass(frozen=True)
class Task:
    """What one trial does.

    Attributes:
        number: The number of the trial.
        seed: What its random numbers begin with.
        subject: What is judged.
        evaluator: What judges it.
        context: What the trial may know of itself.
    """

    number: int
    seed: int
    subject: TrialTarget
    evaluator: Evaluator
    context: TrialContext = NO_TRIAL

    def encoded(self) -> dict[str, Any]:
        """Return it as JSON.

        Raises:
            ConfigError: Something in it cannot be made again in another process; the message says what.
        """
        from treadle.config.targets import target_name

        return {
            "number": self.number,
            "seed": self.seed,
            "subject": [target_name(type(self.subject)), self.subject.encoded()],
            "evaluator": self.evaluator.encoded(),
            "context": self.context.encoded(),
        }

    @staticmethod
    def decoded(data: Mapping[str, Any]) -> "Task":
        """Return what `encoded` wrote."""
        names = reader()
        kind, subject = data["subject"]
        return Task(
            data["number"],
            data["seed"],
            names.find(kind).decoded(subject, names),
            decode_evaluator(data["evaluator"], names),
            TrialContext.decoded(data["context"]),
        )

    def run(self, reporter: TrialReporter, *, leaves: bool = True) -> None:
        """Do it; the result goes to `reporter`.

        The random numbers of the process are left as they were.

        Args:
            reporter: Where it reports to.
            leaves: Whether it leaves behind what the subject is to leave: of several processes, one does.

        Raises:
            ReportError: It ended without a result.
        """
        with seeded(self.seed), report_trial_to(reporter, self.number), trial_context(self.context):
            built = self.subject.build()
            result = self.evaluator.evaluate(built)
            if not reporter.finished:
                reporter.final(_final(result))
            if leaves:
                self.subject.leave(built)


def _final(result: Any) -> Metrics:
    if result is None:
        raise ReportError(
            "the trial ended without a final result; call nas.report_final_result(...) at the end of fit(), or return "
            "the result"
        )
    return parse_metrics(result, "the value that was returned")


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed every generator of the process for the block, and put them back afterwards."""
    state = RandomState()
    before = state.state_dict()
    try:
        random.seed(seed)
        np.random.seed(seed)
        # Not torch.manual_seed: it leaves a note for every kind of accelerator that is not there.
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_available():
            torch.cuda.manual_seed_all(seed)
        yield
    finally:
        state.load_state_dict(before)
