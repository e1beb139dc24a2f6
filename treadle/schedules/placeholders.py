"""Numbers that are known only once training starts, to be written into a scheduler factory before that.

>>> from functools import partial
>>> P = TrainerPlaceholderValues
>>> warmup = round(0.1 * P.NUM_EPOCHS * P.NUM_UPDATE_STEPS_PER_EPOCH)
>>> warmup
round(0.1 * NUM_EPOCHS * NUM_UPDATE_STEPS_PER_EPOCH)
>>> factory = replace_placeholders(
...     partial(dict, warmup_steps=warmup), {"NUM_EPOCHS": 3, "NUM_UPDATE_STEPS_PER_EPOCH": 40}
... )
>>> factory()
{'warmup_steps': 12}
"""

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from numbers import Real
from typing import TYPE_CHECKING, Any, NoReturn

from treadle.errors import ConfigError
from treadle.runs.interfaces import TrainerLike

if TYPE_CHECKING:
    # To a type checker it is the whole number that it becomes, so that it fits wherever a schedule takes one.
    _Number = int
else:
    _Number = object

RunNumbers = Mapping[str, int | float | None]

_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
}
_UNARY: dict[str, Callable[[Any], Any]] = {
    "-": operator.neg,
    "abs": abs,
    "int": int,
    "ceil": math.ceil,
    "floor": math.floor,
}
_NO_LENGTH = "the training data has no length; write the number into the factory in its place"
_REMEDIES = {
    "NUM_EPOCHS": "this run has no number of epochs; pass num_epochs= to train()",
    "NUM_UPDATE_STEPS_PER_EPOCH": _NO_LENGTH,
    "PER_PROCESS_NUM_UPDATE_STEPS_PER_EPOCH": _NO_LENGTH,
    "TRAIN_DATALOADER_LEN": _NO_LENGTH,
    "EVAL_DATALOADER_LEN": "this run has no evaluation data of known length; pass eval_dataset= to train()",
}
_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2, "//": 2, "%": 2, "**": 4}
_NEGATION = 3
_ATOM = 5


def _operator(
    symbol: str, reflected: bool = False
) -> Callable[["PlaceholderExpression", Any], "PlaceholderExpression"]:
    def operate(self: "PlaceholderExpression", other: Any) -> "PlaceholderExpression":
        if not isinstance(other, (Real, PlaceholderExpression)):
            return NotImplemented  # type: ignore[no-any-return]
        return _Binary(symbol, other, self) if reflected else _Binary(symbol, self, other)

    return operate


class PlaceholderExpression(_Number):
    """A number that is not known yet: a placeholder, or arithmetic on one.

    The operators `+ - * / // % **` take numbers and other placeholders on either side; `-x`, `abs`, `round`,
    `math.ceil` and `math.floor` work too. Truth, order and conversion to a number have no answer before
    training starts, and say so.
    """

    # Leaves `numpy_number * placeholder` to the operators below instead of making an object array of it.
    __array_ufunc__ = None

    def resolve(self, values: RunNumbers) -> int | float:
        """Return the number this stands for.

        Args:
            values: the number for each placeholder's name; None for one that this run does not have.

        Raises:
            ConfigError: a placeholder has no value in this run, or the arithmetic cannot be done.
        """
        raise NotImplementedError

    def as_int(self) -> "PlaceholderExpression":
        """Return this expression cut to a whole number, as `int(...)` would once the value is known.

        >>> (TrainerPlaceholderValues.NUM_EPOCHS / 2).as_int().resolve({"NUM_EPOCHS": 5})
        2
        """
        return _Unary("int", self)

    def _precedence(self) -> int:
        return _ATOM

    __add__, __radd__ = _operator("+"), _operator("+", reflected=True)
    __sub__, __rsub__ = _operator("-"), _operator("-", reflected=True)
    __mul__, __rmul__ = _operator("*"), _operator("*", reflected=True)
    __truediv__, __rtruediv__ = _operator("/"), _operator("/", reflected=True)
    __floordiv__, __rfloordiv__ = _operator("//"), _operator("//", reflected=True)
    __mod__, __rmod__ = _operator("%"), _operator("%", reflected=True)
    __pow__: Any = _operator("**")
    __rpow__: Any = _operator("**", reflected=True)

    def __neg__(self) -> "PlaceholderExpression":
        return _Unary("-", self)

    def __pos__(self) -> "PlaceholderExpression":
        return self

    def __abs__(self) -> "PlaceholderExpression":
        return _Unary("abs", self)

    def __round__(self, digits: Any = None) -> "PlaceholderExpression":
        return _Rounded(self, digits)

    def __ceil__(self) -> "PlaceholderExpression":
        return _Unary("ceil", self)

    def __floor__(self) -> "PlaceholderExpression":
        return _Unary("floor", self)

    def __trunc__(self) -> "PlaceholderExpression":
        return self.as_int()

    def __bool__(self) -> bool:
        self._refuse("is neither true nor false")

    def __int__(self) -> int:
        self._refuse("cannot become an int yet (its `.as_int()` can, later)")

    def __index__(self) -> int:
        self._refuse("cannot count or index anything yet")

    def __float__(self) -> float:
        self._refuse("cannot become a float yet")

    def __lt__(self, other: object) -> bool:
        self._refuse("cannot be compared")

    __le__ = __gt__ = __ge__ = __lt__

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Real):
            # False would be a lie as soon as training starts.
            self._refuse(f"cannot be compared with {other!r}")
        return isinstance(other, PlaceholderExpression) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def _refuse(self, why: str) -> NoReturn:
        raise ConfigError(
            f"{self!r} {why}: it is a placeholder, whose value is known only when training starts; "
            "pass it on inside functools.partial(...), where the trainer puts the number in its place"
        )


