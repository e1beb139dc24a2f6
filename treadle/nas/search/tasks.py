"""One trial's work, as a thing that can be sent to another process and done there."""

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from treadle.data.random_state import RandomState
from treadle.errors import ConfigError
from treadle.nas.classic_records import reader
from treadle.nas.reports import Metrics, ReportError, as_metrics, reporting_to
from treadle.nas.search.evaluators import Evaluator, decoded_evaluator
from treadle.nas.search.inheritance import begin_with, keep_weights
from treadle.nas.search.subjects import Subject, decoded_subject


class TrialReporter(Protocol):
    """Where a trial reports to, and whether it has said its last."""

    @property
    def finished(self) -> bool:
        """Whether the final result has been reported."""

    def intermediate(self, metrics: Metrics, step: int | None) -> bool:
        """Take an intermediate result, and return whether the trial is to stop."""

    def final(self, metrics: Metrics) -> None:
        """Take the final result."""


@dataclass(frozen=True)
class Task:
    """What one trial does.

    Attributes:
        number: The number of the trial.
        seed: What its random numbers begin with.
        subject: What is judged.
        evaluator: What judges it.
        begin: The file with the weights to begin with; None begins with new ones.
        keep: The file to write the weights to at the end; None does not write them.
    """

    number: int
    seed: int
    subject: Subject
    evaluator: Evaluator
    begin: Path | None = None
    keep: Path | None = None

    def encoded(self) -> dict[str, Any]:
        """Return it as JSON.

        Raises:
            ConfigError: Something in it cannot be made again in another process; the message says what.
        """
        return {
            "number": self.number,
            "seed": self.seed,
            "subject": self.subject.encoded(),
            "evaluator": self.evaluator.encoded(),
            "begin": None if self.begin is None else str(self.begin),
            "keep": None if self.keep is None else str(self.keep),
        }

    @staticmethod
    def decoded(data: Mapping[str, Any]) -> "Task":
        """Return what `encoded` wrote."""
        names = reader()
        return Task(
            data["number"],
            data["seed"],
            decoded_subject(data["subject"], names),
            decoded_evaluator(data["evaluator"], names),
            None if data["begin"] is None else Path(data["begin"]),
            None if data["keep"] is None else Path(data["keep"]),
        )

    def run(self, reporter: TrialReporter) -> None:
        """Do it; the result goes to `reporter`.

        The random numbers of the process are left as they were.

        Raises:
            ReportError: It ended without a result.
        """
        with seeded(self.seed), reporting_to(reporter, self.number):
            model = self.subject.build()
            if self.begin is not None:
                begin_with(_network(model, "begin with the weights of another"), self.begin)
            result = self.evaluator.evaluate(model)
            if not reporter.finished:
                reporter.final(_final(result))
            if self.keep is not None:
                keep_weights(_network(model, "keep its weights"), self.keep)


def _final(result: Any) -> Metrics:
    if result is None:
        raise ReportError(
            "the trial ended without a final result; call nas.report_final_result(...) at the end of fit(), or return "
            "the result"
        )
    return as_metrics(result, "the value that was returned")


def _network(model: Any, what: str) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise ConfigError(f"a trial cannot {what}: what is searched is a {type(model).__name__}, not a network")
    return model


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
