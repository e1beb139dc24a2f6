"""The space of a model: everything in it that is to be decided."""

import math
import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from treadle.errors import ConfigError, did_you_mean
from treadle.nas.space.choice import Choice
from treadle.nas.space.choosers import Chooser
from treadle.nas.space.decisions import Architecture, Condition, Decision, intersect_conditions, normalize_value
from treadle.nas.space.value_choice import FREEZE_KEY, Expression, Leaf, ValueChoice, copy_module, find_expressions
from treadle.search.assignment import key_of
from treadle.search.space.base import distinct_combinations
from treadle.search.space.extension import Restriction

# What every architecture of a space must satisfy


class Constraint(Restriction):
    """What every architecture must satisfy: an attribute of a module of the space, or a value in a dict space.

    Where a decision that it speaks of does not exist, because another branch was taken, it is satisfied.

    Args:
        test: An expression, or a function of an architecture.
        labels: The decisions that a function looks at.
        reason: What is wrong with an architecture that fails, for messages.

    Raises:
        ConfigError: It is a function, and the labels are missing.
    """

    def __init__(
        self,
        test: Expression | Callable[[Architecture], Any],
        *,
        labels: Sequence[str] | None = None,
        reason: str = "",
    ) -> None:
        if not isinstance(test, Expression) and labels is None:
            raise ConfigError("a Constraint that is a function must say which labels= it looks at")
        self._test, self._labels = test, tuple(labels or ())
        self.reason = reason or f"{test!r} does not hold"

    def expressions(self) -> list[Leaf]:
        """Return the decisions that it uses as expressions."""
        return self._test.leaves() if isinstance(self._test, Expression) else []

    @property
    def labels(self) -> tuple[str, ...]:
        """The decisions that it looks at."""
        return (*self._labels, *(leaf.key for leaf in self.expressions()))

    def require_known(self, known: Iterable[str]) -> None:
        """Refuse labels that no decision of a space has: such a constraint would hold for ever.

        Raises:
            ConfigError: It looks at a decision that is not in the space.
        """
        known = list(known)
        for label in self.labels:
            if label not in known:
                near = did_you_mean(label, known)
                raise ConfigError(
                    f"a Constraint looks at {label!r}, which the space does not decide{near or f'; it decides {known}'}"
                )

    def satisfied(self, architecture: Architecture) -> bool:
        """Whether an architecture may be."""
        if any(label not in architecture for label in self.labels):
            return True
        if isinstance(self._test, Expression):
            return bool(self._test.evaluate(architecture))
        return bool(self._test(architecture))

    def __deepcopy__(self, memo: dict[Any, Any]) -> "Constraint | None":
        """Return a copy; in a frozen network nothing is left of it."""
        return None if FREEZE_KEY in memo else copy_module(self, memo)


# How many architectures a space has, without going through all of them where that can be helped


MOST_VISITS = 200_000
"""How many combinations are looked at before a space counts as too entangled."""


def _bound_together(space: "Space") -> list[list[str]]:
    """Return the labels in groups that have nothing to do with each other."""
    parent = {label: label for label in space.decisions}

    def root(label: str) -> str:
        while parent[label] != label:
            label = parent[label]
        return label

    ties = [[label, *space.depends_on(label)] for label in space.decisions]
    ties += [[label for label in constraint.labels if label in parent] for constraint in space.constraints]
    for first, *others in filter(None, ties):
        for other in others:
            parent[root(other)] = root(first)
    groups: dict[str, list[str]] = {}
    for label in space.decisions:
        groups.setdefault(root(label), []).append(label)
    return list(groups.values())