class TrainerPlaceholderValues(PlaceholderExpression, Enum):
    """The numbers of a run that a scheduler factory can ask for before the run exists.

    Steps are optimizer updates, which is what a scheduler counts: one for each window of micro-batches of this
    process. Both names for updates per epoch mean the same, on any number of processes.

    >>> P = TrainerPlaceholderValues
    >>> [placeholder.name for placeholder in P]  # doctest: +NORMALIZE_WHITESPACE
    ['NUM_EPOCHS', 'NUM_UPDATE_STEPS_PER_EPOCH', 'PER_PROCESS_NUM_UPDATE_STEPS_PER_EPOCH',
     'TRAIN_DATALOADER_LEN', 'EVAL_DATALOADER_LEN']
    >>> P.NUM_EPOCHS * P.NUM_UPDATE_STEPS_PER_EPOCH - 1
    NUM_EPOCHS * NUM_UPDATE_STEPS_PER_EPOCH - 1
    """

    NUM_EPOCHS = "NUM_EPOCHS"
    NUM_UPDATE_STEPS_PER_EPOCH = "NUM_UPDATE_STEPS_PER_EPOCH"
    PER_PROCESS_NUM_UPDATE_STEPS_PER_EPOCH = "PER_PROCESS_NUM_UPDATE_STEPS_PER_EPOCH"
    TRAIN_DATALOADER_LEN = "TRAIN_DATALOADER_LEN"
    EVAL_DATALOADER_LEN = "EVAL_DATALOADER_LEN"

    @classmethod
    def placeholder_set(cls) -> set[str]:
        """Return the names of all placeholders."""
        return {placeholder.name for placeholder in cls}

    def resolve(self, values: RunNumbers) -> int | float:
        """Return the number of this run that the placeholder stands for."""
        number = values.get(self.name)
        if number is None:
            raise ConfigError(f"the placeholder {self.name} has no value: {_REMEDIES[self.name]}")
        return number

    def __repr__(self) -> str:
        return self.name

    __str__ = __repr__


@dataclass(frozen=True, eq=False, repr=False)
class _Binary(PlaceholderExpression):
    """Two operands, at least one of them a placeholder, and the operator between them."""

    symbol: str
    left: Any
    right: Any

    def resolve(self, values: RunNumbers) -> int | float:
        left, right = _resolve_operand(self.left, values), _resolve_operand(self.right, values)
        try:
            result: int | float = _BINARY[self.symbol](left, right)
        except ArithmeticError as error:
            numbers = f"{left} {self.symbol} {right}"
            raise ConfigError(f"{self!r} cannot be calculated as {numbers}: {error}") from error
        return result

    def _precedence(self) -> int:
        return _PRECEDENCE[self.symbol]

    def __repr__(self) -> str:
        own = self._precedence()
        # Of two operators alike, the left one is done first; only a power is done from the right.
        left_limit, right_limit = (own + 1, own) if self.symbol == "**" else (own, own + 1)
        left, right = _operand_repr(self.left, left_limit), _operand_repr(self.right, right_limit)
        return f"{left} {self.symbol} {right}"


@dataclass(frozen=True, eq=False, repr=False)
class _Unary(PlaceholderExpression):
    """A function of one placeholder."""

    name: str
    operand: PlaceholderExpression

    def resolve(self, values: RunNumbers) -> int | float:
        result: int | float = _UNARY[self.name](self.operand.resolve(values))
        return result

    def _precedence(self) -> int:
        return _NEGATION if self.name == "-" else _ATOM

    def __repr__(self) -> str:
        if self.name == "-":
            return f"-{_operand_repr(self.operand, _NEGATION)}"
        return f"{self.name}({self.operand!r})"


