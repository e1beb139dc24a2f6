"""Search over trials of networks: `treadle.search`, which takes spaces of networks here."""

from collections.abc import Callable
from typing import Any

import treadle.search
from treadle.nas.classic.network_space import NetworkWeights, as_search_space, load_matching_weights
from treadle.nas.classic.proxies import gradient_norm, make_proxy, parameter_count, synflow
from treadle.search import Search as TrialSearch
from treadle.search import SearchError
from treadle.search.space import domains
from treadle.search.space.base import Searched
from treadle.search.trial.task import seeded

__all__ = ["Search", "domains", "gradient_norm", "parameter_count", "synflow"]


def __getattr__(name: str) -> Any:
    # Configs of earlier runs name domains and strategies by this module, when it was called treadle.nas.search.
    return getattr(treadle.search, name)


class Search(TrialSearch):
    """A search over trials, each of which trains one network, or one setting, from scratch.

    It is `treadle.search.Search`, with its arguments, and takes as its space a model with choices in it too, or a
    class, function or lazy call that makes one. `proxy`, `inherit` and `keep_weights` are for such spaces.

    >>> from treadle import nas
    >>> search = nas.Search({"x": nas.one_of(1, 2, 3)}, lambda at: at["x"] ** 2, strategy="grid", store="memory")
    >>> search.run()["best"]["parameters"]
    {'x': 3}
    """

    def create_search_space(self, space: Any) -> Searched:
        """Return what there is to decide in a space of networks, or in a config."""
        return as_search_space(space)

    def create_proxy(self, given: Any) -> Callable[[Any], float]:
        """Return a guess of how good a network is before it is trained: a function, or one by its name."""
        return super().create_proxy(make_proxy(given))

    def best_network(self) -> Any:
        """Return the network of the best trial, with the weights that it was trained to.

        Raises:
            SearchError: There is none yet, or weights were not kept.
        """
        best = self.results()["best"]
        if best is None:
            raise SearchError("no trial is complete yet; run the search first")
        weights = self.rules.weights
        if not isinstance(weights, NetworkWeights):
            raise SearchError("weights were not kept; make the search with keep_weights=True")
        number = best.get("replayed_from", best["number"])
        task = self.task(number, best["parameters"], None)
        with seeded(task.seed):
            network = task.subject.build()
        load_matching_weights(network, weights.file(number))
        return network
