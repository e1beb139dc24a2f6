"""What is served for the rest of a process is taken away after each test, which is not alone in its own."""

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

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


@pytest.fixture
def config_class(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A class by the name of RecBole's Config, as long as a file is written."""
    module = ModuleType("recbole.config.configurator")
    kind = type("Config", (), {"__module__": module.__name__})
    module.Config = kind  # type: ignore[attr-defined]
    for name in ("recbole", "recbole.config"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return kind
