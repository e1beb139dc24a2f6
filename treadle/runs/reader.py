"""What the folder of a run holds, read without torch; what is not there or cannot be read is left out."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from treadle.errors import ConfigError
from treadle.files.bounded_io import UnreadableError, parsed, read_object, read_text
from treadle.runs.heartbeat import Beat, read_heartbeat
from treadle.runs.metric_rows import FileRows
from treadle.runs.place import require_folder
from treadle.runs.status import FINISHED, STATUS, read_status

CHECKPOINTS = "checkpoints"
PANELS = "panels"
"""The folder in a run's own that holds what a door has to show: pictures (SVG) and tables (JSON)."""
TRIALS = "trials.json"
"""What a search over trials writes into its folder: what it is about, how many trials there are, its state."""
UNFINISHED, UNREADABLE = "unfinished", "unreadable"
MOST_VALUES = 20_000
"""Values of a config, aliases counted as often as they are used; no run has as many."""
LARGEST_CONFIG, DEEPEST = 2**20, 100
LONGEST_NUMBER = 300
"""Characters of a number in a config: what is longer takes long to be read, and no page can hold it."""
_POINTER = re.compile(r"[\w.+-]{1,200}")
Found = TypeVar("Found")
LONGEST_LOG = 20_000
"""Characters of the log that a page shows: its end."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint of a run.

    Attributes:
        step: The step it was saved at.
        size: The bytes of its files.
        names: What points to it: "last", "best".
    """

    step: int
    size: int
    names: tuple[str, ...]


@dataclass(frozen=True)
class Start:
    """A start of a run: the first one, and each one after an interruption.

    Attributes:
        step: The step it went on from.
        time: When, in seconds since 1970; None if the manifest does not say.
    """

    step: int
    time: float | None


@dataclass(frozen=True)
class Panel:
    """Something that a door shows of a run: a picture, or a table.

    Attributes:
        title: What is written over it.
        svg: The picture.
        columns: The heads of the table.
        rows: Its cells, row by row.
    """

    title: str
    svg: str = ""
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Any, ...], ...] = ()


