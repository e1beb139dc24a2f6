"""What is served for the rest of a process is taken away after each test, which is not alone in its own."""

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def only_for_this_test(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forgets what the test imported from `recbole`, and who finds it."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.split(".")[0] == "recbole":
            del sys.modules[name]
