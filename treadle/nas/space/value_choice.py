"""Values that are still to be decided, and what can be calculated from them."""

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial
from itertools import product
from typing import Any, TypeVar

import torch

from treadle.errors import ConfigError
from treadle.nas.space.choosers import DEFAULTS, Chooser
from treadle.nas.space.decisions import Decision, Label, checked_weights, require_forward, undecided_error
from treadle.search.assignment import key_of, plain
from treadle.search.space.dimensions import Categorical, Dimension
from treadle.search.space.extension import OpenValue

FREEZE_KEY = "treadle.nas: the architecture that a copy is frozen to"
"""The entry of a copy's memo that holds the architecture; without it a copy is a copy."""

Read = Callable[["Leaf"], Any]
Kind = TypeVar("Kind")


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return list(one) == list(other)
    return bool(one == other)


def _differ(one: Any, other: Any) -> bool:
    return not _equal(one, other)


Operator = Callable[["Expression", Any], "Expression"]


def _operator(function: Callable[[Any, Any], Any], name: str) -> Operator:
    """Return the method for an operator with the expression on its left."""
    return lambda self, other: Combined(function, name, self, other)


def _both_ways(function: Callable[[Any, Any], Any], name: str) -> tuple[Operator, Operator]:
    """Return the methods for an operator with the expression on its left, and on its right."""
    return _operator(function, name), lambda self, other: Combined(function, name, other, self)


class Expression(OpenValue):
    """A value that depends on decisions: calculate with it as with a number.

    Comparisons give expressions too. Python's `and`, `or`, `if` need an answer at once and are refused: use `&`, `|`
    and `condition`. In a `forward`, `int(...)`, `float(...)` and `value_of(...)` give the value in force.
    """

    __hash__ = object.__hash__

    def leaves(self) -> list["Leaf"]:
        """Return the decisions it depends on, each once."""
        found = {id(leaf): leaf for leaf in self._leaves()}
        return list(found.values())

    def _leaves(self) -> Iterator["Leaf"]:
        raise NotImplementedError

    def compute(self, read: Read) -> Any:
        """Return the value, with each decision as `read` says."""
        raise NotImplementedError

    def evaluate(self, architecture: Mapping[str, Any]) -> Any:
        """Return the value under an architecture."""
        return self.compute(lambda leaf: leaf.taken_from(architecture))

    def value(self) -> Any:
        """Return the value in force: that of the defaults, unless a trainer chooses."""
        return self.compute(lambda leaf: leaf.chooser.value(leaf))

    def dimensions(self, label: str) -> list[Dimension]:
        """Return what there is to decide where it stands in a config.

        Raises:
            ConfigError: It depends on a choice of a model.
        """
        found: list[Dimension] = []
        for leaf in self.leaves():
            if not isinstance(leaf, ValueChoice):
                raise ConfigError(f"{label}: {leaf!r} belongs to a model; in a config, use one_of(...) or ValueChoice")
            if leaf.label is None:
                leaf.set_path(label)
            decision = leaf.decision(label)
            found.append(Categorical(decision.label, decision.candidates, decision.weights))
        return found

    def assignments(self) -> Iterator[tuple[dict[str, Any], Any]]:
        """Yield every combination of the decisions, by label, with the value that comes of it."""
        return assignments(self)

    def grid(self) -> list[Any]:
        """Return every value that it can have, each once, in the order of the candidates.

        >>> width = ValueChoice([16, 32, 64], label="width")
        >>> (width // 2 + 1).grid()
        [9, 17, 33]
        """
        found = {key_of(value): value for _, value in self.assignments()}
        return list(found.values())

    def __int__(self) -> int:
        self._require_forward()
        return int(self.value())

    def __index__(self) -> int:
        self._require_forward()
        return operator.index(self.value())

    def __float__(self) -> float:
        self._require_forward()
        return float(self.value())

    def __iter__(self) -> Iterator[Any]:
        self._require_forward()
        return iter(self.value())

    @property
    def __torch_function__(self) -> Any:
        """What torch calls instead of a function that gets it as an argument: a refusal where a model is being built.

        Torch asks for it before it asks for `__index__`, whose refusal it would hide behind words of its own about
        tuples of integers. In a forward there is nothing to call, and torch uses the value.
        """
        try:
            self._require_forward()
        except ConfigError as error:
            return partial(_refuse, error)
        return torch._C._disabled_torch_function_impl

    def __bool__(self) -> bool:
        raise undecided_error(self._described())

    def _require_forward(self) -> None:
        require_forward(self._described(), placed=all(leaf.placed for leaf in self.leaves()))

    def _described(self) -> str:
        """Return what there is to decide, for messages: an expression of a layer's own making says nothing."""
        return " and ".join(repr(leaf) for leaf in self.leaves()) or repr(self)

    def __deepcopy__(self, memo: dict[Any, Any]) -> Any:
        """Return a copy, or the value if the copy is a frozen network."""
        if FREEZE_KEY in memo:
            return self.evaluate(memo[FREEZE_KEY])
        return copy_module(self, memo)

    __add__, __radd__ = _both_ways(operator.add, "+")
    __sub__, __rsub__ = _both_ways(operator.sub, "-")
    __mul__, __rmul__ = _both_ways(operator.mul, "*")
    __truediv__, __rtruediv__ = _both_ways(operator.truediv, "/")
    __floordiv__, __rfloordiv__ = _both_ways(operator.floordiv, "//")
    __mod__, __rmod__ = _both_ways(operator.mod, "%")
    __pow__, __rpow__ = _both_ways(operator.pow, "**")
    __and__, __rand__ = _both_ways(operator.and_, "&")
    __or__, __ror__ = _both_ways(operator.or_, "|")
    __eq__ = _operator(_equal, "==")  # type: ignore[assignment]
    __ne__ = _operator(_differ, "!=")  # type: ignore[assignment]
    __lt__ = _operator(operator.lt, "<")
    __le__ = _operator(operator.le, "<=")
    __gt__ = _operator(operator.gt, ">")
    __ge__ = _operator(operator.ge, ">=")

    def __neg__(self) -> "Expression":
        return Combined(operator.neg, "neg", self)

    def __abs__(self) -> "Expression":
        return Combined(abs, "abs", self)

    def __invert__(self) -> "Expression":
        return Combined(operator.not_, "not", self)


