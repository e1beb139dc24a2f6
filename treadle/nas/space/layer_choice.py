"""A choice between modules."""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

from torch import nn

from treadle.errors import ConfigError, did_you_mean
from treadle.nas.space.choice import Choice, Ranked
from treadle.nas.space.decisions import Condition, Decision, checked_weights
from treadle.nas.space.value_choice import Leaf
from treadle.search.assignment import key_of


class LayerChoice(Choice):
    """One of several modules, which are called alike.

    >>> from torch import nn
    >>> choice = LayerChoice({"wide": nn.Linear(2, 8), "narrow": nn.Linear(2, 4)}, label="layer")
    >>> len(choice), choice.names, choice["narrow"].out_features
    (2, ['wide', 'narrow'], 4)

    Args:
        candidates: The modules, in a list, where an architecture names them by position, or by name in a dict.
        label: Its name; by default its place in the model.
        default: The name or position of the candidate that a space forwards with; by default the first.
        weights: How likely each candidate is when architectures are drawn.
    """

    def __init__(
        self,
        candidates: Mapping[str, nn.Module] | Sequence[nn.Module],
        label: str | None = None,
        *,
        default: int | str | None = None,
        weights: Sequence[float] | None = None,
    ) -> None:
        super().__init__(label)
        self._listed = not isinstance(candidates, Mapping)
        named = dict(candidates) if isinstance(candidates, Mapping) else dict(enumerate(candidates))
        where = f"LayerChoice {label or ''}".rstrip()
        if not named:
            raise ConfigError(f"{where} has no candidates; give it at least one module")
        for name, module in named.items():
            if not isinstance(module, nn.Module):
                raise ConfigError(f"{where}: candidate {name!r} is a {type(module).__name__}; give a module")
            if "." in str(name) or not str(name):
                raise ConfigError(f"{where}: {name!r} cannot be the name of a candidate; leave out dots")
            # Not by add_module, which would forbid names such as "key" that mean something here.
            self._modules[str(name)] = module
        self.weights = checked_weights(weights, len(named), where)
        self.default: Any = (0 if self._listed else next(iter(named))) if default is None else default
        self._position(self.default)

    def __setattr__(self, name: str, value: Any) -> None:
        """Keep attributes apart from candidates, which may have the same names."""
        object.__setattr__(self, name, value)

    @property
    def names(self) -> list[str]:
        """The names of the candidates, in order; in a list their positions as text."""
        return list(self._modules)

    @property
    def candidates(self) -> list[Any]:
        """What an architecture calls the candidates: names, or positions if they were given in a list."""
        return list(range(len(self._modules))) if self._listed else list(self._modules)

    @property
    def value(self) -> Leaf:
        """The decision as an expression, for constraints and conditions."""
        return _Chosen(self)

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[nn.Module]:
        for module in self._modules.values():
            assert module is not None
            yield module

    def _position(self, index: Any) -> str:
        names = list(self._modules)
        if isinstance(index, str) and index in names:
            return index
        if type(index) is int and -len(names) <= index < len(names):
            return names[index]
        near = did_you_mean(index, names) if isinstance(index, str) else ""
        raise (IndexError if isinstance(index, int) else KeyError)(
            f"{self.current_label or 'this LayerChoice'} has no candidate {index!r}; it has {self.candidates}{near}"
        )

    def __getitem__(self, index: int | str) -> nn.Module:
        """Return a candidate by its name or position."""
        module = self._modules[self._position(index)]
        assert module is not None
        return module

    def __setitem__(self, index: int | str, module: nn.Module) -> None:
        """Put another module in the place of a candidate."""
        if not isinstance(module, nn.Module):
            raise ConfigError(f"{self.current_label}[{index!r}] must be a module, not a {type(module).__name__}")
        self._modules[self._position(index)] = module

    def __delitem__(self, index: int | str) -> None:
        """Leave a candidate out; those of a list that follow it move up."""
        place = self._position(index)
        if len(self._modules) == 1:
            raise ConfigError(f"{self.current_label}: {index!r} is the last candidate; a choice needs one")
        if self.weights is not None:
            at = self.names.index(place)
            self.weights = (*self.weights[:at], *self.weights[at + 1 :])
        kept = {name: module for name, module in self._modules.items() if name != place}
        lost_default = place == self._position(self.default)
        self._modules.clear()
        self._modules.update({str(number): one for number, one in enumerate(kept.values())} if self._listed else kept)
        if lost_default or self._listed:
            self.default = self.candidates[0]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the chosen candidate gives."""
        return self.chooser.layer(self, args, kwargs)

    def decisions(self, place: str) -> list[Decision]:
        """Return the one decision."""
        default = self.candidates[self.names.index(self._position(self.default))]
        return [Decision(self.key, tuple(self.candidates), default, place, self.weights)]

    def branches(self) -> Mapping[str, Sequence[Condition]]:
        """Return the condition for each candidate: that it was chosen."""
        pairs = zip(self.names, self.candidates, strict=True)
        return {name: [{self.key: frozenset([key_of(value)])}] for name, value in pairs}

    def frozen(self, architecture: Mapping[str, Any], memo: dict[Any, Any]) -> nn.Module:
        """Return a copy of the chosen candidate."""
        return deepcopy(self[architecture[self.key]], memo)

    def rows(self) -> dict[str, tuple[Any, ...]]:
        """Return the one row, with a weight for each candidate."""
        return {self.key: tuple(self.candidates)}

    def ranked(self, scores: Mapping[str, Sequence[float]], most: int) -> list[Ranked]:
        """Return the candidates, best first."""
        return [ranked_values(self.key, self.candidates, scores[self.key])]


def ranked_values(label: str, values: Sequence[Any], scores: Sequence[float]) -> Ranked:
    """Return the values of a decision, best first; of equal ones the earlier."""
    order = sorted(range(len(values)), key=lambda place: -scores[place])
    return [(scores[place], {label: values[place]}) for place in order]


class _Chosen(Leaf):
    """What a layer choice takes, as an expression."""

    def __init__(self, choice: LayerChoice) -> None:
        super().__init__(None)
        self._choice = choice

    @property
    def current_label(self) -> str:
        """The label of the choice."""
        return self._choice.current_label

    @property
    def candidates(self) -> tuple[Any, ...]:
        """What the choice can take."""
        return tuple(self._choice.candidates)

    def set_path(self, path: str) -> None:
        """Leave it to the choice."""

    def __repr__(self) -> str:
        return f"{self._choice.current_label or 'choice'}.value"