class _Counting:
    def __init__(self, space: "Space", labels: list[str]) -> None:
        self._space, self._labels, self._visits = space, labels, 0
        deciding = {other for label in labels for other in space.depends_on(label)}
        self._constraints = [one for one in space.constraints if set(one.labels) & set(labels)]
        self._deciding = deciding | {label for one in self._constraints for label in one.labels}

    def run(self) -> int:
        """Count from the first label on."""
        return self._count(0, {})

    def _count(self, at: int, taken: Architecture) -> int:
        if at == len(self._labels):
            return int(all(constraint.satisfied(taken) for constraint in self._constraints))
        label = self._labels[at]
        if not self._space.exists(label, taken):
            return self._count(at + 1, taken)
        decision = self._space.decisions[label]
        if label not in self._deciding:
            return decision.count * self._count(at + 1, taken)
        self._visits += decision.count
        if self._visits > MOST_VISITS:
            raise ConfigError(
                f"the space cannot be counted: {len(self._labels)} decisions, {self._labels[0]!r} among them, are "
                "bound together by constraints or nesting"
            )
        return sum(self._count(at + 1, {**taken, label: option}) for option in decision.options())


ATTEMPTS = 1000
"""How often an architecture is drawn again that a constraint refuses."""

Pick = Callable[[Decision], Any]


