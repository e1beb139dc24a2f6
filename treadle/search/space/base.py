"""What is searched: what there is to decide, and what a trial is given once it is decided."""

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from treadle.errors import ConfigError, did_you_mean
from treadle.search.assignment import Assignment, key_of
from treadle.search.space.dimensions import Dimension
from treadle.search.space.extension import TrialTarget, TrialWeights

ATTEMPTS = 1000
"""How often something is drawn again that a constraint refuses."""
MOST_COUNTED = 10_000
"""Up to how many combinations a search knows when it has tried them all."""
NETWORKS_ONLY = "inherit, keep_weights and proxy are for spaces of networks; this one is a config"


def distinct_combinations(
    options: Mapping[str, Callable[[], Iterable[Any]]],
    exists: Callable[[str, Assignment], bool],
    allows: Callable[[Assignment], bool],
) -> Iterator[Assignment]:
    """Yield every combination of the values that decisions can have, once.

    Args:
        options: The values of each decision by label, in order.
        exists: Says whether a decision is to be made, given those before it.
        allows: Says whether a combination may be.
    """
    labels = list(options)

    def go_on(at: int, taken: Assignment) -> Iterator[Assignment]:
        if at == len(labels):
            if allows(taken):
                yield dict(taken)
        elif not exists(labels[at], taken):
            yield from go_on(at + 1, taken)
        else:
            for option in options[labels[at]]():
                yield from go_on(at + 1, {**taken, labels[at]: option})

    yield from go_on(0, {})


class Searched(ABC):
    """What there is to decide, by label; what others depend on comes first."""

    dimensions: dict[str, Dimension]

    def exists(self, label: str, taken: Mapping[str, Any]) -> bool:
        """Whether a decision is to be made, given those before it."""
        return True

    def allows(self, taken: Assignment) -> bool:
        """Whether all constraints are satisfied."""
        return True

    @property
    def is_conditional(self) -> bool:
        """Whether some combinations of values are not to be had."""
        return False

    @abstractmethod
    def task(self, taken: Assignment) -> TrialTarget:
        """Return what a trial needs to build what was decided."""

    def picture(self, taken: Assignment, title: str) -> str | None:
        """Return a drawing of what was decided, as SVG; None if there is nothing to draw."""
        return None

    def weights(self, folder: Path, *, inherit: bool) -> TrialWeights:
        """Return what trials leave behind in a folder, and with `inherit` begin with.

        Raises:
            ConfigError: There are no weights in what is searched.
        """
        raise ConfigError(NETWORKS_ONLY)

    def require_proxy_support(self) -> None:
        """Refuse what nothing can be guessed of before a trial.

        Raises:
            ConfigError: There is nothing to guess by.
        """
        raise ConfigError(NETWORKS_ONLY)

    def decide(self, pick: Callable[[Dimension], Any]) -> Assignment:
        """Return what comes of asking `pick` for every decision that exists, in order, whatever constraints say."""
        taken: Assignment = {}
        for label, dimension in self.dimensions.items():
            if self.exists(label, taken):
                taken[label] = pick(dimension)
        return taken

    def sample(self, chance: random.Random) -> Assignment:
        """Draw values for all decisions, again where a constraint says no.

        Raises:
            ConfigError: The constraints refuse everything.
        """
        for _ in range(ATTEMPTS):
            taken = self.decide(lambda dimension: dimension.sample(chance))
            if self.allows(taken):
                return taken
        raise ConfigError(f"none of {ATTEMPTS} draws satisfied the constraints of the space; make them wider")

    def enumerate(self) -> Iterator[Assignment]:
        """Yield every combination that a grid visits, once."""
        return distinct_combinations(
            {label: one.options for label, one in self.dimensions.items()}, self.exists, self.allows
        )

    def size(self) -> int | None:
        """Return how many combinations there are; None if that is many, or values lie between any two."""
        if not all(dimension.is_listed for dimension in self.dimensions.values()):
            return None
        most = math.prod(len(dimension.options()) for dimension in self.dimensions.values())
        if most > MOST_COUNTED:
            return None
        return sum(1 for _ in self.enumerate()) if self.is_conditional else most

    def stored(self, taken: Assignment) -> dict[str, Any]:
        """Return values as Optuna holds them."""
        return {label: self.dimensions[label].stored(value) for label, value in taken.items()}

    def restored(self, parameters: Mapping[str, Any]) -> Assignment:
        """Return the values that Optuna holds, in the order of the decisions."""
        known = [label for label in self.dimensions if label in parameters]
        return {label: self.dimensions[label].restored(parameters[label]) for label in known}

    def described(self) -> dict[str, Any]:
        """Return what there is to decide as plain data."""
        return {label: dimension.described() for label, dimension in self.dimensions.items()}

    def fixed(self) -> dict[str, Any]:
        """Return what must stay as it is for a search to go on, as plain data."""
        return self.described()


def require_setting(searched: Searched, setting: Mapping[str, Any]) -> None:
    """Refuse a setting to try that the space does not have.

    Raises:
        ConfigError: It names a decision that there is not, or a value that the decision cannot have.
    """
    for label, value in setting.items():
        if label not in searched.dimensions:
            near = did_you_mean(str(label), searched.dimensions)
            raise ConfigError(
                f"first= has {label!r}, which nothing decides{near or f'; there is {[*searched.dimensions]}'}"
            )
        if not searched.dimensions[label].contains(value):
            allowed = searched.dimensions[label].described()
            raise ConfigError(f"first= has {label}={value!r}, which is none of its values: {allowed}")


def completed(searched: Searched, setting: Mapping[str, Any], chance: random.Random) -> Assignment:
    """Return a setting with everything drawn that it leaves out.

    Raises:
        ConfigError: The constraints refuse whatever is drawn.
    """
    for _ in range(ATTEMPTS):
        taken = searched.decide(lambda one: setting[one.label] if one.label in setting else one.sample(chance))
        if searched.allows(taken):
            return taken
    raise ConfigError(f"first= has {dict(setting)!r}, which the constraints of the space refuse")


def assignment_key(taken: Mapping[str, Any]) -> str:
    """Return a text that is the same for the same values of the same decisions.

    >>> assignment_key({"a": 1, "b": [0, 2]}) == assignment_key({"b": (0, 2), "a": 1})
    True
    """
    return key_of(dict(taken))