class Leaf(Label, Expression):
    """An expression that is one decision.

    Args:
        label: Its name; None takes one from the place where it is used.
    """

    def __init__(self, label: str | None) -> None:
        self.label = label
        self.chooser: Chooser = DEFAULTS

    default: Any = None
    """The value of a space that nobody decided on."""

    @property
    def candidates(self) -> tuple[Any, ...]:
        """The values it can take."""
        raise NotImplementedError

    def as_given(self, value: Any) -> Any:
        """Return a value of an architecture as it was given among the candidates."""
        return value

    def taken_from(self, architecture: Mapping[str, Any]) -> Any:
        """Return its value in an architecture.

        Raises:
            ConfigError: There is none.
        """
        if self.key not in architecture:
            raise ConfigError(f"the architecture says nothing of {self.key!r}; it has {sorted(architecture)}")
        return self.as_given(architecture[self.key])

    def _leaves(self) -> Iterator["Leaf"]:
        yield self

    def compute(self, read: Read) -> Any:
        """Return its value."""
        return read(self)


class ValueChoice(Leaf):
    """A choice between plain values, to be used as an argument of a module or in an expression.

    >>> width = ValueChoice([16, 32], label="width")
    >>> (width * 2 + 1).evaluate({"width": 32})
    65

    Args:
        candidates: The values: numbers, strings, or lists of them.
        label: Its name; by default the place of the first module that uses it, with the argument's name.
        default: The value of a space that nobody decided on; by default the first.
        weights: How likely each is when architectures are drawn.
    """

    def __init__(
        self,
        candidates: Sequence[Any],
        label: str | None = None,
        *,
        default: Any = None,
        weights: Sequence[float] | None = None,
    ) -> None:
        super().__init__(label)
        values = tuple(candidates)
        if not values:
            raise ConfigError(f"ValueChoice {label or ''} has no candidates; give it at least one")
        keys = [key_of(value) for value in values]
        if len(set(keys)) < len(keys):
            raise ConfigError(f"ValueChoice {label or ''}: {list(values)} holds a value twice; leave one out")
        self._values = values
        self._by_key = dict(zip(keys, values, strict=True))
        self.default = values[0] if default is None else default
        self.weights = checked_weights(weights, len(values), f"ValueChoice {label or ''}")
        if key_of(self.default) not in keys:
            raise ConfigError(f"ValueChoice {label or ''}: default={default!r} is none of {list(values)}")

    @property
    def candidates(self) -> tuple[Any, ...]:
        """The values it can take, as they were given."""
        return self._values

    def decision(self, place: str) -> Decision:
        """Return what there is to decide."""
        values = tuple(plain(value) for value in self._values)
        return Decision(self.key, values, plain(self.default), place, self.weights)

    def as_given(self, value: Any) -> Any:
        """Return a value as it was given: a tuple even if JSON made a list of it."""
        try:
            return self._by_key[key_of(value)]
        except KeyError:
            raise ConfigError(f"{self.current_label!r} is {value!r}, which is none of {list(self._values)}") from None

    def __repr__(self) -> str:
        return f"ValueChoice({list(self._values)!r}, label={self.label!r})"


