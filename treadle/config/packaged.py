"""The configs that come with Treadle."""

from importlib.resources import as_file, files
from pathlib import Path, PurePosixPath
from typing import Any

from treadle.config.files import SUFFIXES, load
from treadle.errors import ConfigError, did_you_mean


def get_config(name: str) -> Any:
    """Return a config that comes with Treadle, as a copy of your own.

    >>> train = get_config("common/train.py").train
    >>> train.update(train_iter=5000, evaluation={"eval_period": 500}, amp={"enabled": True})
    >>> train.evaluation.eval_metric
    'Acc@1'

    Args:
        name: the path of the file among these configs.

    Raises:
        ConfigError: there is none with this name; the message lists those that are there.
    """
    with as_file(files("treadle.config") / "configs") as folder:
        names = config_names(folder)
        if name not in names:
            near = did_you_mean(name, names) or f"; it has {names}"
            raise ConfigError(f"Treadle comes with no config {name!r}{near}")
        return load(folder / PurePosixPath(name))


def config_names(folder: Path) -> list[str]:
    """Return the names of the config files in a folder and those below it."""
    found = [file for file in folder.rglob("*") if file.suffix in SUFFIXES]
    return sorted(file.relative_to(folder).as_posix() for file in found)