@dataclass(frozen=True, eq=False, repr=False)
class _Rounded(PlaceholderExpression):
    """A placeholder rounded as the built-in `round` does: to a whole number, or to some digits."""

    operand: PlaceholderExpression
    digits: int | None

    def resolve(self, values: RunNumbers) -> int | float:
        return round(self.operand.resolve(values), self.digits)

    def __repr__(self) -> str:
        digits = "" if self.digits is None else f", {self.digits}"
        return f"round({self.operand!r}{digits})"


def _resolve_operand(operand: Any, values: RunNumbers) -> Any:
    return operand.resolve(values) if isinstance(operand, PlaceholderExpression) else operand


def _operand_repr(operand: Any, limit: int) -> str:
    if isinstance(operand, PlaceholderExpression):
        needs_parentheses = operand._precedence() < limit
    else:
        needs_parentheses = operand < 0
    return f"({operand!r})" if needs_parentheses else repr(operand)


def replace_placeholders(value: Any, values: RunNumbers) -> Any:
    """Return `value` with a number in the place of each placeholder inside it.

    It looks into the positional and keyword arguments of a `functools.partial`, into lists, tuples and the
    values of dicts, at any depth. What holds no placeholder is returned as it is, not copied. A placeholder
    in the body of a function cannot be seen from outside: give it to the function as an argument.

    Args:
        value: a factory, or anything that may hold placeholders.
        values: the number for each placeholder's name; None for one that this run does not have.

    >>> half = TrainerPlaceholderValues.NUM_EPOCHS // 2
    >>> replace_placeholders({"milestones": [half, 90]}, {"NUM_EPOCHS": 80})
    {'milestones': [40, 90]}
    """
    if isinstance(value, PlaceholderExpression):
        return value.resolve(values)
    if isinstance(value, partial):
        arguments = replace_placeholders(value.args, values)
        keywords = replace_placeholders(value.keywords, values)
        unchanged = arguments is value.args and keywords is value.keywords
        return value if unchanged else partial(value.func, *arguments, **keywords)
    if isinstance(value, dict):
        replaced = {key: replace_placeholders(item, values) for key, item in value.items()}
        return value if _same(replaced.values(), value.values()) else replaced
    if isinstance(value, (list, tuple)):
        items = [replace_placeholders(item, values) for item in value]
        return value if _same(items, value) else _rebuild(value, items)
    return value


def replace_trainer_placeholder_values(trainer: TrainerLike, instance: Any) -> Any:
    """Return `instance` with the numbers of the trainer's run in the place of placeholders; see `replace_placeholders`.

    Raises:
        ConfigError: The trainer has no run yet.
    """
    if trainer.run_config is None or trainer._train_dataloader is None:
        raise ConfigError(
            "the trainer has no run yet, so its placeholders have no values; replace them in create_scheduler or later"
        )
    return replace_placeholders(instance, values_in(trainer))


def _same(new: Any, old: Any) -> bool:
    return all(one is other for one, other in zip(new, old, strict=True))


def _rebuild(original: list[Any] | tuple[Any, ...], items: list[Any]) -> list[Any] | tuple[Any, ...]:
    if isinstance(original, list):
        return items
    named = hasattr(original, "_fields")
    return type(original)(*items) if named else tuple(items)


def values_in(trainer: TrainerLike) -> dict[str, int | None]:
    """Return what the placeholders in a scheduler factory stand for in the run of a trainer."""
    run = trainer.this_run
    config, settings, data = run.config, run.spec, run.data
    assert config is not None
    updates, epochs = config.num_local_update_steps_per_epoch, settings.num_epochs
    if epochs is None and settings.max_steps is not None and updates is not None:
        epochs = math.ceil(settings.max_steps / updates)
    values = {
        TrainerPlaceholderValues.NUM_EPOCHS: epochs,
        TrainerPlaceholderValues.NUM_UPDATE_STEPS_PER_EPOCH: updates,
        TrainerPlaceholderValues.PER_PROCESS_NUM_UPDATE_STEPS_PER_EPOCH: updates,
        TrainerPlaceholderValues.TRAIN_DATALOADER_LEN: data.training.length,
        TrainerPlaceholderValues.EVAL_DATALOADER_LEN: (None if data.evaluation is None else data.evaluation.length),
    }
    return {placeholder.name: value for placeholder, value in values.items()}
