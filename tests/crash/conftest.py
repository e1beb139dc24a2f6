"""The run that every killed one is compared with."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.attempts import finish
from tests.crash.program import Options

Uninterrupted = Callable[..., Path]


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Uninterrupted:
    """A function that returns the folder of a run with these options that nobody disturbed."""
    folders: dict[str, Path] = {}

    def folder_of(**options: object) -> Path:
        key = repr(sorted(options.items()))
        if key not in folders:
            folder = tmp_path_factory.mktemp("uninterrupted")
            finish(Options(folder=folder, **options))  # type: ignore[arg-type]
            folders[key] = folder
        return folders[key]

    return folder_of
