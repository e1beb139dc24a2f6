"""A choice between tensors."""

import math
from collections.abc import Mapping, Sequence
from itertools import combinations, islice
from typing import Any

from torch import nn

from treadle.errors import ConfigError
from treadle.nas.space.choice import Choice, Ranked, best_combinations
from treadle.nas.space.decisions import Decision, Subset, checked_weights
from treadle.nas.space.fixed_modules import REDUCTIONS, ChosenInputs

WEIGHED = ("sum", "mean")
"""Reductions of which a weighted sum is a relaxation."""


class InputChoice(Choice):
    """Some of several tensors, joined into one.

    Args:
        n_candidates: How many tensors it is called with.
        n_chosen: How many of them are taken; None is any number, none included.
        reduction: How they become one: "sum", "mean", "concat" along dimension 1, or "none" for a list.
        label: Its name; by default its place in the model.
        default: The positions that a space forwards with; by default the first ones.
        weights: How likely each position is when architectures are drawn, if one is taken.
        choose_from: Names of the tensors, in the place of `n_candidates`.
    """

    def __init__(
        self,
        n_candidates: int | None = None,
        n_chosen: int | None = 1,
        reduction: str = "sum",
        label: str | None = None,
        *,
        default: Sequence[int] | None = None,
        weights: Sequence[float] | None = None,
        choose_from: Sequence[str] | None = None,
    ) -> None:
        super().__init__(label)
        where = f"InputChoice {label or ''}".rstrip()
        count = n_candidates if n_candidates is not None else len(choose_from or ())
        if count < 1 or (choose_from is not None and len(choose_from) != count):
            raise ConfigError(f"{where}: n_candidates={n_candidates} and choose_from={choose_from} give no tensors")
        if n_chosen is not None and not 1 <= n_chosen <= count:
            raise ConfigError(f"{where}: n_chosen={n_chosen} must lie between 1 and {count}, or be None for any number")
        if reduction not in REDUCTIONS:
            raise ConfigError(f"{where}: reduction={reduction!r} is unknown; use one of {REDUCTIONS}")
        if weights is not None and n_chosen != 1:
            raise ConfigError(f"{where}: weights are for n_chosen=1; without them all subsets are equally likely")
        self.n_candidates, self.n_chosen, self.reduction = count, n_chosen, reduction
        self.choose_from = None if choose_from is None else tuple(choose_from)
        self.weights = checked_weights(weights, count, where)
        self.default: list[int] = list(range(n_chosen or 1)) if default is None else sorted(default)
        if not self._decision("").contains(self.default):
            raise ConfigError(f"{where}: default={default} is none of {self._decision('').described()}")

    def _decision(self, place: str) -> Subset:
        places = tuple(range(self.n_candidates))
        return Subset(self.current_label, places, self.default, place, self.weights, self.n_chosen)

    def forward(self, *inputs: Any) -> Any:
        """Return the chosen of `inputs`, which come one by one or in a list, as one."""
        given = inputs[0] if len(inputs) == 1 and isinstance(inputs[0], (list, tuple)) else inputs
        if len(given) != self.n_candidates:
            raise ConfigError(
                f"{self.current_label or 'InputChoice'} chooses from {self.n_candidates} tensors and was called with "
                f"{len(given)}; call it with one for each candidate"
            )
        return self.chooser.inputs(self, given)

    def decisions(self, place: str) -> list[Decision]:
        """Return the one decision."""
        assert self.key
        return [self._decision(place)]

    def frozen(self, architecture: Mapping[str, Any], memo: dict[Any, Any]) -> nn.Module:
        """Return what joins the chosen tensors."""
        return ChosenInputs(architecture[self.key], self.reduction).train(self.training)

    def gate(self, place: int) -> str:
        """Return the row that weighs a tensor against leaving it out, where any number can be taken."""
        return f"{self.key}/{place}"

    def rows(self) -> dict[str, tuple[Any, ...]]:
        """Return one row with a weight for each tensor; where any number can be taken, a row for each tensor."""
        if self.n_chosen is None:
            return {self.gate(place): (False, True) for place in range(self.n_candidates)}
        return {self.key: tuple(range(self.n_candidates))}

    def ranked(self, scores: Mapping[str, Sequence[float]], most: int) -> list[Ranked]:
        """Return the subsets, best first."""
        places = range(self.n_candidates)
        if self.n_chosen is None:
            gates = [[(scores[self.gate(place)][taken], taken) for taken in (0, 1)] for place in places]
            best = islice(best_combinations([sorted(gate, reverse=True) for gate in gates]), most)
            return [[(score, {self.key: [place for place in places if taken[place]]}) for score, taken in best]]
        own = scores[self.key]
        if math.comb(self.n_candidates, self.n_chosen) > MOST_SUBSETS:
            order = sorted(sorted(places, key=lambda place: -own[place])[: self.n_chosen])
            return [[(sum(own[place] for place in order), {self.key: order})]]
        subsets = [list(subset) for subset in combinations(places, self.n_chosen)]
        found = [(sum(own[place] for place in subset), {self.key: subset}) for subset in subsets]
        return [sorted(found, key=lambda pair: -pair[0])]

    def reason_not_differentiable(self) -> str | None:
        """Return why its tensors cannot be weighed against each other; None if they can."""
        if self.reduction in WEIGHED:
            return None
        return f"reduction={self.reduction!r} is no sum that weights could stand in; use one of {WEIGHED}"


MOST_SUBSETS = 10_000
"""How many subsets are looked at to rank them; of more only the best is found."""
