"""Strategies of Optuna: tree-structured Parzen estimators, NSGA-II, and any other sampler."""

import logging
import warnings
from abc import abstractmethod
from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from treadle.errors import ConfigError, MissingDependencyError
from treadle.search.assignment import Assignment
from treadle.search.space.base import ATTEMPTS
from treadle.search.space.dimensions import Dimension
from treadle.search.store.history import Proposal
from treadle.search.strategies.base import Strategy

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial


class OptunaStrategy(Strategy):
    """A sampler of Optuna's, made anew for each trial with a seed of its own.

    Args:
        startup: How many results there must be before the sampler is asked; until then values are drawn at random, by
            their weights.
    """

    name = "optuna"
    least = 0
    """How many results the sampler needs at least."""

    def __init__(self, startup: int = 0) -> None:
        if startup < self.least:
            raise ConfigError(f"startup={startup} must be {self.least} or more")
        self.startup = startup

    @abstractmethod
    def sampler(self, seed: int) -> "BaseSampler":
        """Return the sampler for one trial."""

    def propose(self, proposal: Proposal) -> Assignment:
        """Return what the sampler suggests, or a random draw where it suggests nothing the constraints allow."""
        if max(len(proposal.outcomes), proposal.judged) < self.startup:
            return proposal.searched.sample(proposal.chance)
        for _ in range(ATTEMPTS if proposal.searched.is_conditional else 1):
            taken = self._suggested(proposal)
            if proposal.searched.allows(taken):
                return taken
        return proposal.searched.sample(proposal.chance)

    def prepared(self, sampler: Any, proposal: Proposal) -> Any:
        """Return a sampler that need not go through all trials again: what they have in common is remembered."""
        from optuna.search_space import IntersectionSearchSpace

        own = getattr(sampler, "_search_space", None)
        if isinstance(own, IntersectionSearchSpace):
            sampler._search_space = proposal.memory.setdefault(type(sampler), own)
        return sampler

    def _suggested(self, proposal: Proposal) -> Assignment:
        from optuna.pruners import _filter_study

        sampler = self.prepared(self.sampler(proposal.chance.getrandbits(32)), proposal)
        study, trial = _filter_study(proposal.study, proposal.trial), proposal.trial
        sampler.before_trial(study, trial)
        known = sampler.infer_relative_search_space(study, trial)
        together = sampler.sample_relative(study, trial, known)

        def pick(dimension: Dimension) -> Any:
            if dimension.is_fixed:
                return dimension.options()[0]
            if dimension.label in together:
                return dimension.restored(together[dimension.label])
            return self.alone(sampler, proposal, dimension)

        return proposal.searched.decide(pick)

    def alone(self, sampler: "BaseSampler", proposal: Proposal, dimension: Dimension) -> Any:
        """Return a value for a decision that the sampler does not suggest together with the others."""
        found = sampler.sample_independent(proposal.study, proposal.trial, dimension.label, dimension.distribution())
        return dimension.restored(found)


class Tpe(OptunaStrategy):
    """Tree-structured Parzen estimators: values that were frequent among the good and rare among the others.

    Args:
        startup: How many trials are drawn at random first.
        candidates: How many values are compared for each trial.
        parallel: Whether trials that are still running count as bad, so that several workers spread out.
    """

    name = "tpe"
    least = 1

    def __init__(self, startup: int = 10, candidates: int = 24, *, parallel: bool = False) -> None:
        super().__init__(startup)
        if candidates < 1:
            raise ConfigError(f"candidates={candidates} must be 1 or more")
        self.candidates = candidates
        self.parallel = parallel

    def sampler(self, seed: int) -> "BaseSampler":
        """Return Optuna's TPE."""
        from optuna.samplers import TPESampler

        return TPESampler(
            n_startup_trials=0,
            n_ei_candidates=self.candidates,
            seed=seed,
            constant_liar=self.parallel,
        )


