"""The config that a command is about: a file, that of a run, or one that comes with Treadle."""

import os
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.config import dict_diff
from treadle.config.dict_diff import leaves
from treadle.errors import ConfigError
from treadle.runs.place import require_folder
from treadle.runs.reader import read_config, read_json
from treadle.runs.status import read_status

if TYPE_CHECKING:
    from treadle.config import ConfigDict

# In what two configs differ, key by key


ADDED, REMOVED, CHANGED = "added", "removed", "changed"


@dataclass(frozen=True)
class Difference:
    """One key in which two configs differ.

    Attributes:
        kind: "added", "removed" or "changed".
        key: Where it is.
        before: The value in the first config, as text; empty if it has none.
        after: The value in the second config, as text; empty if it has none.
    """

    kind: str
    key: str
    before: str = ""
    after: str = ""


def differences(first: Any, second: Any) -> list[Difference]:
    """Return in what plain data `second` differs from `first`, in the order of their keys.

    >>> differences({"lr": 0.1, "name": "a"}, {"lr": 0.2, "betas": (0.9,)})
    [Difference(kind='changed', key='lr', before='0.1', after='0.2'), \
Difference(kind='removed', key='name', before="'a'", after=''), \
Difference(kind='added', key='betas', before='', after='(0.9,)')]
    """
    old, new = ({key: repr(value) for key, value in leaves(config).items()} for config in (first, second))
    found = dict_diff.differences(old, new, absent="")
    return [
        Difference(ADDED if one.name not in old else REMOVED if one.name not in new else CHANGED, *one) for one in found
    ]


CONFIG_FILE = "config.yaml"
UNNAMED = "./output"
"""The output_dir of `common/train.py`, which stands for none."""

SPLIT = ("train.train_micro_batch_size", "train.global_batch_size", "train.num_accumulation_steps")
"""The keys that say how an iteration is split."""

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
        path = find_run_config(path)
    elif not path.exists():
        with suppress(ConfigError):  # if it is none of those either, the file is what is missing
            return get_config(source)  # type: ignore[no-any-return]
    return LazyConfig.load(path)  # type: ignore[no-any-return]


def find_run_config(run: Path) -> Path:
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
    from treadle.engine.config.builders import complete
    from treadle.engine.config.keys import check_keys

    config = complete(load_config(source))
    if fast:
        config.train.update(FAST)
    LazyConfig.apply_overrides(config, list(overrides))
    check_keys(config)
    LazyConfig.check(config)
    return config


def find_run_dir(config: "ConfigDict", source: str, run_dir: Path | None) -> Path:
    """Return the folder of a run: the one given, the `train.output_dir` of the config, or `runs/` and its name."""
    if run_dir is not None:
        return run_dir
    given = config.train.output_dir
    if given and str(given) != UNNAMED:
        return Path(given)
    return Path("runs") / Path(source).stem


def load_saved(run: Path, overrides: list[str]) -> "ConfigDict":
    """Return the config of a run, changed; the run's folder is the one given, wherever it was before.

    Raises:
        ConfigError: It cannot be loaded; where that may be because this is another folder, the message says so.
    """
    _refuse_made_by_program(run)
    status = read_status(run)
    try:
        config = load_for_run(str(run), overrides)
    except ConfigError as error:
        if status is None or not status.folder or status.folder == os.getcwd():
            raise
        raise ConfigError(f"{error} (the run was started in {status.folder}; this is {os.getcwd()})") from error
    config.train.output_dir = str(run)
    _split_as_now(config, overrides)
    return config


def _refuse_made_by_program(run: Path) -> None:
    """Say what to do with a run whose folder has settings, but no config that its model can be built from."""
    if isinstance(read_config(run).get("train"), dict) and {"model", "optim"} <= read_config(run).keys():
        return
    manifest = read_json(run / "manifest.json")
    words = [str(word) for word in manifest.get("command") or []]
    named = manifest.get("program") or {}
    again = f" ({_shown(named, words)})" if words else ""
    raise ConfigError(
        f"{run} was made by a program and not from a config, so only the program can build its model: start it "
        f"again{again}, with resume='auto' where it trains, to resume the run; for its numbers call "
        "trainer.evaluate(data) there, after train()"
    )


def _shown(program: dict[str, str], words: list[str]) -> str:
    """Return the command that started a program, as one types it."""
    if "module" in program:
        return shlex.join(["python", "-m", program["module"], *words[1:]])
    if "script" in program:
        return shlex.join(["python", *words])
    return shlex.join(["treadle", *words[1:]])


def _split_as_now(config: "ConfigDict", overrides: list[str]) -> None:
    """Let the number of micro-batches be worked out anew where the number of processes is another one."""
    if any(key in text for text in overrides for key in SPLIT):
        return
    train, processes = config.train, int(os.environ.get("WORLD_SIZE", "1"))
    sizes = (train.train_micro_batch_size, train.global_batch_size, train.num_accumulation_steps)
    if None not in sizes and sizes[0] * sizes[2] * processes != sizes[1]:
        train.num_accumulation_steps = None
