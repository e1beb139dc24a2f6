"""What became of a file: its new text, and what is left for its author to change."""

import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from difflib import SequenceMatcher, unified_diff
from pathlib import Path

from treadle.errors import ConfigError
from treadle.files.atomic_io import replace_text


@dataclass(frozen=True, order=True)
class Note:
    """Something to say about a line.

    Attributes:
        line: The line of the old file; 0 for the file as a whole.
        text: What there is to say.
        left: Whether it is left for the author to change; otherwise it is only good to know.
    """

    line: int
    text: str
    left: bool = True


@dataclass
class Migration:
    """A file that was written for another system, and what it is for Treadle.

    Attributes:
        path: The file.
        system: The system that it was written for.
        before: Its text.
        after: The text for Treadle.
        notes: What cannot be done, and what is good to know, by line.
        target: Where the new text belongs; another file where the format is another one.
    """

    path: Path
    system: str
    before: str
    after: str
    notes: list[Note] = field(default_factory=list)
    target: Path | None = None

    @property
    def changed(self) -> bool:
        """Whether there is anything to write."""
        return self.before != self.after

    @property
    def left(self) -> list[Note]:
        """What is left for the author to change."""
        return [note for note in self.notes if note.left]

    def diff(self) -> str:
        """Return the change as a unified diff; empty if there is none."""
        target = self.target or self.path
        before = [] if self.target else self.before.splitlines(keepends=True)
        old = "/dev/null" if self.target else str(self.path)
        return "".join(unified_diff(before, self.after.splitlines(keepends=True), old, str(target)))


def line_finder(before: str, after: str) -> Callable[[int], int]:
    """Return what finds the line of the old text that a line of the new one was, or that its change began with."""
    blocks = SequenceMatcher(None, before.splitlines(), after.splitlines(), autojunk=False).get_opcodes()

    def find(line: int) -> int:
        for kind, old, old_end, new, new_end in blocks:
            if new < line <= new_end:
                same = kind == "equal" or old_end - old == new_end - new
                return old + (line - new if same else 1)
        return line

    return find


# A migrated file put in the place of the old one, which is kept: by git, or beside it


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
