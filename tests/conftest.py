"""What holds for every test: nothing waits for the disk, and nobody searches what was imported for garbage."""

import gc
import os
from collections.abc import Iterator

import pytest

from tests.forking.pages import keep_freed_memory, use_large_pages


def pytest_configure() -> None:
    """Look for no garbage while tests are collected: hardly anything that is made then ever becomes some."""
    gc.disable()
    keep_freed_memory()


def pytest_collection_finish() -> None:
    """Look for garbage among what tests make, and leave modules and tests themselves alone."""
    gc.freeze()
    gc.enable()
    # By default, a search for garbage in all that tests keep (syntax trees, loaded files) comes every few hundred tests
    # and takes a second.
    gc.set_threshold(20_000, 20, 20)
    # Of what is imported by now, every worker that fetches data is a fork.
    use_large_pages()


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_the_disk() -> Iterator[None]:
    """Leave data in the memory of the machine, which outlives every process that is killed here.

    When something is forced out, and what follows where that fails, is tested by functions in the place of this one.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield
