"""Tests with models of transformers need the extra `hf`; models are small, and made from configs."""

import importlib.util

from tests.cli.conftest import project, treadle

collect_ignore_glob = [] if importlib.util.find_spec("transformers") else ["test_*.py"]

__all__ = ["project", "treadle"]
