"""Search over trials: strategies, objectives, pruners, stores and launchers around `Search`.

Optuna is loaded when a search is made, not when this is imported.
"""

from treadle.nas.search.domains import integer, log_uniform, one_of, uniform
from treadle.nas.search.errors import SearchError
from treadle.nas.search.evolution import Evolution
from treadle.nas.search.grid import Grid
from treadle.nas.search.optuna_strategies import Nsga2, Sampled, Tpe
from treadle.nas.search.plots import parallel_coordinates, pareto_plot, trial_scatter
from treadle.nas.search.proxies import gradient_norm, parameter_count, synflow
from treadle.nas.search.search import Search
from treadle.nas.search.strategy import ExhaustedError, Random, Strategy

__all__ = [
    "Evolution",
    "ExhaustedError",
    "Grid",
    "Nsga2",
    "Random",
    "Sampled",
    "Search",
    "SearchError",
    "Strategy",
    "Tpe",
    "gradient_norm",
    "integer",
    "log_uniform",
    "one_of",
    "parallel_coordinates",
    "parameter_count",
    "pareto_plot",
    "synflow",
    "trial_scatter",
    "uniform",
]
