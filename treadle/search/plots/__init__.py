"""Drawings of a search: SVG without scripts, fonts or links, made from `Search.results()` and nothing else."""

from treadle.search.plots.parallel import parallel_coordinates
from treadle.search.plots.pareto import pareto_plot
from treadle.search.plots.scatter import trial_scatter

__all__ = ["parallel_coordinates", "pareto_plot", "trial_scatter"]
