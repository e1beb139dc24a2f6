"""All drawings of a search, as files."""

from pathlib import Path
from typing import Any

from treadle.checkpoint.durable import replace_text
from treadle.nas.search.plots.parallel import parallel_coordinates
from treadle.nas.search.plots.pareto import pareto_plot
from treadle.nas.search.plots.scatter import trial_scatter


def write_plots(results: dict[str, Any], folder: Path) -> list[Path]:
    """Write `trials.svg`, `parallel.svg` and, with several objectives, `front.svg` into a folder; return their paths.

    Args:
        results: What `Search.results()` returns.
        folder: The folder; it must be there.
    """
    drawn = {"trials.svg": trial_scatter(results), "parallel.svg": parallel_coordinates(results)}
    if len(results["objectives"]) > 1:
        drawn["front.svg"] = pareto_plot(results)
    for name, text in drawn.items():
        replace_text(folder / name, text)
    return [folder / name for name in drawn]
