"""What judges a trial: a registered trainer, a lazy call of one, or a function."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from treadle.errors import ConfigError
from treadle.search.base_trainer import BaseTrainer
from treadle.search.recorded_names import Names
from treadle.search.recorded_values import decode, encode
from treadle.search.records import Record, is_recorded, reader, record_of, version_of
from treadle.search.subjects import is_lazy_call


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


def decoded_evaluator(data: Mapping[str, Any], names: Names) -> Evaluator:
    """Return what `encoded` wrote."""
    if "record" in data:
        return Recorded(Record.decoded(data["record"]))
    return Lazy(decode(data["call"], names)) if "call" in data else Function(decode(data["function"], names))


def evaluator_of(trainer: Any) -> Evaluator:
    """Return what judges a trial.

    Args:
        trainer: A registered trainer, as an object whose arguments are to be used or as a class with its defaults; a
            lazy call of a trainer or function without the model; or a function of the model that returns the result.

    Raises:
        ConfigError: It is none of these.
    """
    record = record_of(trainer)
    if record is not None:
        return Recorded(record)
    if is_lazy_call(trainer):
        first_argument(_target(trainer))
        return Lazy(trainer)
    if isinstance(trainer, type) and is_recorded(trainer):
        return Recorded(Record(trainer, {}, version_of(trainer)))
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
    from treadle.config.signatures import target_of

    target = target_of(call, load=True)
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
