"""From the weights of candidates to the best architectures."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from torch import nn

from treadle.errors import ConfigError
from treadle.nas.choice import Ranked
from treadle.nas.decisions import Architecture
from treadle.nas.layer_choice import ranked_values
from treadle.nas.ranking import best_combinations
from treadle.nas.space import Space
from treadle.search.assignment import key_of

PATIENCE = 100_000
"""How many combinations that constraints refuse are passed over before the search for others ends."""


class Found(NamedTuple):
    """An architecture that a trainer found.

    Attributes:
        architecture: What was decided, by label.
        score: How good it is, as the trainer judges: the larger the better.
        network: The network with the weights that were trained, if they were asked for.
    """

    architecture: Architecture
    score: float
    network: nn.Module | None = None


def ranked_architectures(space: Space, scores: Mapping[str, Sequence[float]], most: int) -> list[Found]:
    """Return the best architectures under the logarithms of candidates' weights, each once.

    Args:
        space: The space.
        scores: The logarithms, by row.
        most: How many to return at most.

    Raises:
        ConfigError: The constraints of the space refuse all that were looked at.
    """
    parts = list(_parts(space, scores, most))
    found: dict[str, Found] = {}
    for score, chosen in islice(best_combinations(parts), PATIENCE):
        merged = {label: value for part in chosen for label, value in part.items()}
        architecture = space.decide(lambda decision, merged=merged: merged[decision.label])  # type: ignore[misc]
        if space.allows(architecture):
            found.setdefault(key_of(architecture), Found(architecture, score))
        if len(found) == most:
            break
    if not found:
        raise ConfigError(f"the constraints refuse the best {PATIENCE} architectures; make them wider")
    return list(found.values())


def _parts(space: Space, scores: Mapping[str, Sequence[float]], most: int) -> Iterator[Ranked]:
    done: set[str] = set()
    for choice in space.choices.values():
        if choice.rows() and choice.key not in done:
            done.add(choice.key)
            yield from choice.ranked(scores, most)
    for leaf, _ in space.values:
        if leaf.key not in done:
            done.add(leaf.key)
            yield ranked_values(leaf.key, leaf.decision("").candidates, scores[leaf.key])
