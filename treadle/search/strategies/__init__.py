"""The strategies by name."""

from collections.abc import Callable
from typing import Any

from treadle.errors import ConfigError, did_you_mean
from treadle.search.strategies.base import Random, Strategy
from treadle.search.strategies.evolution import Evolution
from treadle.search.strategies.grid import Grid
from treadle.search.strategies.optuna import Gp, Nsga2, Nsga3, Qmc, Sampled, Tpe
from treadle.search.strategies.surrogate import Surrogate

__all__ = ["STRATEGIES", "make_strategy"]

STRATEGIES: dict[str, Callable[..., Strategy]] = {
    "random": Random,
    "grid": Grid,
    "tpe": Tpe,
    "evolution": Evolution,
    "surrogate": Surrogate,
    "gp": Gp,
    "qmc": Qmc,
    "nsga2": Nsga2,
    "nsga3": Nsga3,
}


def make_strategy(given: Any, *, seed: int, workers: int) -> Strategy:
    """Return a strategy.

    Args:
        given: Its name, a strategy, or a function that makes a sampler of Optuna's from a seed.
        seed: The seed of the search.
        workers: How many trials run at a time.

    Raises:
        ConfigError: There is none of this name.
    """
    if isinstance(given, Strategy):
        return given
    if given == "grid":
        return Grid(seed=seed)
    if given == "qmc":
        return Qmc(seed=seed)
    if given == "tpe":
        return Tpe(parallel=workers > 1)
    if isinstance(given, str) and given in STRATEGIES:
        return STRATEGIES[given]()
    if callable(given) and not isinstance(given, type):
        return Sampled(given)
    near = did_you_mean(str(given), STRATEGIES) or f"; it must be one of {list(STRATEGIES)}, a strategy, or a function"
    raise ConfigError(f"strategy={given!r} is unknown{near}")
