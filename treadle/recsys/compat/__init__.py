"""The bridge from RecBole: its models, and files written for it, run here with their source unchanged."""

from treadle.recsys.compat.checkpoint import ImportedCheckpoint, import_checkpoint
from treadle.recsys.compat.models import (
    get_model,
    install_names,
    load_model,
    model_hint,
    recbole_models,
    recbole_names,
    resolve,
)
from treadle.recsys.compat.package import find_package

__all__ = [
    "ImportedCheckpoint",
    "find_package",
    "get_model",
    "import_checkpoint",
    "install_names",
    "load_model",
    "model_hint",
    "recbole_models",
    "recbole_names",
    "resolve",
]
