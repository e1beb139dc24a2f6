"""Optuna, which the search over trials stands on: loaded when a search begins, and missed in plain words."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from treadle.optional import importing


def optuna() -> Any:
    """Return the module `optuna`.

    Raises:
        MissingDependencyError: It is not installed.
    """
    with importing("optuna", extra="search", user="a search over trials"):
        import optuna
        import optuna.pruners
        import optuna.samplers
        import optuna.storages.journal
        import optuna.trial
    return optuna


@contextmanager
def quiet_optuna() -> Iterator[None]:
    """Keep Optuna from telling on the console what the search tells itself."""
    own = logging.getLogger("optuna")
    before = own.level
    own.setLevel(logging.WARNING)
    try:
        yield
    finally:
        own.setLevel(before)
