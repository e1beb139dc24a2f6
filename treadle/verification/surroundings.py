"""In what the surroundings of a run differ from those of its repetition: versions, device, settings, code, data."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from treadle.nested import Difference, differences
from treadle.provenance import checksum_of
from treadle.run_reading import read_config, read_json

KINDS = ("environment", "determinism", "packages", "processes", "seed", "identity")
"""What of two manifests is compared as it is."""
OWN_SETTINGS = ("run_dir", "train.output_dir", "train.resume", "train.start_iter", "resume")
"""Settings that a repetition has of its own."""


def surroundings(run: Path, again: Path) -> list[str]:
    """Return, in words, what differs between where a run and its repetition were made.

    Args:
        run: The folder of the run.
        again: The folder of its repetition; empty if that did not come to train.
    """
    then, now = (read_json(folder / "manifest.json") for folder in (run, again))
    found: list[str] = []
    if now:
        found += [*_facts(then, now), *_settings(read_config(run), read_config(again))]
    folder = Path(str(then.get("folder") or os.getcwd()))
    for kind in ("code", "files"):
        found += list(_changed(then.get(kind), folder, kind))
    if now:
        found += _git(then.get("git"), now.get("git"))
    return found


def _facts(then: Any, now: Any) -> Iterator[str]:
    """Yield in what the facts of two manifests differ, of those that the older one has."""
    known = [kind for kind in KINDS if kind in then]
    for found in differences({kind: then[kind] for kind in known}, {kind: now.get(kind) for kind in known}):
        yield _told(found)


def _settings(then: Any, now: Any) -> Iterator[str]:
    """Yield in what the settings of two runs differ; what one of them lacks is none."""
    for found in differences(then, now):
        if found.name not in OWN_SETTINGS:
            yield f"settings.{_told(found)}"


def _told(found: Difference) -> str:
    return f"{found.name}: {_word(found.first)} then, {_word(found.second)} now"


def _changed(saved: Any, folder: Path, kind: str) -> Iterator[str]:
    """Yield which files are not what they were when the run was made."""
    for name, checksum in (saved if isinstance(saved, dict) else {}).items():
        now = checksum_of(str(folder / name))
        if now is None:
            yield f"{kind}: {name} is gone"
        elif now != checksum:
            yield f"{kind}: {name} has changed"


def _git(then: Any, now: Any) -> list[str]:
    if not isinstance(then, dict) or not isinstance(now, dict) or then.get("commit") == now.get("commit"):
        return []
    return [f"git: commit {str(then.get('commit'))[:10]} then, {str(now.get('commit'))[:10]} now"]


def _word(value: Any) -> str:
    return "absent" if value is None else str(value)
