"""`Search`: trials, one after the other or many at a time, that a kill does not lose."""

import json
import logging
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.data.seeds import fold_seed
from treadle.errors import ConfigError
from treadle.runs.place import require_folder
from treadle.search.earlier import earlier_trials
from treadle.search.importance import importance
from treadle.search.launchers import make_launcher, require_launcher
from treadle.search.plots.panels import FOLDERS, Panels
from treadle.search.promotion import Promotion, make_promotion
from treadle.search.results import SearchResults, pareto_front, trial_data
from treadle.search.run import RetryPolicy, SearchRules, SearchRun
from treadle.search.space.base import Searched, require_setting
from treadle.search.space.config_space import ConfigSpace, JointSpace, as_search_space, fill_values, has_domains
from treadle.search.space.extension import TrialWeights
from treadle.search.store.store import MEMORY, Store, optuna
from treadle.search.strategies import make_strategy
from treadle.search.trial.context import TrialContext
from treadle.search.trial.evaluators import Evaluator, Lazy, make_evaluator
from treadle.search.trial.objectives import parse_limits, parse_objectives
from treadle.search.trial.pruning import make_pruner
from treadle.search.trial.task import Task
from treadle.search.trial.trial import NONFINITE

if TYPE_CHECKING:
    import os

    from optuna.storages import BaseStorage

logger = logging.getLogger(__name__)

TRAINER = "trainer."
"""What the names of decisions begin with that stand in the trainer."""
DEFAULT_FOLDER = "runs/search"
JOURNAL = "search.journal"
UNSTORED = "unstored"
"""The folder for final results while the store does not answer."""
WEIGHTS = "weights"
DUPLICATES = ("replay", "run")


