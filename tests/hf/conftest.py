"""Tests with models of transformers need the extra `hf`; models are small, and made from configs."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("transformers") else ["test_*.py"]

from tests.cli.conftest import project, treadle

__all__ = ["project", "treadle"]