class Constant(Expression):
    """A value that is decided already, where an expression is asked for.

    Args:
        value: The value.
    """

    def __init__(self, value: Any) -> None:
        self._value = value

    def _leaves(self) -> Iterator[Leaf]:
        return iter(())

    def compute(self, read: Read) -> Any:
        """Return the value."""
        return self._value

    def __repr__(self) -> str:
        return repr(self._value)


class Combined(Expression):
    """A function of expressions and plain values."""

    def __init__(self, function: Callable[..., Any], name: str, *operands: Any) -> None:
        self._function, self._name, self._operands = function, name, operands

    def _leaves(self) -> Iterator[Leaf]:
        for operand in self._operands:
            if isinstance(operand, Expression):
                yield from operand._leaves()

    def compute(self, read: Read) -> Any:
        """Return the value of the function."""
        return self._function(*(one.compute(read) if isinstance(one, Expression) else one for one in self._operands))

    def __repr__(self) -> str:
        return f"{self._name}({', '.join(map(repr, self._operands))})"


def apply(function: Callable[..., Any], *operands: Any) -> Expression:
    """Return the expression `function(*operands)`, whatever the function.

    >>> apply(lambda width: (width + 7) // 8 * 8, ValueChoice([12, 30], label="width")).grid()
    [16, 32]
    """
    return Combined(function, getattr(function, "__name__", "function"), *operands)


def maximum(*operands: Any) -> Expression:
    """Return the largest of some values or expressions."""
    return Combined(max, "maximum", *operands)


def minimum(*operands: Any) -> Expression:
    """Return the smallest of some values or expressions."""
    return Combined(min, "minimum", *operands)


def condition(test: Any, if_true: Any, if_false: Any) -> Expression:
    """Return one of two values or expressions, as `test` turns out.

    >>> depth = ValueChoice([1, 4], label="depth")
    >>> condition(depth > 2, "deep", "flat").grid()
    ['flat', 'deep']
    """
    return Combined(lambda test, one, other: one if test else other, "condition", test, if_true, if_false)


def to_int(operand: Any) -> Expression:
    """Return a value or expression as a whole number."""
    return Combined(int, "to_int", operand)


def to_float(operand: Any) -> Expression:
    """Return a value or expression as a floating-point number."""
    return Combined(float, "to_float", operand)


def value_of(value: Any) -> Any:
    """Return the value in force of an expression, and anything else as it is.

    Raises:
        ConfigError: It is asked for where a model is being built, which would keep the value of the defaults.
    """
    if not isinstance(value, Expression):
        return value
    value._require_forward()
    return value.value()


def find_expressions(value: Any) -> list[Expression]:
    """Return the expressions in a value and in the lists, tuples and dicts of it."""
    if isinstance(value, Expression):
        return [value]
    if isinstance(value, (list, tuple)):
        return [found for item in value for found in find_expressions(item)]
    if isinstance(value, Mapping):
        return [found for item in value.values() for found in find_expressions(item)]
    return []


def computed(value: Any, read: Read) -> Any:
    """Return a value with every expression in it, also inside of lists, tuples and dicts, as `read` decides it."""
    if isinstance(value, Expression):
        return value.compute(read)
    if isinstance(value, (list, tuple)) and find_expressions(value):
        return type(value)(computed(item, read) for item in value)
    if isinstance(value, Mapping) and find_expressions(value):
        return {key: computed(item, read) for key, item in value.items()}
    return value


def assignments(value: Any) -> Iterator[tuple[dict[str, Any], Any]]:
    """Yield every combination of the decisions in a value, by label, with the value that comes of it."""
    leaves = {_token(leaf): leaf for one in find_expressions(value) for leaf in one.leaves()}
    for values in product(*(leaf.candidates for leaf in leaves.values())):
        taken = dict(zip(leaves, values, strict=True))
        yield taken, computed(value, partial(_look_up, taken))


def _look_up(taken: Mapping[str, Any], leaf: Leaf) -> Any:
    return taken[_token(leaf)]


def _token(leaf: Leaf) -> str:
    """Return what tells decisions apart; one that has no label yet is told from others by himself."""
    return leaf.current_label or f"#{id(leaf)}"


def copy_module(value: Kind, memo: dict[Any, Any]) -> Kind:
    """Return a copy as `deepcopy` makes it of an object without a say in the matter."""
    copy = object.__new__(type(value))
    memo[id(value)] = copy
    vars(copy).update(deepcopy(vars(value), memo))
    return copy


def _refuse(error: ConfigError, *_: Any, **__: Any) -> None:
    raise error
