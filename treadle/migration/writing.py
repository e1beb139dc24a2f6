"""A migrated file put in the place of the old one, which is kept: by git, or beside it."""

import subprocess
from pathlib import Path

from treadle.checkpoint.durable import replace_text
from treadle.errors import ConfigError
from treadle.migration.migrated import Migration

KEPT = ".orig"


def write(migration: Migration) -> Path | None:
    """Write what a file has become, and return where the old one is kept; None if git has it.

    Raises:
        ConfigError: There is an older copy in the way, or the disk does not take it.
    """
    target = migration.target or migration.path
    kept = None if _is_committed(target) or not target.exists() else target.with_name(target.name + KEPT)
    try:
        if kept is not None:
            if kept.exists():
                raise ConfigError(
                    f"{target} is not committed, and {kept} is there already; commit it, or move {kept.name} away"
                )
            kept.write_text(target.read_text(encoding="utf-8"), encoding="utf-8")
        replace_text(target, migration.after)
    except OSError as error:
        raise ConfigError(f"cannot write {target}: {error}") from error
    return kept


def _is_committed(path: Path) -> bool:
    """Whether git has a file as it is."""
    try:
        for arguments in (["ls-files", "--error-unmatch"], ["diff", "--quiet", "HEAD", "--"]):
            command = ["git", *arguments, path.name]
            subprocess.run(command, cwd=path.parent, capture_output=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return False
    return True
