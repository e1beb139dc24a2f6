"""What became of a file: its new text, and what is left to do by hand."""

from collections.abc import Callable
from dataclasses import dataclass, field
from difflib import SequenceMatcher, unified_diff
from pathlib import Path


@dataclass(frozen=True, order=True)
class Note:
    """Something to say about a line.

    Attributes:
        line: The line of the old file; 0 for the file as a whole.
        text: What there is to say.
        left: Whether it is left to do by hand; otherwise it is only good to know.
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
        """What is left to do by hand."""
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