class Nsga2(OptunaStrategy):
    """NSGA-II: generations of trials, of which those survive that no other dominates, and that stand apart.

    Args:
        population: How many trials a generation has.
        mutation: How likely each decision is drawn anew; None is one over their number.
        crossover: How likely a child has two parents.
    """

    name = "nsga2"

    def __init__(self, population: int = 20, mutation: float | None = None, crossover: float = 0.9) -> None:
        super().__init__()
        if population < 2:
            raise ConfigError(f"Nsga2(population={population}) needs at least 2")
        self.population, self.mutation, self.crossover = population, mutation, crossover

    def sampler(self, seed: int) -> "BaseSampler":
        """Return Optuna's NSGA-II."""
        made: BaseSampler = _ordered("NSGAIISampler")(
            population_size=self.population,
            mutation_prob=self.mutation,
            crossover_prob=self.crossover,
            seed=seed,
        )
        return made

    def prepared(self, sampler: Any, proposal: Proposal) -> Any:
        """Return a sampler that is told which trials belong to a generation."""
        sampler.generations = proposal.memory.setdefault(Generations, Generations())
        sampler.generations.update(proposal.complete, sampler.generation_key)
        return super().prepared(sampler, proposal)

    def alone(self, sampler: "BaseSampler", proposal: Proposal, dimension: Dimension) -> Any:
        """Return a random draw by its weights: of the first generation, or of what a mutation changes."""
        return dimension.sample(proposal.chance)


class Generations:
    """The complete trials by their generation, kept up to date at the cost of what is new.

    Attributes:
        trials: Those of each generation, in the order of birth.
    """

    def __init__(self) -> None:
        self.trials: dict[int, list[FrozenTrial]] = {}
        self._seen: set[int] = set()

    def update(self, complete: "Sequence[FrozenTrial]", key: str) -> None:
        """Take note of what is new: mostly the last, but trials need not end in the order in which they began.

        Args:
            complete: All complete trials, in the order of birth.
            key: The note that says of a trial of which generation it is; a trial without is of none.
        """
        for trial in reversed(complete):
            if len(self._seen) == len(complete):
                return
            if trial.number in self._seen:
                continue
            self._seen.add(trial.number)
            if key in trial.system_attrs:
                own = self.trials.setdefault(trial.system_attrs[key], [])
                insort(own, trial, key=lambda one: one.number)


@cache
def _ordered(name: str) -> Any:
    """Return a genetic sampler with parents always in the same order, and in no need of all trials.

    Optuna's own are in one order when they are chosen and in another when they are read back from the store, so that
    a search killed between the two would go on otherwise than one that was not. And it goes through all trials for
    each new one.
    """
    import optuna.samplers

    base: Any = getattr(optuna.samplers, name)

    class OrderedSampler(base):  # type: ignore[misc]
        """The sampler with parents in the order of birth."""

        generations: Generations

        @property
        def generation_key(self) -> str:
            """The note that says of which generation a trial is."""
            return str(self._get_generation_key())

        def get_trial_generation(self, study: Any, trial: Any) -> int:
            """Return the generation of a new trial: the last one, until as many of it are complete as there may be."""
            if self.generation_key in trial.system_attrs:
                return int(trial.system_attrs[self.generation_key])
            last = max(self.generations.trials, default=0)
            is_full = len(self.get_population(study, last)) >= (self.population_size or 0)
            study._storage.set_trial_system_attr(trial._trial_id, self.generation_key, last + is_full)
            return last + is_full

        def get_population(self, study: Any, generation: int) -> list[Any]:
            """Return the complete trials of a generation."""
            return self.generations.trials.get(generation, [])

        def get_parent_population(self, study: Any, generation: int) -> list[Any]:
            """Return those whose children a generation is."""
            if generation == 0:
                return []
            key = f"{self._get_parent_cache_key_prefix()}{generation}"
            numbers = study._storage.get_study_system_attrs(study._study_id).get(key)
            if numbers is None:
                found = super().get_parent_population(study, generation)
            else:
                found = [study._storage.get_trial(number) for number in numbers]
            return sorted(found, key=lambda trial: trial.number)

    return OrderedSampler


