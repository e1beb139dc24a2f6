"""Small data sets and models without weights, for the tests of settings and data."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from treadle.data import data_folder
from treadle.errors import DataError
from treadle.recsys import Config, Dataset, InputType, ModelType, create_dataset


class General:
    """A model of pairs."""

    type = ModelType.GENERAL
    input_type = InputType.PAIRWISE


class PointWise:
    """A model of rows with labels."""

    type = ModelType.GENERAL
    input_type = InputType.POINTWISE


class ListWise:
    """A model of an item against several."""

    type = ModelType.GENERAL
    input_type = InputType.LISTWISE


class UserWise:
    """A model of whole histories."""

    type = ModelType.GENERAL
    input_type = InputType.USERWISE


class Sequential:
    """A model of what comes next; its batches follow from `loss_type`."""

    type = ModelType.SEQUENTIAL


class Context:
    """A model of clicks."""

    type = ModelType.CONTEXT
    input_type = InputType.POINTWISE


def write_table(folder: Path, name: str, header: Sequence[str], rows: Iterable[Sequence[Any]], sep: str = "\t") -> Path:
    """Write an atomic file, or any other separated text, and return where it is."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    lines = [sep.join(header), *(sep.join("" if value is None else str(value) for value in row) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def settings(folder: Path, **given: Any) -> dict[str, Any]:
    """Return settings that read everything from the data set `toy` in `folder`, and ask for few items."""
    return {"data_path": str(folder), "load_col": None, "topk": [1], "valid_metric": "MRR@1", **given}


def toy_config(folder: Path, model: Any = General, **given: Any) -> Config:
    """Return the config of the data set `toy` in `folder`."""
    return Config(model, "toy", config_dict=settings(folder, **given))


INTER = ("user_id:token", "item_id:token", "rating:float", "timestamp:float")


def toy_dataset(folder: Path, rows: Iterable[Sequence[Any]], model: Any = General, **given: Any) -> Dataset:
    """Write interactions (user, item, rating, time) and return the data set made of them."""
    write_table(folder / "toy", "toy.inter", INTER, rows)
    return create_dataset(toy_config(folder, model, **given))


def tokens(dataset: Dataset) -> list[tuple[str, str]]:
    """Return the user and item of every interaction, as tokens."""
    users, items = dataset.user_item_pairs()
    pairs = zip(dataset.id2token("user_id", users), dataset.id2token("item_id", items), strict=True)
    return [(str(user), str(item)) for user, item in pairs]


def real_folder(name: str) -> Path:
    """Return the folder of a real data set; without it, skip the test that asks."""
    try:
        return data_folder(name)
    except DataError as error:
        pytest.skip(f"a real data set is needed: {error}")