class Space:
    """What is to be decided in a model.

    To make it gives every choice without a label the name of its place in the model; nothing else is changed. A
    decision inside of a candidate exists only where that candidate is taken.

    >>> from torch import nn
    >>> from treadle.nas import LayerChoice
    >>> model = nn.Sequential(LayerChoice([nn.Linear(2, 2), nn.Identity()], label="first"), nn.ReLU())
    >>> space = Space(model)
    >>> space.size(), space.default(), list(space.enumerate())
    (2, {'first': 0}, [{'first': 0}, {'first': 1}])

    Args:
        model: The model.

    Attributes:
        decisions: What is to be decided, by label; what others depend on comes first.
        choices: The modules that leave something open, with their places.
        values: The value choices that are used in the model, each with the module that uses it; None if it is an
            attribute of a plain module.
        constraints: What every architecture must satisfy.

    Raises:
        ConfigError: A label is used for different things.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = getattr(model, "_orig_mod", model)
        self.choices: dict[str, Choice] = {}
        self.values: list[tuple[ValueChoice, Choice | None]] = []
        self.constraints: list[Constraint] = []
        self._found: dict[str, Decision] = {}
        self._conditions: dict[str, list[Condition]] = {}
        self._seen: set[int] = set()
        self._walk(self.model, "", [{}], {})
        self.decisions: dict[str, Decision] = {label: self._found[label] for label in self._ordered()}
        for constraint in self.constraints:
            constraint.require_known(self.decisions)

    # Reading the model ------------------------------------------------------------------------------------

    def _walk(
        self, module: nn.Module, path: str, when: list[Condition], branches: Mapping[str, Sequence[Condition]]
    ) -> None:
        """Note the decisions of `module` and of all in it; `when` says which conditions lead here."""
        if path in branches:
            when = intersect_conditions(when, branches[path])
        if isinstance(module, Choice):
            self._note_choice(module, path, when)
            branches = {**branches, **{_joined(path, name): one for name, one in module.branches().items()}}
        self._note_attributes(module, path, when)
        self._seen.add(id(module))
        for name, child in module._modules.items():
            if child is not None:
                self._walk(child, _joined(path, name), when, branches)

    def _note_choice(self, choice: Choice, path: str, when: list[Condition]) -> None:
        if id(choice) not in self._seen:
            if not path and choice.label is None:
                raise ConfigError(f"the model itself is a {type(choice).__name__} without a label; give it label=...")
            choice.set_path(path)
            self.choices[path] = choice
        for decision in choice.decisions(path):
            self._add(decision, when)
        for name, leaf in choice.values():
            self._note_value(leaf, _joined(path, name), choice, when)

    def _note_attributes(self, module: nn.Module, path: str, when: list[Condition]) -> None:
        """Note value choices and constraints that a module has as attributes."""
        if isinstance(module, Choice):
            return
        for name, value in vars(module).items():
            if name in PRIVATE:
                continue
            for expression in find_expressions(value):
                for leaf in expression.leaves():
                    self._note_value(leaf, _joined(path, name), None, when)
            for constraint in _constraints_in(value):
                if id(constraint) not in self._seen:
                    self._seen.add(id(constraint))
                    self.constraints.append(constraint)

    def _note_value(self, leaf: Leaf, path: str, user: Choice | None, when: list[Condition]) -> None:
        if not isinstance(leaf, ValueChoice):
            return
        if id(leaf) not in self._seen:
            self._seen.add(id(leaf))
            leaf.set_path(path)
        self.values.append((leaf, user))
        self._add(leaf.decision(path), when)

    def _add(self, decision: Decision, when: list[Condition]) -> None:
        known = self._found.setdefault(decision.label, decision)
        if type(known) is not type(decision) or known.described() != decision.described():
            raise ConfigError(
                f"the label {decision.label!r} stands for {known.described()} at {known.place or 'the root'} and for "
                f"{decision.described()} at {decision.place or 'the root'}; give one of them another label, or both "
                "the same candidates"
            )
        own = self._conditions.setdefault(decision.label, [])
        # What depends on itself only says that it is used inside of its own candidate.
        own += [{label: values for label, values in one.items() if label != decision.label} for one in when]
        if {} in own:
            self._conditions[decision.label] = [{}]

    def _ordered(self) -> Iterator[str]:
        """Yield the labels so that whatever decides whether another exists comes before it."""
        done: set[str] = set()
        waiting: set[str] = set()

        def visit(label: str) -> Iterator[str]:
            if label in done or label in waiting:
                return
            waiting.add(label)
            for other in sorted({name for one in self._conditions[label] for name in one}):
                yield from visit(other)
            done.add(label)
            yield label

        for label in self._found:
            yield from visit(label)

    # Who decides ------------------------------------------------------------------------------------------

    @property
    def users(self) -> list[Choice | ValueChoice]:
        """All that asks a chooser: the choices, and the value choices that are used."""
        return [*self.choices.values(), *(leaf for leaf, _ in self.values)]

    def attach(self, chooser: Chooser) -> None:
        """Let `chooser` decide at every choice."""
        for user in self.users:
            user.chooser = chooser

    # Architectures ----------------------------------------------------------------------------------------

    def exists(self, label: str, architecture: Mapping[str, Any]) -> bool:
        """Whether a decision is to be made, given those before it."""
        return any(
            all(other in architecture and key_of(architecture[other]) in allowed for other, allowed in one.items())
            for one in self._conditions[label]
        )

    def depends_on(self, label: str) -> set[str]:
        """Return the labels that decide whether a decision exists."""
        return {other for one in self._conditions[label] for other in one}

    def decide(self, pick: Pick) -> Architecture:
        """Return the architecture that comes of asking `pick` for every decision that exists, in order.

        Constraints are not looked at; see `allows`.
        """
        architecture: Architecture = {}
        for label, decision in self.decisions.items():
            if self.exists(label, architecture):
                architecture[label] = normalize_value(decision, pick(decision))
        return architecture

    def allows(self, architecture: Architecture) -> bool:
        """Whether an architecture satisfies all constraints."""
        return all(constraint.satisfied(architecture) for constraint in self.constraints)

    def default(self) -> Architecture:
        """Return the architecture that the space forwards with as it is."""
        return self.decide(lambda decision: decision.default)

    def sample(self, chance: random.Random | int | None = None) -> Architecture:
        """Draw an architecture: each decision by its weights, again where a constraint says no.

        Args:
            chance: What to draw from, or a seed for it.
        """
        own = chance if isinstance(chance, random.Random) else random.Random(chance)
        return self._until_allowed(lambda: self.decide(lambda decision: decision.sample(own)))

    def _until_allowed(self, draw: Callable[[], Architecture]) -> Architecture:
        for _ in range(ATTEMPTS):
            architecture = draw()
            if self.allows(architecture):
                return architecture
        reasons = "; ".join(constraint.reason for constraint in self.constraints)
        raise ConfigError(f"none of {ATTEMPTS} architectures satisfied the constraints ({reasons}); make them wider")

    def mutated(self, architecture: Architecture, chance: random.Random, probability: float = 0.1) -> Architecture:
        """Return an architecture in which each decision was drawn again with a probability."""

        def pick(decision: Decision) -> Any:
            kept = decision.label in architecture and chance.random() >= probability
            return architecture[decision.label] if kept else decision.sample(chance)

        return self._until_allowed(lambda: self.decide(pick))

    def crossed(self, one: Architecture, other: Architecture, chance: random.Random) -> Architecture:
        """Return an architecture that has each decision from one of two parents."""

        def pick(decision: Decision) -> Any:
            parents = [parent for parent in (one, other) if decision.label in parent]
            return parents[chance.randrange(len(parents))][decision.label] if parents else decision.sample(chance)

        return self._until_allowed(lambda: self.decide(pick))

    def enumerate(self) -> Iterator[Architecture]:
        """Yield every architecture that the constraints allow, once."""
        return distinct_combinations(
            {label: one.options for label, one in self.decisions.items()}, self.exists, self.allows
        )

    def size(self) -> int:
        """Return how many different architectures there are.

        Decisions that nothing binds together are counted apart and multiplied. Of those that are bound, only the ones
        that others depend on are gone through value by value.

        Raises:
            ConfigError: Constraints or conditions bind so many decisions together that nobody could count them.
        """
        return math.prod(_Counting(self, labels).run() for labels in _bound_together(self))

    def complete(self, architecture: Mapping[str, Any]) -> Architecture:
        """Check an architecture and return it as plain data, without decisions that do not exist in it.

        Warns of labels that are unknown.

        Raises:
            ConfigError: A value is missing or cannot be taken, or a constraint is not satisfied; all are named.
        """
        taken: Architecture = {}
        problems: list[str] = []
        for label, decision in self.decisions.items():
            if not self.exists(label, taken):
                continue
            if label not in architecture:
                problems.append(f"{label!r} is missing; it takes one of {decision.described()}")
            elif not decision.contains(architecture[label]):
                problems.append(f"{label!r} is {architecture[label]!r}, not one of {decision.described()}")
            else:
                taken[label] = normalize_value(decision, architecture[label])
        if problems:
            raise ConfigError(f"the architecture does not fit {type(self.model).__name__}: {'; '.join(problems)}")
        for constraint in self.constraints:
            if not constraint.satisfied(taken):
                raise ConfigError(f"the architecture breaks a constraint: {constraint.reason}")
        self._warn_of_unknown(architecture)
        return taken

    def _warn_of_unknown(self, architecture: Mapping[str, Any]) -> None:
        for label in architecture:
            if label not in self.decisions:
                near = did_you_mean(label, self.decisions)
                warnings.warn(f"the architecture has {label!r}, which the space does not know{near}", stacklevel=3)


def sample(model: nn.Module, seed: random.Random | int | None = None) -> Architecture:
    """Draw an architecture of a model; see `Space.sample`."""
    return Space(model).sample(seed)


def enumerate(model: nn.Module) -> Iterator[Architecture]:
    """Yield every architecture of a model, once."""
    return Space(model).enumerate()


def size(model: nn.Module) -> int:
    """Return how many different architectures a model has."""
    return Space(model).size()


PRIVATE = frozenset(vars(nn.Module()))


def _joined(path: str, name: str) -> str:
    return ".".join(filter(None, [path, name]))


def _constraints_in(value: Any) -> list[Constraint]:
    if isinstance(value, Constraint):
        return [value]
    if isinstance(value, (list, tuple)):
        return [found for item in value for found in _constraints_in(item)]
    return []
