"""Classic trainers: each trains and evaluates one network, and tells the search how good it is."""

import inspect
from abc import ABC, abstractmethod
from typing import Any, TypeVar

from treadle.errors import ConfigError
from treadle.search.records import remember_calls

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
