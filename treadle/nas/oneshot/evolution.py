"""A ranked search over the architectures of a space by mutation and crossover."""

import random
from collections.abc import Callable
from typing import Any

from treadle.data import fold_seed
from treadle.errors import ConfigError
from treadle.nas.space.decisions import Architecture
from treadle.nas.space.model_space import Space
from treadle.search.assignment import key_of

ATTEMPTS = 100
"""How often a child that was judged before is made anew, before one is drawn at random."""


class Evolution:
    """Generations of architectures: each is made from the best of all that were judged before.

    What it proposes depends on the seed and on what was judged, and on nothing else: its state is the list of those.

    Args:
        space: The space.
        population: Architectures in a generation.
        generations: How many generations there are, the random first one among them.
        parents: How many of the best have children.
        mutation_probability: How likely each decision of a mutant is drawn again.
        accept: Says whether an architecture may be proposed.

    Attributes:
        judged: Every architecture that was judged, with its score, in order.
        seed: What chance depends on.
    """

    def __init__(
        self,
        space: Space,
        *,
        population: int = 50,
        generations: int = 20,
        parents: int = 10,
        mutation_probability: float = 0.1,
        accept: Callable[[Architecture], bool] | None = None,
    ) -> None:
        sizes = {"population": population, "generations": generations, "parents": parents}
        for name, value in sizes.items():
            if type(value) is not int or value < 1:
                raise ConfigError(f"{name}={value!r} must be a whole number from 1")
        if not 0 < mutation_probability <= 1:
            raise ConfigError(f"mutation_probability={mutation_probability} must lie above 0 and at most at 1")
        self._space, self._population, self._generations = space, population, generations
        self._parents, self._probability, self._accept = parents, mutation_probability, accept
        self.judged: list[tuple[Architecture, float]] = []
        self.seed = 0
        self._generation: tuple[int, list[Architecture]] | None = None

    @property
    def total(self) -> int:
        """How many architectures are judged in all: every one there is, if that is fewer."""
        wanted = self._population * self._generations
        try:
            return min(wanted, self._space.size())
        except ConfigError:
            return wanted

    def propose(self) -> Architecture | None:
        """Return the next architecture to judge; None if no other can be found."""
        number, place = divmod(len(self.judged), self._population)
        if self._generation is None or self._generation[0] != number:
            self._generation = (number, self._make(number))
        return self._generation[1][place] if place < len(self._generation[1]) else None

    def tell(self, architecture: Architecture, score: float) -> None:
        """Take the score of an architecture: the larger the better."""
        self.judged.append((architecture, float(score)))

    def ranked(self) -> list[tuple[Architecture, float]]:
        """Return everything that was judged, the best first, and of equals the earlier."""
        return sorted(self.judged, key=lambda pair: -pair[1])

    def _make(self, number: int) -> list[Architecture]:
        """Return a generation; its beginning follows from what was judged before it."""
        chance = random.Random(fold_seed(self.seed, "evolution", number))
        before = self.judged[: number * self._population]
        best = [one for one, _ in sorted(before, key=lambda pair: -pair[1])[: self._parents]]
        known = {key_of(one) for one, _ in before}
        made: list[Architecture] = []
        for place in range(self._population):
            child = self._child(best, place, chance, known)
            if child is None:
                break
            known.add(key_of(child))
            made.append(child)
        return made

    def _child(
        self, best: list[Architecture], place: int, chance: random.Random, known: set[str]
    ) -> Architecture | None:
        """Return an architecture that is not known yet: of one parent, of two, or at random."""
        for attempt in range(2 * ATTEMPTS):
            if not best or attempt >= ATTEMPTS:
                child = self._space.sample(chance)
            elif place % 2 == 0 or len(best) < 2:
                child = self._space.mutated(chance.choice(best), chance, self._probability)
            else:
                one, other = chance.sample(best, 2)
                child = self._space.crossed(one, other, chance)
            if key_of(child) not in known and (self._accept is None or self._accept(child)):
                return child
        return self._unknown(known)

    def _unknown(self, known: set[str]) -> Architecture | None:
        """Return any architecture that is left, in a space small enough to be looked through."""
        if self._space.decisions and self.total < self._population * self._generations:
            for one in self._space.enumerate():
                if key_of(one) not in known and (self._accept is None or self._accept(one)):
                    return one
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return what was judged."""
        return {"seed": self.seed, "judged": [[one, score] for one, score in self.judged]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take what was judged."""
        self.seed = int(state["seed"])
        self.judged = [(dict(one), float(score)) for one, score in state["judged"]]
        self._generation = None
