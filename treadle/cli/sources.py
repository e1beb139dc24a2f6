"""The config that a command is about: a file, that of a run, or one that comes with Treadle."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.errors import ConfigError
from treadle.run_place import require_folder

if TYPE_CHECKING:
    from treadle.config import ConfigDict

CONFIG_FILE = "config.yaml"
UNNAMED = "./output"
"""The output_dir of `common/train.py`, which stands for none."""

FAST: dict[str, Any] = {
    "train_iter": 6,
    "train_epoch": 0,
    "log_period": 1,
    "checkpointer": {"period": 3, "save_model_after_n_epoch": None},
    "evaluation": {"eval_period": 3, "eval_after_n_epoch": None, "eval_iter": 2},
}
"""What `--fast-dev-run` sets in `train`: each thing that a run does is done twice."""


def load_config(source: str) -> "ConfigDict":
    """Return the config in a file, in the folder of a run, or among those that come with Treadle.

    Raises:
        ConfigError: There is none.
    """
    from treadle.config import LazyConfig, get_config

    path = Path(source)
    if path.is_dir():
        path = config_of_run(path)
    elif not path.exists():
        with suppress(ConfigError):  # if it is none of those either, the file is what is missing
            return get_config(source)  # type: ignore[no-any-return]
    return LazyConfig.load(path)  # type: ignore[no-any-return]


def config_of_run(run: Path) -> Path:
    """Return the config file of a run.

    Raises:
        ConfigError: The folder holds none.
    """
    require_folder(run, "a run is started again from its folder")
    if not run.is_dir():
        raise ConfigError(f"there is no run folder {run}; 'treadle runs' lists those that are there")
    if not (run / CONFIG_FILE).is_file():
        raise ConfigError(f"{run} holds no {CONFIG_FILE}, so it is no run that a config began")
    return run / CONFIG_FILE


def load_for_run(source: str, overrides: Sequence[str], *, fast: bool = False) -> "ConfigDict":
    """Return the config of a run that is to begin: with every key of `train`, changed, and checked.

    Args:
        source: As for `load_config`.
        overrides: Changes, as the command line gives them.
        fast: Whether to set what makes a run short, before the overrides.

    Raises:
        ConfigError: A key or an argument of a target that is not there, and whatever else a config can have wrong.
    """
    from treadle.config import LazyConfig
    from treadle.engine.building import complete
    from treadle.engine.keys import check_keys

    config = complete(load_config(source))
    if fast:
        config.train.update(FAST)
    LazyConfig.apply_overrides(config, list(overrides))
    check_keys(config)
    LazyConfig.check(config)
    return config


def folder_for(config: "ConfigDict", source: str, run_dir: Path | None) -> Path:
    """Return the folder of a run: the one given, the `train.output_dir` of the config, or `runs/` and its name."""
    if run_dir is not None:
        return run_dir
    given = config.train.output_dir
    if given and str(given) != UNNAMED:
        return Path(given)
    return Path("runs") / Path(source).stem
