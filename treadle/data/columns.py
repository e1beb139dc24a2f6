"""Columns of a data set that a model of transformers does not take, left out before rows are joined into batches."""

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from treadle.errors import DataError
from treadle.runs.pretrained import base_model

LABELS = frozenset({"label", "label_ids", "labels"})
"""Columns that collators of transformers make labels of, whatever the model calls them."""


def without_unused(data: Any, model: nn.Module, collate_fn: Any, tell: Callable[[str], object]) -> Any:
    """Return a data set of `datasets` with the columns that a model of transformers takes; other data as it is.

    Collators of transformers make a tensor of every column, and would fail at text; a function of one's own gets all
    columns, since it may make something of them.

    Args:
        data: The data.
        model: The model.
        collate_fn: What joins rows into batches; None for torch's own way.
        tell: Called with a line that names what is left out.

    Raises:
        DataError: The model takes none of the columns.
    """
    base = base_model(model)
    if not _has_columns(data) or not hasattr(base, "main_input_name") or not _takes_every_column(collate_fn):
        return data
    taken = {*inspect.signature(base.forward).parameters, *LABELS}
    shown = list(data.format["columns"])
    unused = [name for name in shown if name not in taken]
    name = type(base).__name__
    if len(unused) == len(shown):
        raise DataError(
            f"{name} takes none of the columns {unused}; map a tokenizer over the data set, or pass a collate_fn= "
            "that makes inputs of them"
        )
    if not unused:
        return data
    tell(f"columns {', '.join(unused)} of the data are left out: {name} takes no such input")
    return data.remove_columns(unused)


def _has_columns(data: Any) -> bool:
    """Whether data is a data set of `datasets` whose rows can be asked for by their index."""
    return all(hasattr(data, name) for name in ("column_names", "remove_columns", "format", "__len__"))


def _takes_every_column(collate_fn: Any) -> bool:
    if collate_fn is None:
        return True
    module = getattr(collate_fn, "__module__", None) or type(collate_fn).__module__
    return str(module).partition(".")[0] == "transformers"
