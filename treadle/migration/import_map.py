"""Which name of another system is which of ours: the page that people read, read by the program."""

import ast
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

PAGE = Path(__file__).with_name("import-map.md")
_ROW = re.compile(r"^\| `(from [^`]+)` \| `(from [^`]+)` \|$", re.MULTILINE)
_WITHOUT = re.compile(r"^\| (`[^|]+) \| ([^|]+) \|$", re.MULTILINE)


@dataclass(frozen=True)
class Home:
    """Where a name is to be had.

    Attributes:
        module: The module to import from; empty to import the first part of the name itself.
        name: What it is called there; with dots, its first part is imported.
    """

    module: str
    name: str

    @property
    def flat(self) -> "Home":
        """The same without dots in its name, for an import of the name itself.

        >>> Home("torch", "nn.Conv2d").flat
        Home(module='torch.nn', name='Conv2d')
        """
        module, _, name = f"{self.module}.{self.name}".lstrip(".").rpartition(".")
        return Home(module, name)


@dataclass
class ImportMap:
    """Names of other systems.

    Attributes:
        homes: Where to have them, by the module and the name that they had.
        reasons: What to do about names that have no line, by name.
    """

    homes: dict[tuple[str, str], Home] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    def modules(self) -> set[str]:
        """Return every module of theirs, and what those are in."""
        parts = [module.split(".") for module, _ in self.homes]
        return {".".join(names[:count]) for names in parts for count in range(1, len(names) + 1)}


@cache
def read_import_map() -> ImportMap:
    """Return what the page says."""
    text = PAGE.read_text(encoding="utf-8")
    found = ImportMap()
    for theirs, ours in _ROW.findall(text):
        old, new = (ast.parse(line).body[0] for line in (theirs, ours))
        assert isinstance(old, ast.ImportFrom)
        assert isinstance(new, ast.ImportFrom)
        found.homes[str(old.module), old.names[0].name] = Home(str(new.module), new.names[0].name)
    for names, reason in _WITHOUT.findall(text):
        for name in re.findall(r"`([^`]+)`", names) if " | `from" not in f"{names} | {reason}" else ():
            found.reasons[name.split(" import ")[-1]] = reason.strip()
    return found
