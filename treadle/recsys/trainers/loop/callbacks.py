"""Callbacks that settings name, and those that can do nothing in a training of recommenders."""

from collections.abc import Iterable, Mapping
from typing import Any

from treadle import callbacks
from treadle.callback import TrainerCallback
from treadle.callbacks import (
    LimitEvalStepsCallback,
    SaveTrainingStateCallback,
    StepBasedEvaluationCallback,
    WSDCheckpointCallback,
)
from treadle.errors import ConfigError, did_you_mean

REFUSED: dict[type, str] = {
    LimitEvalStepsCallback: "an evaluation is of all users that it is asked for; give fit less valid_data",
    StepBasedEvaluationCallback: "evaluations come at the ends of epochs; set eval_step",
    SaveTrainingStateCallback: "a training keeps itself in run_dir, and resumes by resume_checkpoint; set save_every",
    WSDCheckpointCallback: "the rates follow no WSDLrScheduler; set save_every, and resume by resume_checkpoint",
}
"""Each class, which its subclasses share, with the reason."""


def callbacks_named(settings: Any) -> list[Any]:
    """Return the callbacks that the setting `callbacks` names, in order.

    >>> [type(one).__name__ for one in callbacks_named(["ThroughputMonitor", {"StepTimer": {"every": 5}}])]
    ['ThroughputMonitor', 'StepTimer']

    Args:
        settings: For each the name of one of `treadle.callbacks`, or the full name of a class; or a mapping of that to
            its arguments. None names none.

    Raises:
        ConfigError: There is no such callback, or it does not take the arguments.
    """
    if settings is None:
        return []
    if isinstance(settings, (str, Mapping)) or not isinstance(settings, Iterable):
        raise ConfigError(f"callbacks={settings!r} must be a list: of names, or of mappings of a name to its arguments")
    found = []
    for place, entry in enumerate(settings):
        named = {entry: None} if isinstance(entry, str) else entry
        if not isinstance(named, Mapping) or len(named) != 1:
            raise ConfigError(
                f"callbacks[{place}]={entry!r} must be a name, or a mapping of one name to its arguments; those that "
                "are built already go into trainer.callbacks"
            )
        ((name, arguments),) = named.items()
        found.append(_built(f"callbacks[{place}]", str(name), arguments or {}))
    return found


def _built(place: str, name: str, arguments: Mapping[str, Any]) -> Any:
    if "." in name:
        # What finds names brings the libraries of configs along, which this door does without.
        from treadle.config.targets import locate

        kind = locate(name)
    elif name in callbacks.__all__:
        kind = getattr(callbacks, name)
    else:
        near = did_you_mean(name, callbacks.__all__) or "; give the name of one of treadle.callbacks, or a full name"
        raise ConfigError(f"{place}: there is no callback {name!r}{near}")
    if not isinstance(kind, type) or not issubclass(kind, TrainerCallback):
        raise ConfigError(f"{place}: {name} is no class of callbacks; derive it from TrainerCallback")
    try:
        return kind(**arguments)
    except TypeError as error:
        raise ConfigError(f"{place}: {error}") from error


def refuse_idle(given: Iterable[Any]) -> None:
    """Refuse callbacks, or classes of them, that would have no effect.

    Raises:
        ConfigError: One would not; the message has the reason.
    """
    for one in given:
        kind = one if isinstance(one, type) else type(one)
        for refused, reason in REFUSED.items():
            if issubclass(kind, refused):
                raise ConfigError(f"{kind.__name__} does nothing in a training of recommenders: {reason}")
