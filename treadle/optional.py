"""Packages that only some users need: where one is missing, the message names the extra that brings it."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from treadle.errors import MissingDependencyError


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
def importing(package: str, *, extra: str, user: str) -> Iterator[None]:
    """Let the import statements in the block fail in plain words.

    >>> with importing("no_such_package", extra="plot", user="This"):
    ...     import no_such_package.inner
    Traceback (most recent call last):
    treadle.errors.MissingDependencyError: This needs no_such_package; pip install 'treadle[plot]'

    Args:
        package: What is to be installed where they fail.
        extra: The extra of Treadle that brings it.
        user: What needs it, for the message.

    Raises:
        MissingDependencyError: An import in the block failed.
    """
    try:
        yield
    except ImportError as error:
        raise MissingDependencyError(_missing(package, extra, user)) from error


def _missing(package: str, extra: str, user: str) -> str:
    return f"{user} needs {package}; pip install 'treadle[{extra}]'"
