"""Search over trials: what may be tried, strategies, pruners, stores and launchers around `Search`.

A trial is anything that can be judged by what it reports: a training of any trainer, or a config. Packs bring spaces
of their own, such as those of networks, by `treadle.search.space.extension`. Optuna is loaded when a search is made,
not when this is imported.
"""

from treadle.search.errors import SearchError, StopSearchError
from treadle.search.importance import hypervolume, importance
from treadle.search.plots import parallel_coordinates, pareto_plot, trial_scatter
from treadle.search.promotion import Asha, Halving, Hyperband, Pbt, Promotion
from treadle.search.recorded_calls import recorded
from treadle.search.search import Search
from treadle.search.space.base import Searched
from treadle.search.space.domains import integer, log_uniform, one_of, uniform
from treadle.search.strategies.base import ExhaustedError, Random, Strategy
from treadle.search.strategies.evolution import Evolution
from treadle.search.strategies.grid import Grid
from treadle.search.strategies.optuna import Gp, Nsga2, Nsga3, Qmc, Sampled, Tpe
from treadle.search.strategies.surrogate import Surrogate
from treadle.search.trial.budget import StopAtBudgetCallback, train_to_budget
from treadle.search.trial.context import TrialContext, this_trial
from treadle.search.trial.evaluators import BaseTrainer, register_trainer
from treadle.search.trial.reports import (
    PrunedError,
    ReportError,
    ReportTrialCallback,
    current_trial,
    report_final_result,
    report_intermediate_result,
)

__all__ = [
    "Asha",
    "BaseTrainer",
    "Evolution",
    "ExhaustedError",
    "Gp",
    "Grid",
    "Halving",
    "Hyperband",
    "Nsga2",
    "Nsga3",
    "Pbt",
    "Promotion",
    "PrunedError",
    "Qmc",
    "Random",
    "ReportError",
    "ReportTrialCallback",
    "Sampled",
    "Search",
    "SearchError",
    "Searched",
    "StopAtBudgetCallback",
    "StopSearchError",
    "Strategy",
    "Surrogate",
    "Tpe",
    "TrialContext",
    "current_trial",
    "hypervolume",
    "importance",
    "integer",
    "log_uniform",
    "one_of",
    "parallel_coordinates",
    "pareto_plot",
    "recorded",
    "register_trainer",
    "report_final_result",
    "report_intermediate_result",
    "this_trial",
    "train_to_budget",
    "trial_scatter",
    "uniform",
]