class Nsga3(Nsga2):
    """NSGA-III: as NSGA-II, but those survive that are near given directions; for three objectives and more.

    Args:
        population: How many trials a generation has.
        mutation: How likely each decision is drawn anew; None is one over their number.
        crossover: How likely a child has two parents.
    """

    name = "nsga3"

    def sampler(self, seed: int) -> "BaseSampler":
        """Return Optuna's NSGA-III."""
        with _quiet_about_experiments():
            made: BaseSampler = _ordered("NSGAIIISampler")(
                population_size=self.population,
                mutation_prob=self.mutation,
                crossover_prob=self.crossover,
                seed=seed,
            )
        return made


class Gp(OptunaStrategy):
    """Optuna's Gaussian process: for few trials in spaces of numbers.

    Args:
        startup: How many trials are drawn at random first.
    """

    name = "gp"
    least = 1

    def __init__(self, startup: int = 10) -> None:
        super().__init__(startup)

    def sampler(self, seed: int) -> "BaseSampler":
        """Return Optuna's sampler.

        Raises:
            MissingDependencyError: SciPy is not installed.
        """
        _require("scipy", "a search by a Gaussian process")
        from optuna.samplers import GPSampler

        with _quiet_about_experiments():
            return GPSampler(seed=seed, n_startup_trials=0, warn_independent_sampling=False)

    def propose(self, proposal: Proposal) -> Assignment:
        """Return what the sampler suggests, without what it says of its own speed."""
        own = logging.getLogger("optuna")
        before = own.level
        own.setLevel(logging.ERROR)
        try:
            return super().propose(proposal)
        finally:
            own.setLevel(before)

    def alone(self, sampler: "BaseSampler", proposal: Proposal, dimension: Dimension) -> Any:
        """Return a random draw by its weights: of what not all trials decide, the process knows nothing."""
        return dimension.sample(proposal.chance)


class Qmc(OptunaStrategy):
    """Quasi-Monte Carlo: a sequence that fills the space more evenly than chance.

    Args:
        seed: Which sequence.
    """

    name = "qmc"

    def __init__(self, *, seed: int = 0) -> None:
        super().__init__()
        self.seed = seed

    def sampler(self, seed: int) -> "BaseSampler":
        """Return Optuna's sampler of one sequence, whichever trial it is for.

        Raises:
            MissingDependencyError: SciPy is not installed.
        """
        _require("scipy", "a search by quasi-Monte Carlo")
        from optuna.samplers import QMCSampler

        with _quiet_about_experiments():
            return QMCSampler(seed=self.seed, scramble=True, warn_independent_sampling=False)

    def prepared(self, sampler: Any, proposal: Proposal) -> Any:
        """Return a sampler that takes the point of this trial; Optuna's own counts in the store what was asked for."""
        sampler._find_sample_id = lambda study, space: proposal.place
        return super().prepared(sampler, proposal)

    def alone(self, sampler: "BaseSampler", proposal: Proposal, dimension: Dimension) -> Any:
        """Return a random draw by its weights."""
        return dimension.sample(proposal.chance)


def _require(package: str, user: str) -> None:
    if find_spec(package) is None:
        raise MissingDependencyError(f"{user} needs {package}; pip install 'treadle[search]'")


@contextmanager
def _quiet_about_experiments() -> Iterator[None]:
    """Keep Optuna from warning that a sampler is new, for each trial again."""
    from optuna.exceptions import ExperimentalWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        yield


class Sampled(OptunaStrategy):
    """Any sampler of Optuna's.

    Args:
        make: Called with a seed for each trial; returns the sampler.
        startup: How many trials are drawn at random first.
    """

    def __init__(self, make: Callable[[int], "BaseSampler"], startup: int = 0) -> None:
        super().__init__(startup)
        self.make = make

    def sampler(self, seed: int) -> "BaseSampler":
        """Return what `make` returns."""
        made = self.make(seed)
        if not hasattr(made, "sample_relative"):
            raise ConfigError(f"the strategy returned {made!r} for a seed; it must return a sampler of Optuna's")
        return made
