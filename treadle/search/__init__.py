"""Search over trials: what may be tried, strategies, pruners, stores and launchers around `Search`.

A trial is anything that can be judged by what it reports: a training of any trainer, or a config. Packs bring spaces
of their own, such as those of networks, by `treadle.search.extension`. Optuna is loaded when a search is made, not when
this is imported.
"""

from treadle.search.base_trainer import BaseTrainer, register_trainer
from treadle.search.domains import integer, log_uniform, one_of, uniform
from treadle.search.errors import SearchError, StopSearchError
from treadle.search.evolution import Evolution
from treadle.search.grid import Grid
from treadle.search.optuna_strategies import Nsga2, Sampled, Tpe
from treadle.search.plots import parallel_coordinates, pareto_plot, trial_scatter
from treadle.search.records import recorded
from treadle.search.report_trial import ReportTrialCallback
from treadle.search.reports import (
    PrunedError,
    ReportError,
    current_trial,
    report_final_result,
    report_intermediate_result,
)
from treadle.search.search import Search
from treadle.search.searched import Searched
from treadle.search.strategy import ExhaustedError, Random, Strategy

__all__ = [
    "BaseTrainer",
    "Evolution",
    "ExhaustedError",
    "Grid",
    "Nsga2",
    "PrunedError",
    "Random",
    "ReportError",
    "ReportTrialCallback",
    "Sampled",
    "Search",
    "SearchError",
    "Searched",
    "StopSearchError",
    "Strategy",
    "Tpe",
    "current_trial",
    "integer",
    "log_uniform",
    "one_of",
    "parallel_coordinates",
    "pareto_plot",
    "recorded",
    "register_trainer",
    "report_final_result",
    "report_intermediate_result",
    "trial_scatter",
    "uniform",
]
