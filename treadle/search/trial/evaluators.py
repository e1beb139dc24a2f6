"""What judges a trial: a registered trainer, a lazy call of one, or a function."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from treadle.errors import ConfigError
from treadle.search.encoding import RecordedNames, decode, encode
from treadle.search.recorded_calls import (
    Record,
    find_record,
    is_recorded,
    reader,
    record_version_number,
    remember_calls,
)
from treadle.search.space.config_space import is_lazy_call

# Classic trainers: each trains and evaluates one network, and tells the search how good it is


Trainer = TypeVar("Trainer", bound=type)


class BaseTrainer(ABC):
    """The parent of trainers that train one network from scratch, as one trial of a search.

    It holds no state, so a subclass need not call `super().__init__()`. The constructor takes the model first; all
    other arguments have names. `fit` trains, evaluates, and reports.

    >>> from treadle import nas
    >>> @nas.register_trainer
    ... class Guess(nas.BaseTrainer):
    ...     def __init__(self, model, rate=0.1):
    ...         self.model, self.rate = model, rate
    ...     def fit(self):
    ...         nas.report_final_result(self.rate)
    >>> Guess(None).fit()
    """

    @abstractmethod
    def fit(self) -> Any:
        """Train and evaluate the model; report with `nas.report_final_result`."""


def register_trainer(kind: Trainer) -> Trainer:
    """Register a trainer for searches: its objects remember their arguments, so that each trial can have its own.

    The class stays as it is. All arguments but the first, the model, are recorded by name, with their defaults; those
    that are lazy calls are made for the constructor. An argument that another process could not make again is refused
    when the trainer is built, by name.

    Args:
        kind: A subclass of `BaseTrainer`.

    Raises:
        ConfigError: It is no subclass of `BaseTrainer`, or its constructor does not take a model first.
    """
    if not (isinstance(kind, type) and issubclass(kind, BaseTrainer)):
        raise ConfigError(f"@nas.register_trainer is for subclasses of nas.BaseTrainer, got {kind!r}")
    parameters = list(inspect.signature(kind).parameters.values())
    unnamed = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    if not parameters or parameters[0].kind in unnamed:
        raise ConfigError(
            f"{kind.__qualname__}{inspect.signature(kind)} must take the model as its first argument: "
            "def __init__(self, model, ...)"
        )
    remember_calls(kind, skip=1)
    return kind


@dataclass(frozen=True)
class Recorded:
    """A registered trainer, by the arguments that it was made with.

    Attributes:
        record: Its record.
    """

    record: Record

    def evaluate(self, model: Any) -> Any:
        """Train a model, and return what `fit` returns."""
        return self.record.make(reader(), model).fit()

    def encoded(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {"record": self.record.encoded()}


@dataclass(frozen=True)
class Lazy:
    """A lazy call of a trainer or of a function, without its first argument, the model.

    Attributes:
        call: It, with a value in the place of every domain.
    """

    call: Any

    def evaluate(self, model: Any) -> Any:
        """Make the call with a model; if it makes a trainer, let that train."""
        from treadle.config import instantiate

        made = instantiate(self.call, **{first_argument(_target(self.call)): model})
        return made.fit() if isinstance(made, BaseTrainer) else made

    def encoded(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {"call": encode(self.call, "the trainer")}


@dataclass(frozen=True)
class Function:
    """A function of the model.

    Attributes:
        function: It; what it returns is the result.
    """

    function: Callable[[Any], Any]

    def evaluate(self, model: Any) -> Any:
        """Call it."""
        return self.function(model)

    def encoded(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {"function": encode(self.function, "the trainer")}


Evaluator = Recorded | Lazy | Function


def decode_evaluator(data: Mapping[str, Any], names: RecordedNames) -> Evaluator:
    """Return what `encoded` wrote."""
    if "record" in data:
        return Recorded(Record.decoded(data["record"]))
    return Lazy(decode(data["call"], names)) if "call" in data else Function(decode(data["function"], names))


def make_evaluator(trainer: Any) -> Evaluator:
    """Return what judges a trial.

    Args:
        trainer: A registered trainer, as an object whose arguments are to be used or as a class with its defaults; a
            lazy call of a trainer or function without the model; or a function of the model that returns the result.

    Raises:
        ConfigError: It is none of these.
    """
    record = find_record(trainer)
    if record is not None:
        return Recorded(record)
    if is_lazy_call(trainer):
        first_argument(_target(trainer))
        return Lazy(trainer)
    if isinstance(trainer, type) and is_recorded(trainer):
        return Recorded(Record(trainer, {}, record_version_number(trainer)))
    unregistered = trainer if isinstance(trainer, type) else type(trainer)
    if issubclass(unregistered, BaseTrainer):
        name = unregistered.__qualname__
        raise ConfigError(f"{name} is not registered; decorate the class with @nas.register_trainer")
    if callable(trainer) and not isinstance(trainer, type):
        return Function(trainer)
    raise ConfigError(
        f"the trainer is {trainer!r}; give a registered trainer, a LazyCall of one, or a function of the model that "
        "returns the result"
    )


def _target(call: Any) -> Any:
    from treadle.config.signatures import call_target

    target = call_target(call, load=True)
    if target is None:
        raise ConfigError("the trainer is a lazy call of a lazy call; name the class or function itself")
    return target


def first_argument(target: Any) -> str:
    """Return the name of the argument that the model is given as.

    Raises:
        ConfigError: There is none.
    """
    names = [
        name for name, one in inspect.signature(target).parameters.items() if one.kind is one.POSITIONAL_OR_KEYWORD
    ]
    if not names:
        raise ConfigError(f"{target.__qualname__} takes no argument by name; the first one must be the model")
    return names[0]