@dataclass(frozen=True)
class Run:
    """What is known of a run.

    Attributes:
        name: What it is called on a page.
        path: Its folder.
        state: What it is doing, or how it ended.
        message: Why it ended, in words.
        rows: The lines of its metrics.
        metrics: What somebody made of the lines already, who reads them as they come.
        config: Its resolved settings.
        manifest: Where and with what it was made.
        starts: Its starts, in order.
        checkpoints: The checkpoints that are there, in order.
        panels: What its door shows of it.
        planned_steps: The updates that it is to make; None if that is not known.
        heartbeat: Its last sign of life; None if it gave none.
        log: The end of what the console showed.
        problems: What in the folder cannot be used, in words.
    """

    name: str
    path: Path
    state: str = UNFINISHED
    message: str = ""
    rows: Sequence[dict[str, Any]] = field(default_factory=list)
    metrics: object = None
    config: dict[str, Any] = field(default_factory=dict)
    manifest: dict[str, Any] = field(default_factory=dict)
    starts: tuple[Start, ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()
    panels: tuple[Panel, ...] = ()
    planned_steps: int | None = None
    heartbeat: Beat | None = None
    log: str = ""
    problems: tuple[str, ...] = ()


def watched_metric(run: Run) -> tuple[str, str] | None:
    """Return the metric that a run is judged by, and whether its highest or lowest value is best; None if not known."""
    told = run.manifest.get("watched")
    if isinstance(told, dict) and isinstance(told.get("metric"), str):
        return told["metric"], "max" if told.get("greater_is_better") else "min"
    try:
        evaluation = run.config["train"]["evaluation"]
        return str(evaluation["eval_metric"]), "max" if evaluation["eval_mode"] == "max" else "min"
    except (KeyError, TypeError):
        return None


class _Problems:
    """Reads parts of a folder, each for itself, and takes note of those that cannot be used."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def spared(self, read: Callable[[], Found], otherwise: Found) -> Found:
        """Return what `read` does, or `otherwise` if that cannot be read."""
        try:
            return read()
        except UnreadableError as error:
            self.found.append(str(error))
            return otherwise


def find_runs(folder: Path) -> Iterator[Path]:
    """Yield the folders of runs in a folder and those below it; the folder itself may be one.

    The folder of a search comes before those of its trials.
    """
    for place, folders, files in os.walk(folder):
        is_run = CHECKPOINTS in folders or STATUS in files
        if is_run or TRIALS in files:
            yield Path(place)
        if is_run:
            folders.clear()
        folders[:] = sorted(name for name in folders if not name.startswith("."))


def read_run(path: Path, name: str | None = None) -> Run:
    """Return what the folder of a run holds.

    Raises:
        ConfigError: `path` is not the folder of a run.
    """
    if not (path / CHECKPOINTS).is_dir() and not (path / STATUS).is_file() and not is_search(path):
        require_folder(path, "a run is read from its folder")
        what = "is not the folder of a run" if path.exists() else "is not there"
        raise ConfigError(f"{path} {what}; the folder of a run holds {CHECKPOINTS}/ and metrics.jsonl")
    problems, nothing = _Problems(), dict[str, Any]()
    manifest = problems.spared(lambda: read_object(path / "manifest.json"), nothing)
    problems.spared(lambda: read_object(path / STATUS), nothing)
    newest = problems.spared(lambda: read_object(_newest(path) / "manifest.json"), nothing)
    status, lines = read_status(path), path / "metrics.jsonl"
    log = problems.spared(lambda: read_text(path / "log.txt", most=4 * LONGEST_LOG, end=True), "")
    return Run(
        name=name or path.resolve().name,
        path=path,
        state=run_status(path, newest),
        message=_trials(path) if status is None else status.message,
        rows=FileRows(lines),
        config=problems.spared(lambda: _config(path), nothing) or _about(path),
        manifest=manifest,
        starts=tuple(_starts(manifest)),
        checkpoints=tuple(_checkpoints(path)),
        panels=tuple(read_panels(path)),
        planned_steps=planned_steps(newest),
        heartbeat=read_heartbeat(path),
        log=log[-LONGEST_LOG:],
        problems=tuple(dict.fromkeys(problems.found)),
    )


def read_any_run(path: Path, name: str | None = None) -> Run:
    """Return what the folder of a run holds, whatever is in it: one that cannot be read says why.

    Raises:
        ConfigError: `path` is not the folder of a run.
    """
    try:
        return read_run(path, name)
    except ConfigError:
        raise
    except Exception as error:  # of many runs, one that nobody has thought of must not hide the others
        return Run(name or path.name, path, state=UNREADABLE, problems=(f"{type(error).__name__}: {error}",))


def is_search(path: Path) -> bool:
    """Whether a folder is that of a search over trials."""
    return (path / TRIALS).is_file()


def run_status(run: Path, manifest: dict[str, Any]) -> str:
    """Return what a run is doing, or how it ended; `manifest` is that of its newest checkpoint."""
    status = read_status(run)
    if status is not None:
        return status.state
    if is_search(run):
        return FINISHED if read_json(run / TRIALS).get("state") == FINISHED else UNFINISHED
    finished = manifest.get("finished") or pointed(run, "complete") == pointed(run, "last") is not None
    return FINISHED if finished else UNFINISHED


def planned_steps(manifest: dict[str, Any]) -> int | None:
    """Return how many updates a run is to make, by the manifest of a checkpoint; None if it does not say."""
    planned = manifest.get("planned")
    limit = planned.get("steps") if isinstance(planned, dict) else None
    return limit if type(limit) is int else None


def newest_checkpoint(run: Path) -> Path:
    """Return the folder of the newest checkpoint of a run; one that does not exist if there is none."""
    return run / CHECKPOINTS / (pointed(run, "last") or "none")


def _newest(run: Path) -> Path:
    """Return the same; a pointer that names nothing is a problem."""
    text = read_text(run / CHECKPOINTS / "last", most=4096).strip()
    if text and not _POINTER.fullmatch(text):
        raise UnreadableError(f"{CHECKPOINTS}/last names no checkpoint")
    return newest_checkpoint(run)


def pointed(run: Path, name: str) -> str | None:
    """Return the checkpoint that a pointer of a run, such as "last", names."""
    text = _read_text(run / CHECKPOINTS / name).strip()
    return text if _POINTER.fullmatch(text) else None


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of metrics in a file that are whole."""
    return list(FileRows(path))


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; an empty one if there is none."""
    return parsed(_read_text(path)) or {}


def read_config(run: Path) -> dict[str, Any]:
    """Return the settings of a run as plain data; none if they cannot be read."""
    try:
        return _config(run)
    except UnreadableError:
        return {}


def _config(run: Path) -> dict[str, Any]:
    """Return the settings of a run as plain data; no code is looked up for what a tag names."""
    import yaml  # type: ignore[import-untyped]

    class Plain(yaml.SafeLoader):  # type: ignore[misc]
        """Reads what carries a tag as the data under it, and merges no mappings, which could take for ever."""

        def flatten_mapping(self, node: Any) -> None:
            """Merge nothing."""

    Plain.add_multi_constructor("!", _untagged)
    for kind, construct in (("int", Plain.construct_yaml_int), ("float", Plain.construct_yaml_float)):
        Plain.add_constructor(f"tag:yaml.org,2002:{kind}", partial(_number, construct))
    text = read_text(run / "config.yaml", most=LARGEST_CONFIG)
    if _depth(text) > DEEPEST:
        # The reader would take the square of it, in time.
        raise UnreadableError(f"config.yaml cannot be read: it has more than {DEEPEST} brackets inside of each other")
    try:
        content = yaml.load(text, Loader=Plain)
    except (yaml.YAMLError, RecursionError, ValueError, TypeError) as error:
        raise UnreadableError(f"config.yaml cannot be read: {str(error).splitlines()[0]}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UnreadableError("config.yaml holds no settings")
    _require_few(content)
    return content


def _depth(text: str) -> int:
    """Return how many brackets are open at most, strings not told from others."""
    depth = deepest = 0
    for bracket in re.findall(r"[\[\]{}]", text):
        depth = depth + 1 if bracket in "[{" else max(0, depth - 1)
        deepest = max(deepest, depth)
    return deepest


def _require_few(content: Any) -> None:
    """Refuse a config that is larger than its file, since it names parts of itself again and again."""
    waiting, count = [(content, 0)], 0
    while waiting:
        value, depth = waiting.pop()
        count += 1
        if count > MOST_VALUES or depth > DEEPEST:
            raise UnreadableError(f"config.yaml has more than {MOST_VALUES:,} values, or parts that hold themselves")
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
        waiting += [(item, depth + 1) for item in inner]


def _number(construct: Callable[[Any, Any], Any], loader: Any, node: Any) -> Any:
    """Return the number that a node holds."""
    if len(loader.construct_scalar(node)) > LONGEST_NUMBER:
        raise UnreadableError(f"config.yaml has a number of more than {LONGEST_NUMBER} characters")
    return construct(loader, node)


def _untagged(loader: Any, suffix: str, node: Any) -> Any:
    """Return the data of a node whose tag is not looked at."""
    import yaml

    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    return loader.construct_scalar(node)


def _about(path: Path) -> dict[str, Any]:
    """Return what a search over trials says of itself."""
    about = read_json(path / TRIALS).get("about")
    return about if isinstance(about, dict) else {}


def _trials(path: Path) -> str:
    """Return in words how many trials a search has; nothing for what is none."""
    count = read_json(path / TRIALS).get("trials")
    return f"{count} trials" if isinstance(count, int) else ""


def _starts(manifest: dict[str, Any]) -> Iterator[Start]:
    found = manifest.get("starts")
    for start in found if isinstance(found, list) else []:
        if isinstance(start, dict) and isinstance(start.get("step"), int):
            yield Start(start["step"], _seconds(start.get("time")))


def _seconds(text: Any) -> float | None:
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S%z").timestamp()
    except (TypeError, ValueError):
        return None


def _checkpoints(run: Path) -> Iterator[Checkpoint]:
    names = {name: pointed(run, name) for name in ("last", "best")}
    for folder in sorted((run / CHECKPOINTS).glob("step_*")):
        manifest = read_json(folder / "manifest.json")
        if isinstance(manifest.get("step"), int):
            pointers = tuple(name for name, target in names.items() if target == folder.name)
            with suppress(OSError):  # a run that is under way removes what it no longer needs
                yield Checkpoint(manifest["step"], _checkpoint_size(folder), pointers)


def _checkpoint_size(checkpoint: Path) -> int:
    # The files of one that was copied from a bucket lie a folder deeper.
    return sum(_checkpoint_size(one) if one.is_dir() else one.stat().st_size for one in checkpoint.iterdir())


def read_panels(folder: Path) -> Iterator[Panel]:
    """Yield what the folder `panels` in a folder has to show."""
    for path in sorted((folder / PANELS).glob("*")):
        title = path.stem.replace("_", " ")
        if path.suffix == ".svg":
            yield Panel(title, svg=_read_text(path))
        elif path.suffix == ".json":
            table = read_json(path)
            columns, rows = table.get("columns"), table.get("rows")
            if isinstance(columns, list) and isinstance(rows, list) and all(isinstance(row, list) for row in rows):
                yield Panel(title, columns=tuple(map(str, columns)), rows=tuple(map(tuple, rows)))


def _read_text(path: Path) -> str:
    try:
        return read_text(path)
    except UnreadableError:
        return ""
