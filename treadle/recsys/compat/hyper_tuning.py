"""`HyperTuning` by RecBole's name: settings tried one after the other, by an objective of the caller's."""

import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from treadle.errors import ConfigError, importing
from treadle.recsys.trainers.results import dict2str
from treadle.recsys.tune.space import Dimension, SettingsSpace, check_comparable, parse_dimension, read_space
from treadle.search import Grid, Sampled, Search, StopSearchError, Strategy
from treadle.search.space.dimensions import make_dimension
from treadle.search.store.history import Proposal
from treadle.search.store.store import optuna

ALGORITHMS = ("exhaustive", "random", "bayes")
SEED = 2020
"""Decides which values a search draws, where nobody says."""


class ExhaustiveSearchError(ConfigError):
    """A space that has no end cannot be gone through."""


class HyperTuning:
    """Tries settings and keeps what came out.

    Trials are judged by `best_valid_score`; `treadle.search` makes them, in memory. For a search that goes on after a
    kill, gives up bad trials early and has many workers there is `treadle.recsys.tune.search.Search`.

    Args:
        objective_function: Called with settings and `fixed_config_file_list`; returns what
            `treadle.recsys.objective_function` does.
        space: The values of each setting, as `{"learning_rate": [0.01, 0.001]}`.
        params_file: A file of lines `name kind values`.
        params_dict: Settings by their kind: `{"choice": {"learning_rate": [0.01, 0.001]}}`.
        fixed_config_file_list: YAML files with settings.
        display_file: Where a picture of the trials is written, an HTML page.
        algo: "exhaustive" tries all combinations, in their order; "random" draws; "bayes" learns from the trials.
        max_evals: How many trials there are, where the space has no end.
        early_stop: How many trials may follow the best one before the search ends.
        seed: Decides what is drawn.

    Attributes:
        best_score, best_params: The best trial.
        best_test_result: What the best model scores in the test.
        params2result: What the objective returned, by the settings in words.
        params_list, score_list: The settings in words, and the scores, of all trials.

    Raises:
        ConfigError: There is no space, or an algorithm that does not exist.
        ExhaustiveSearchError: All combinations are to be tried of a space that has no end.
    """

    def __init__(
        self,
        objective_function: Callable[..., Mapping[str, Any]],
        space: Mapping[str, Any] | None = None,
        params_file: str | os.PathLike[str] | None = None,
        params_dict: Mapping[str, Mapping[str, Any]] | None = None,
        fixed_config_file_list: Sequence[str | os.PathLike[str]] | None = None,
        display_file: str | os.PathLike[str] | None = None,
        algo: str = "exhaustive",
        max_evals: int = 100,
        early_stop: int = 10,
        *,
        seed: int = SEED,
    ) -> None:
        self.objective_function = objective_function
        self.fixed_config_file_list, self.display_file = fixed_config_file_list, display_file
        self.space = _space(space, params_file, params_dict)
        check_comparable(self.space)
        if algo not in ALGORITHMS:
            raise ConfigError(f"algo={algo!r} does not exist; there are {list(ALGORITHMS)}")
        self.algo, self.early_stop, self._seed = algo, int(early_stop), seed
        self.max_evals = self._count() if algo == "exhaustive" else int(max_evals)
        self.best_score: float | None = None
        self.best_params: dict[str, Any] | None = None
        self.best_test_result: Any = None
        self.params2result: dict[str, Mapping[str, Any]] = {}
        self.params_list: list[str] = []
        self.score_list: list[float] = []
        self.model = ""
        self._bigger = True
        self._since = 0

    def _count(self) -> int:
        """Return how many combinations there are."""
        found = {one.name: make_dimension(one.name, one.domain) for one in self.space}
        endless = [name for name, dimension in found.items() if not dimension.is_listed]
        if endless:
            raise ExhaustiveSearchError(
                f"algo='exhaustive' tries all combinations, and {endless} have no end of values; give them as choices, "
                "or take algo='random' or 'bayes'"
            )
        return math.prod(len(dimension.options()) for dimension in found.values())

    @staticmethod
    def params2str(params: Mapping[str, Any]) -> str:
        """Return settings in words.

        >>> HyperTuning.params2str({"epochs": 5, "learner": "adam"})
        'epochs:5, learner:adam'
        """
        return ", ".join(f"{name}:{value}" for name, value in params.items())

    def trial(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Try settings, and return what is to be made small."""
        words = self.params2str(params)
        result = self.objective_function(dict(params), self.fixed_config_file_list)
        score, self._bigger = float(result["best_valid_score"]), bool(result["valid_score_bigger"])
        self.model = str(result.get("model", ""))
        self.params_list.append(words)
        self.score_list.append(score)
        self.params2result[words] = result
        better = self.best_score is None or (score > self.best_score if self._bigger else score < self.best_score)
        if better:
            self.best_score, self.best_params = score, dict(params)
            self.best_test_result = result.get("test_result")
        best = ", the best so far" if better else ""
        sys.stdout.write(f"trial {len(self.score_list)}: {words} scored {score:.4f}{best}\n")
        return {"loss": -score if self._bigger else score, "status": "ok"}

    def run(self) -> None:
        """Make the trials, until all are made or none of the last ones was the best."""
        self._since = 0
        search = Search(
            SettingsSpace(self.space),
            self._judged,
            strategy=self._strategy(),
            trials=self.max_evals,
            objectives="minimize",
            store="memory",
            duplicates="run",
            max_failures=None,
            on_trial=lambda trial: search.stop() if self._since >= self.early_stop else None,
        )
        try:
            search.run()
        except StopSearchError as stopped:
            raise stopped.__cause__ or stopped from None
        if self.display_file is not None:
            self.plot_hyper()

    def _judged(self, params: Mapping[str, Any]) -> float:
        before = self.best_params
        try:
            loss = float(self.trial(params)["loss"])
        except Exception as error:
            raise StopSearchError(str(error)) from error  # what the caller's own function raises is the caller's
        self._since = 0 if self.best_params is not before else self._since + 1
        return loss

    def _strategy(self) -> Strategy:
        if self.algo == "exhaustive":
            return Grid(shuffle=False)
        if self.algo == "random":
            return Draws(self.space, self._seed)
        sampler = optuna().samplers.TPESampler(seed=self._seed)
        return Sampled(lambda seed: sampler)  # one for all trials: nothing of this search outlives the process

    def export_result(self, output_file: str | os.PathLike[str]) -> None:
        """Write all settings and what came of them to a file."""
        lines = []
        for words, result in self.params2result.items():
            lines += [words, "Valid result:", dict2str(result["best_valid_result"] or {})]
            lines += ["Test result:", dict2str(result["test_result"] or {}), ""]
        Path(output_file).write_text("\n".join(lines) + "\n", encoding="utf-8")

    def plot_hyper(self) -> None:
        """Write a picture of the scores of all trials to `display_file`, an HTML page."""
        with importing("plotly", extra="report", user="HyperTuning(display_file=...)"):
            from plotly import graph_objects  # type: ignore[import-untyped]
        numbers = list(range(1, len(self.score_list) + 1))
        curve = graph_objects.Scatter(x=numbers, y=self.score_list, text=self.params_list, mode="lines+markers")
        figure = graph_objects.Figure([curve])
        figure.update_layout(title=f"{self.model} tuning", xaxis_title="trials", yaxis_title="valid_score")
        figure.write_html(str(self.display_file))


def exhaustive_search(*args: Any, **kwargs: Any) -> None:
    """Refuse: it proposes trials to hyperopt, which is not used.

    Raises:
        ConfigError: Always; it says what to do.
    """
    raise ConfigError("exhaustive_search proposes trials to hyperopt; here HyperTuning(algo='exhaustive') makes them")


def _space(space: Any, params_file: Any, params_dict: Any) -> list[Dimension]:
    if space:
        if not isinstance(space, Mapping) or not all(isinstance(values, (list, tuple)) for values in space.values()):
            raise ConfigError(
                "space= takes the choices of each setting, {'learning_rate': [0.01, 0.001]}; write a space of "
                "hyperopt's as params_dict, {'loguniform': {'learning_rate': [-8, 0]}}"
            )
        return [parse_dimension(name, "choice", values) for name, values in space.items()]
    if params_file:
        return read_space(params_file)
    if params_dict:
        return [parse_dimension(name, kind, given) for kind, own in params_dict.items() for name, given in own.items()]
    raise ConfigError("there is nothing to try: pass space, params_file or params_dict")


class Draws(Strategy):
    """Draws the settings of all trials from one row of random numbers, as RecBole's searches do.

    Args:
        space: The values that each setting may take.
        seed: Where the row begins.
    """

    name = "draws"

    def __init__(self, space: Sequence[Dimension], seed: int) -> None:
        self._space, self._seed = space, seed

    def propose(self, proposal: Proposal) -> dict[str, Any]:
        """Return the draw whose turn it is."""
        random = np.random.default_rng(self._seed)
        for _ in range(proposal.trial.number):
            self._drawn(random)
        return self._drawn(random)

    def _drawn(self, random: np.random.Generator) -> dict[str, Any]:
        return {one.name: _draw(one, random) for one in self._space}


def _draw(one: Dimension, random: np.random.Generator) -> Any:
    dimension = make_dimension(one.name, one.domain)
    if dimension.is_listed:
        values = dimension.options()
        return values[int(random.integers(len(values)))]
    low, high = one.values if one.kind != "log" else map(math.log, one.values)
    drawn = float(random.uniform(low, high))
    return drawn if one.kind == "uniform" else math.exp(drawn)
