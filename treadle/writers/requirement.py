"""Optional packages: looked for where a writer is built, loaded where it first writes."""

from importlib.util import find_spec

from treadle.errors import MissingDependencyError


def require(package: str, *, extra: str, user: str) -> None:
    """Make sure that `package` is installed, without loading it.

    Raises:
        MissingDependencyError: It is not; the message names the extra that brings it.
    """
    if find_spec(package) is None:
        raise MissingDependencyError(f"{user} needs {package}; pip install 'treadle[{extra}]'")