class Search:
    """A search over trials, each of which tries one setting from scratch.

    Every trial is stored when it begins and when it ends; kill the search whenever you like and start it again: no
    finished trial is lost or run again, and one that was running is run again under its own number. With one worker it
    then ends with exactly the trials of a search that was never killed.

    >>> from treadle.search import one_of
    >>> search = Search({"x": one_of(1, 2, 3)}, lambda at: at["x"] ** 2, strategy="grid", store="memory")
    >>> search.run()["best"]["parameters"]
    {'x': 3}

    Args:
        space: A config or dict with domains (`one_of`, `uniform`, `log_uniform`, `integer`) in the place of values;
            or a `Searched` of a pack's own. `nas.Search` takes models with choices in them, too.
        trainer: A registered trainer, as an object whose arguments are used or as a class; a lazy call of one, which
            may have domains among its arguments; or a function that is given the model, or the config, and returns
            the result.
        strategy: "random", "grid", "tpe", "evolution", "nsga2", an object of one of their classes, or a function that
            makes a sampler of Optuna's from a seed.
        trials: How many trials to run. Those that were run before count; replays and retries do not.
        seed: What all chance comes from.
        objectives: "maximize", "minimize", or names with directions: `{"accuracy": "maximize", "flops": "minimize"}`.
        pruner: "median", "hyperband", "halving", a pruner of Optuna's, or None.
        promotion: What trains trials little at first, and lets those continue that do well, from their own
            checkpoints: `Halving`, `Asha`, `Hyperband` or `Pbt` of `treadle.search`; or as text, "asha(1, 27)".
        run_dir: The folder of the search, by default `runs/search`.
        store: Where the trials are: the path of a journal, by default in `run_dir`; the URL of a database, for several
            machines; or "memory".
        name: The name of the search in the store; by default that of the folder.
        workers: How many trials run at a time.
        launcher: "inline" in this process, "processes", "torchrun", or "ray".
        processes: With torchrun, how many processes a trial has.
        resources: With Ray, what to reserve for a worker, such as `{"num_gpus": 1}`.
        retries: How often a failed trial is run again.
        retry_on: The kinds of errors that are worth it, as classes or names; None is all.
        first: Settings to try before any others, each as a mapping of decisions to values; what one leaves out is
            drawn at random.
        limits: The largest value that a reported metric may have, by name: `{"latency": 5.0}`. A trial above one is
            never the best, and strategies that can, TPE, GP, NSGA-II and NSGA-III, avoid such trials.
        patience: After how many trials without a better result the search ends; None never does.
        warm_start: Earlier searches, as their folders, their results, or searches: their complete trials of settings
            that this space has too are known from the start, and do not count as `trials`.
        max_failures: After how many failures in a row the search gives up; None never does.
        duplicates: "replay" gives a trial that was run before its stored result; "run" runs it again.
        nonfinite: "fail" fails a trial whose final result is nan or infinite; "prune" stops it at the first of these.
        proxy: A guess of how good a network is before training: ("synflow", {"inputs": (3, 32, 32)}) or a function
            of the network. The best of `proxy_pool` proposals is tried.
        proxy_pool: How many are compared.
        inherit: Whether a network begins with the weights of its parent, or of the most similar one so far.
        keep_weights: Whether the weights of each trial are kept; with `inherit` they are.
        trial_timeout: Seconds that a trial may take before it fails; needs a launcher other than "inline".
        timeout: Seconds after which no new trial is started.
        on_trial: Called with each trial that has ended, as plain data.

    Raises:
        ConfigError: Something cannot be meant as given.
        MissingDependencyError: Optuna, or Ray, is not installed.
    """

    def __init__(
        self,
        space: Any,
        trainer: Any,
        *,
        strategy: Any = "random",
        trials: int = 100,
        seed: int = 0,
        objectives: str | Sequence[str] | Mapping[str, str] = "maximize",
        pruner: Any = None,
        promotion: Any = None,
        run_dir: "str | os.PathLike[str] | None" = None,
        store: "str | os.PathLike[str] | BaseStorage | None" = None,
        name: str | None = None,
        workers: int = 1,
        launcher: str = "inline",
        processes: int = 1,
        resources: dict[str, Any] | None = None,
        first: Sequence[Mapping[str, Any]] = (),
        limits: Mapping[str, float] | None = None,
        patience: int | None = None,
        warm_start: Sequence[Any] = (),
        retries: int = 0,
        retry_on: Sequence[type[BaseException] | str] | None = None,
        max_failures: int | None = 10,
        duplicates: str = "replay",
        nonfinite: str = "fail",
        proxy: Any = None,
        proxy_pool: int = 8,
        inherit: bool = False,
        keep_weights: bool = False,
        trial_timeout: float | None = None,
        timeout: float | None = None,
        on_trial: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        optuna()
        self._evaluator = make_evaluator(trainer)
        self.searched = self._searched_with(space, self._evaluator)
        self.objectives = parse_objectives(objectives)
        folder = DEFAULT_FOLDER if run_dir is None else run_dir
        require_folder(folder, "the trials of a search are in a journal that all of its workers append to")
        self.run_dir = Path(folder)
        self.name = name or self.run_dir.name
        self.seed = seed
        self.trials = _positive("trials", trials)
        self.rules = SearchRules(
            strategy=make_strategy(strategy, seed=seed, workers=workers),
            pruner=make_pruner(pruner),
            retrying=RetryPolicy(retries, retry_on),
            max_failures=None if max_failures is None else _positive("max_failures", max_failures),
            replays=_one_of("duplicates", duplicates, DUPLICATES) == "replay",
            nonfinite=_one_of("nonfinite", nonfinite, NONFINITE),
            proxy=None if proxy is None else self.create_proxy(proxy),
            proxy_pool=_positive("proxy_pool", proxy_pool),
            weights=self.searched.weights(self.run_dir / WEIGHTS, inherit=inherit)
            if inherit or keep_weights
            else TrialWeights(),
            promotion=None if promotion is None else make_promotion(promotion),
            first=tuple(dict(one) for one in first),
            limits=parse_limits(limits),
            patience=None if patience is None else _positive("patience", patience),
            earlier=earlier_trials(warm_start),
        )
        self._place = self.run_dir / JOURNAL if store is None else store
        self._launching = (launcher, workers, trial_timeout, {"processes": processes, "resources": resources})
        self._timeout = timeout
        self._on_trial = on_trial
        self._store: Store | None = None
        self.is_stopping = False
        # Where the trials are kept elsewhere, nothing is left in a folder that nobody asked for.
        is_asked_for = store is None or run_dir is not None
        draws = is_asked_for and store != MEMORY
        self._panels = Panels(self.run_dir, self.searched.picture) if draws else None
        self._check()

    # What a user asks -------------------------------------------------------------------------------------

    def run(self, trials: int | None = None) -> SearchResults:
        """Run trials until there are enough, or nothing new is proposed, and return `results()`.

        Args:
            trials: How many; by default as many as the search was made for.

        Raises:
            SearchError: The store holds something else, trials keep failing, or one of them ends the search.
        """
        if trials is not None:
            self.trials = _positive("trials", trials)
        self.is_stopping = False
        name, workers, trial_timeout, options = self._launching
        store = self._opened()
        running = SearchRun(self, store)
        launcher = make_launcher(name, workers, running.on_end, timeout=trial_timeout, options=options)
        deadline = math.inf if self._timeout is None else time.monotonic() + self._timeout
        try:
            with store.presence:
                running.run(launcher, self.trials, deadline)
        finally:
            launcher.close()
            store.sync()
            store.release()
        results = self.results()
        if self._panels is not None:
            self._panels.write(results, ended=not self.is_stopping)
        return results

    def results(self) -> SearchResults:
        """Return everything that is known as plain data, whether the search is running, has ended or was killed.

        `trials` has all trials, in order: `number`, `state`, `parameters`, `values` (objectives by name), `metrics`
        (all that was reported finally), `curve` (steps and values), `reports`, `error` and more. `best` is the best of
        them, `pareto` the numbers of those that no other is better than.
        """
        store = self._opened()
        trials = [self.data(trial) for trial in store.trials()]
        if not store.presence.is_running:
            store.release()
        front = pareto_front([trial for trial in trials if trial.get("feasible", True)], self.objectives)
        return SearchResults(
            {
                "name": self.name,
                "strategy": self.rules.strategy.name,
                "seed": self.seed,
                "objectives": {one.name: one.direction for one in self.objectives},
                "space": self.searched.described(),
                "trials": trials,
                "pareto": front,
                "best": trials[front[0]] if front else None,
            }
        )

    def stop(self) -> None:
        """Begin no more trials: `run` returns once those that are running have ended. `on_trial` may call it."""
        self.is_stopping = True

    def close(self) -> None:
        """Close the store; it opens again when it is needed."""
        if self._store is not None:
            self._store.close()
            self._store = None

    # What runs it asks ------------------------------------------------------------------------------------

    def trial_folder(self, number: int) -> Path:
        """Return the folder that belongs to a trial."""
        return self.run_dir / FOLDERS / f"{number:04d}"

    def task(
        self, number: int, taken: dict[str, Any], inherits: int | None, context: TrialContext | None = None
    ) -> Task:
        """Return the work of a trial.

        Args:
            number: Its number.
            taken: What was decided.
            inherits: The number of the trial whose weights it begins with; None begins with new ones.
            context: What it may know of itself; by default its number and folder.
        """
        subject = self.rules.weights.handed(self.searched.task(taken), number, inherits)
        context = context or TrialContext(number, self.trial_folder(number))
        # One that is promoted has a folder by which it is the same trial when it was run again for one that failed.
        seeds = number if context.budget is None or context.run_dir is None else int(context.run_dir.name)
        return Task(number, fold_seed("run", self.seed, seeds), subject, self._decided_evaluator(taken), context)

    def data(self, trial: Any) -> dict[str, Any]:
        """Return a stored trial as plain data."""
        return trial_data(trial, self.searched, self.objectives)

    def importance(self) -> dict[str, float]:
        """Return how much each decision matters for the first objective; see `treadle.search.importance`.

        Raises:
            SearchError: There are fewer than four complete trials.
        """
        return importance(self.results())

    def tell(self, trial: Any) -> None:
        """Tell whoever listens that a trial has ended."""
        if self._on_trial is not None:
            self._on_trial(self.data(trial))
        if self._panels is not None and self._panels.is_due:
            self._panels.write(self.results())

    def create_search_space(self, space: Any) -> Searched:
        """Return what there is to decide in a space; a search over spaces of another kind overrides this."""
        return as_search_space(space)

    def create_proxy(self, given: Any) -> Callable[[Any], float]:
        """Return what guesses how good something is that a trial may build; larger is better.

        Raises:
            ConfigError: It is no function, or nothing can be guessed of what is searched.
        """
        if not callable(given):
            raise ConfigError(f"proxy={given!r} must be a function of what is tried")
        self.searched.require_proxy_support()
        return given  # type: ignore[no-any-return]

    def _searched_with(self, space: Any, evaluator: Evaluator) -> Searched:
        """Return what is searched: the space, and what stands open in the trainer."""
        if not (isinstance(evaluator, Lazy) and has_domains(evaluator.call)):
            return self.create_search_space(space)
        return JointSpace(self.create_search_space(space), ConfigSpace(evaluator.call, TRAINER))

    def _decided_evaluator(self, taken: Mapping[str, Any]) -> Any:
        if isinstance(self.searched, JointSpace) and isinstance(self._evaluator, Lazy):
            return Lazy(fill_values(self._evaluator.call, taken, TRAINER))
        return self._evaluator

    def _opened(self) -> Store:
        if self._store is None:
            directions = [one.direction for one in self.objectives]
            unstored = self.run_dir / UNSTORED
            self._store = Store(self._place, self.name, directions, self._about(), unstored=unstored)
        return self._store

    def _about(self) -> dict[str, Any]:
        about = {
            "space": self.searched.fixed(),
            "objectives": [[one.name, one.direction] for one in self.objectives],
            "seed": self.seed,
            "strategy": self.rules.strategy.name,
            **({} if self.rules.promotion is None else {"promotion": self.rules.promotion.described()}),
        }
        return json.loads(json.dumps(about))  # type: ignore[no-any-return]  # as the store gives it back

    def _check(self) -> None:
        """Refuse what cannot be meant, before anything is run."""
        name, workers, trial_timeout, _ = self._launching
        require_launcher(name, workers, trial_timeout)
        if self.rules.pruner is not None and len(self.objectives) > 1:
            raise ConfigError("a pruner compares trials by one number; with several objectives, set pruner=None")
        if self.rules.promotion is not None:
            self._check_promotion(self.rules.promotion)
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise ConfigError(f"seed={self.seed!r} must be a whole number")
        for one in self.rules.first:
            require_setting(self.searched, one)
        if self.rules.limits and self.rules.promotion is not None:
            raise ConfigError("limits= are judged by complete trials, and promotion= compares others: give one of them")
        sampled = self.searched.sample(random.Random(0))
        task = self.task(0, sampled, None)
        if name != "inline":
            task.encoded()

    def _check_promotion(self, promotion: Promotion) -> None:
        if self.rules.pruner is not None:
            raise ConfigError("promotion= and pruner= both end trials early; give one of them")
        if len(self.objectives) > 1:
            raise ConfigError("promotion compares trials by one number; with several objectives, set promotion=None")
        promotion.require_enough(self.trials)


def _positive(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name}={value!r} must be a whole number from 1 up")
    return value


def _one_of(name: str, value: str, words: Sequence[str]) -> str:
    if value not in words:
        raise ConfigError(f"{name}={value!r} must be one of {list(words)}")
    return value
