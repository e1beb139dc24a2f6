"""Every error that Treadle raises on purpose.

```
TreadleError
├── ConfigError             (ValueError)      an argument or setting that cannot be meant
│   ├── ArgumentError       (TypeError)       a keyword argument that a function does not have
│   └── InstantiationError                    a target in a configuration that cannot be built
├── DataError               (ValueError)      a data set, loader or batch that cannot be trained on
├── LossError               (ValueError)      a loss that is no scalar, or that no gradient can flow through
├── CallbackError           (ValueError)      a callback given twice, or not a callback
│   └── UnknownEventError   (TypeError)       an `on_...` method that no event calls
├── UnknownMetricError      (ValueError)      a metric that nothing reported
├── CaptureError                              a step that cannot be recorded and replayed
├── NonFiniteError          (ArithmeticError) a loss or gradient that became nan or inf
├── CheckpointError                           a checkpoint that cannot be written, read or matched
│   └── StorageError                          a file that the system cannot read now, though it may be whole
└── MissingDependencyError  (ImportError)     an optional package that is not installed
StopTrainingError                             not an error: a callback's wish to end the run in good order
```
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any


class TreadleError(Exception):
    """The parent of every error that Treadle raises on purpose."""


class ConfigError(TreadleError, ValueError):
    """An argument or setting cannot be meant as given."""


class ArgumentError(ConfigError, TypeError):
    """A function was called with a keyword argument that it does not have."""


class DataError(TreadleError, ValueError):
    """A data set, loader or batch cannot be trained or evaluated on."""


class LossError(TreadleError, ValueError):
    """A loss is not a scalar, or no gradient can flow through it."""


class CallbackError(TreadleError, ValueError):
    """A callback was given twice, or is not a callback."""


class UnknownEventError(CallbackError, TypeError):
    """A callback class defines an `on_...` method that no event calls."""


class UnknownMetricError(TreadleError, ValueError):
    """A metric was asked for that nothing reported."""


class NonFiniteError(TreadleError, ArithmeticError):
    """A loss or a gradient became nan or infinite."""


class CaptureError(TreadleError):
    """A step cannot be recorded and replayed; the message says why and what to do."""


class CheckpointError(TreadleError):
    """A checkpoint cannot be written, read, or matched to this trainer."""


class StorageError(CheckpointError):
    """A file cannot be read now, for a reason that says nothing about what is in it."""


class MissingDependencyError(TreadleError, ImportError):
    """An optional package is not installed; the message names the extra that brings it."""


class StopTrainingError(Exception):
    """Raise it in a callback or method to end the run in good order, and for good; `train` then returns normally."""


def require_positive(name: str, value: Any, *, whole: bool = True) -> Any:
    """Return `value` if it is a number above 0.

    Args:
        name: What it is called, for the message.
        value: The number; a truth value is none.
        whole: Whether it must be a whole one.

    Raises:
        ConfigError: It is something else.
    """
    kinds = (int,) if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not value > 0:
        raise ConfigError(f"{name}={value!r} must be a {'whole ' if whole else ''}number above 0")
    return value


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """Return `"; did you mean 'x'?"` for the nearest candidate, or an empty string.

    Of short names, those with the same letters count as near, in whatever order and case.

    >>> did_you_mean("on_train_step_ends", ["on_train_step_end", "on_init_end"])
    "; did you mean 'on_train_step_end'?"
    >>> did_you_mean("BRP", ["Pop", "BPR"])
    "; did you mean 'BPR'?"
    >>> did_you_mean("xyz", ["on_init_end"])
    ''
    """
    known = list(candidates)
    near = get_close_matches(name, known, n=1, cutoff=0.75)
    near = near or [one for one in known if sorted(one.lower()) == sorted(name.lower())]
    return f"; did you mean {near[0]!r}?" if near else ""


def some_of(names: Sequence[str], most: int = 4) -> str:
    """Return names in a row, of many the first ones.

    >>> some_of(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def check_choice(name: str, value: object, choices: Collection[str], *, whose: str = "") -> None:
    """Make sure that a setting is one of several words.

    >>> check_choice("layout", "pears", ("lists", "pairs"))
    Traceback (most recent call last):
    treadle.errors.ConfigError: layout='pears' does not exist; did you mean 'pairs'?

    Args:
        name: The setting.
        value: What it is set to.
        choices: The words.
        whose: Behind what is wrong: for whom there is no such word, such as " for BPR".

    Raises:
        ConfigError: It is none of them.
    """
    if value not in choices:
        near = did_you_mean(str(value), choices) or f"; there are {list(choices)}"
        raise ConfigError(f"{name}={value!r} does not exist{whose}{near}")


# Packages that only some users need: where one is missing, the message names the extra that brings it


def require(package: str, *, extra: str, user: str) -> None:
    """Make sure that a package is installed, without loading it.

    >>> require("no_such_package", extra="plot", user="This")
    Traceback (most recent call last):
    treadle.errors.MissingDependencyError: This needs no_such_package; pip install 'treadle[plot]'

    Args:
        package: Its name, as it is imported.
        extra: The extra of Treadle that brings it.
        user: What needs it, for the message.

    Raises:
        MissingDependencyError: It is not installed.
    """
    if find_spec(package) is None:
        raise MissingDependencyError(_missing(package, extra, user))


@contextmanager
def importing(package: str, *, extra: str | None, user: str) -> Iterator[None]:
    """Let the import statements in the block fail in plain words.

    >>> with importing("no_such_package", extra="plot", user="This"):
    ...     import no_such_package.inner
    Traceback (most recent call last):
    treadle.errors.MissingDependencyError: This needs no_such_package; pip install 'treadle[plot]'

    Args:
        package: What is to be installed where they fail.
        extra: The extra of Treadle that brings it; None if no extra does.
        user: What needs it, for the message.

    Raises:
        MissingDependencyError: An import in the block failed.
    """
    try:
        yield
    except ImportError as error:
        raise MissingDependencyError(_missing(package, extra, user)) from error


def load_module(name: str) -> ModuleType:
    """Import a module of Treadle that is loaded when a name of it is first used.

    Raises:
        ImportError: It cannot be loaded; an error that Python would take for a name that is not there is its cause.
    """
    try:
        return import_module(name)
    except AttributeError as error:
        raise ImportError(f"{name} cannot be loaded here: AttributeError: {error}", name=name) from error


def _missing(package: str, extra: str | None, user: str) -> str:
    source = package if extra is None else f"'treadle[{extra}]'"
    return f"{user} needs {package}; pip install {source}"
