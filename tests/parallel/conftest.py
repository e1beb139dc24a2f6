"""Launches of real process groups, shared by all tests of a session."""

import os
from collections.abc import Callable
from functools import partial

import pytest

from tests.parallel.launching import Results, launch

Launch = Callable[..., Results]


@pytest.fixture(scope="session")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """A function that runs a program, or gives the results of the run that another test asked for."""
    base = tmp_path_factory.getbasetemp()
    # The workers of pytest-xdist have folders of their own inside one that they share.
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    return partial(launch, shared / "parallel")
