"""One trial of a search over a config for `treadle train`."""

import logging
import sys
from pathlib import Path
from typing import Any

from treadle.config import LazyConfig
from treadle.engine import HookBase
from treadle.engine.config.builders import complete
from treadle.engine.trainers.factory import build_trainer
from treadle.errors import ConfigError
from treadle.events import flatten_results
from treadle.nas import report_final_result, report_intermediate_result
from treadle.search import StopAtBudgetCallback, TrialContext, this_trial


class ReportEvaluations(HookBase):
    """Reports every evaluation but the last to the search, under the number of its iteration."""

    def __init__(self) -> None:
        self._reported = -1

    def after_step(self) -> None:
        """Report an evaluation of this iteration."""
        at = self.trainer.evaluated_at
        if at != self._reported and at >= 0 and self.trainer._last_eval_results:
            self._reported = at
            report_intermediate_result(flatten_results(self.trainer._last_eval_results), step=at)


def train_trial(config: Any, folder: str) -> None:
    """Train what a config describes, in a folder of the trial's own, and report its evaluations.

    A trial that was killed goes on from its last checkpoint.

    Args:
        config: The config, with a value in the place of everything that is searched.
        folder: The folder of the search.

    Raises:
        ConfigError: The config evaluates nothing, so that there is nothing to compare.
    """
    made = complete(config)
    LazyConfig.check(made)
    trial = this_trial()
    own = trial.run_dir or Path(folder) / "trials" / "0000"
    made.train.update(output_dir=str(own), resume="auto")
    _require_budget(trial, made.train.train_iter)
    trainer = build_trainer(made)(made)
    _silence_console()
    if not trainer.test_loader or not made.train.evaluation.enabled:
        raise ConfigError(
            "a search compares what trials evaluate, and the config has no dataloader.test, or does not use it"
        )
    # Before the writers, and after the evaluation whose numbers it passes on.
    trainer.register_hooks([ReportEvaluations(), StopAtBudgetCallback("step")])
    results = trainer.train()
    if not results:  # the trial stopped at its budget, or was at its end when its search was killed
        trainer.checkpointer.load(own)
        results = trainer.test(trainer.cfg, trainer.test_loader, trainer.model)
    report_final_result(flatten_results(results))


def _require_budget(trial: TrialContext, iterations: int) -> None:
    if trial.max_budget is not None and trial.max_budget != iterations:
        raise ConfigError(
            f"train.train_iter={iterations}, but the largest budget of the search is {trial.max_budget}: budgets of a "
            "config are iterations, and the largest is all of them"
        )


def _silence_console() -> None:
    """Show only warnings of the training, and not where the search prints; `log.txt` of the trial has everything."""
    for handler in logging.getLogger("treadle").handlers:
        if getattr(handler, "of_treadle", False) and type(handler) is logging.StreamHandler:
            handler.setLevel(logging.WARNING)
            handler.setStream(sys.stderr)
