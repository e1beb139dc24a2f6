"""Import lines of another system, and uses of its modules, turned into ours."""

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from treadle.tools.migrate.source import Source

# Which name of another system is which of ours: the page that people read, read by the program


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


LONGEST = 100
"""So long an import line may become before it is broken."""


@dataclass
class Rewriter:
    """Turns the imports of a file into ours.

    Args:
        source: The file.
        known: Where names are to be had.
        roots: The packages of the other system.
        fallback: Called with the full name of something that is not in the map; returns where else it is to be had.
        renames: Whether names that are called otherwise here are renamed wherever they are used.
        dropped: Full names whose import is removed, since whoever uses them is removed, too.
        stays: Whether names that are not in the map are had from where they were, for the package is used on.

    Attributes:
        found: What each name of the file stood for: its full name in the other system.
        new: What is to be imported, by module.
    """

    source: Source
    known: ImportMap
    roots: tuple[str, ...]
    fallback: Callable[[str], Home | None] = lambda name: None
    renames: bool = False
    dropped: tuple[str, ...] = ()
    stays: bool = False
    found: dict[str, str] = field(default_factory=dict)
    new: dict[str, list[str]] = field(default_factory=dict)
    _elsewhere: dict[str, str] = field(default_factory=dict)
    _statements: list[Any] = field(default_factory=list)
    _texts: dict[Any, list[str]] = field(default_factory=dict)

    def run(self) -> None:
        """Note the edits."""
        self._statements = [node for node in self.source.find(ast.Import, ast.ImportFrom) if self._is_theirs(node)]
        for node in self._statements:
            self._note_names(node)
        for node in self._statements:
            self._texts[node] = self._from(node) if isinstance(node, ast.ImportFrom) else self._import(node)
        self._rewrite_uses()

    # What is imported ----------------------------------------------------------------------------------------

    def _is_theirs(self, node: ast.Import | ast.ImportFrom) -> bool:
        if isinstance(node, ast.ImportFrom):
            return node.level == 0 and self._has_root(str(node.module))
        return any(self._has_root(alias.name) for alias in node.names)

    def _has_root(self, module: str) -> bool:
        return any(module == root or module.startswith(f"{root}.") for root in self.roots)

    def home_of(self, full: str) -> Home | None:
        """Return where something of the other system is to be had."""
        module, _, name = full.rpartition(".")
        return self.known.homes.get((module, name)) or self.fallback(full)

    def _from(self, node: ast.ImportFrom) -> list[str]:
        """Return the lines that stay of an import of names, and note what is to be imported instead."""
        kept = []
        if self.stays and not any(self._changes(f"{node.module}.{alias.name}") for alias in node.names):
            return [self.source.segment(node)]
        for alias in node.names:
            full, bound = f"{node.module}.{alias.name}", alias.asname or alias.name
            home = self.home_of(full)
            if full in self.dropped:
                continue
            if home is not None:
                self._want(home.flat, bound if not self.renames or alias.asname else None)
            elif self.stays and full.rpartition(".")[2] not in self.known.reasons:
                self._want(Home(str(node.module), alias.name), bound)
            elif full not in self.known.modules() and not self._is_module(full):
                kept.append(f"from {node.module} import {ast.unparse(alias)}")
                self._tell_unknown(node, full)
        return kept

    def _changes(self, full: str) -> bool:
        """Whether something of a package that is used on is to be had elsewhere, or not any more."""
        return full in self.dropped or self.home_of(full) is not None or full.rpartition(".")[2] in self.known.reasons

    def _is_module(self, full: str) -> bool:
        return any(name.startswith(f"{full}.") for name in (f"{module}.{name}" for module, name in self.known.homes))

    def _import(self, node: ast.Import) -> list[str]:
        """Return the lines that stay of an import of modules."""
        return [f"import {ast.unparse(alias)}" for alias in node.names if self.stays or not self._has_root(alias.name)]

    def _note_names(self, node: ast.Import | ast.ImportFrom) -> None:
        """Take note of what the names stand for that an import gives."""
        for alias in node.names:
            root = alias.name.split(".")[0]
            if isinstance(node, ast.ImportFrom):
                self.found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
            elif self._has_root(alias.name):
                self.found[alias.asname or root] = alias.name if alias.asname else root

    def _tell_unknown(self, node: Any, full: str) -> None:
        reason = self.known.reasons.get(full.rpartition(".")[2])
        if self.stays and reason is None:
            return
        self.source.note(node, f"{full} has no counterpart" + (f"; instead: {reason}" if reason else ""))

    def _want(self, home: Home, bound: str | None = None) -> str:
        """Have a name imported, and return what it is called in the file."""
        head, *rest = home.name.split(".")
        if bound is None and self._others().get(head) == f"{home.module}.{head}".lstrip("."):
            return home.name
        name = bound or head
        if bound is None and head in self._others():
            name = f"treadle_{head}"
        text = head if name == head else f"{head} as {name}"
        names = self.new.setdefault(home.module, [])
        if text not in names:
            names.append(text)
        return ".".join([name, *rest])

    def _others(self) -> dict[str, str]:
        """Return what names of the file stand for that are not of the other system; nothing for those it defines."""
        if not self._elsewhere:
            self._elsewhere = {name: "" for name in self.source.names() if name not in self.found}
            for node in self.source.find(ast.Import, ast.ImportFrom):
                for alias in node.names if not self._is_theirs(node) else ():
                    full = f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name
                    plain = alias.asname is None and isinstance(node, ast.Import)
                    self._elsewhere[alias.asname or alias.name.split(".")[0]] = full.split(".")[0] if plain else full
        return self._elsewhere

    # How it is used ------------------------------------------------------------------------------------------

    def full_name(self, node: Any) -> str | None:
        """Return the full name, in the other system, of what an expression names; None if it is something else."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self.found:
            return None
        return ".".join([self.found[node.id], *reversed(parts)])

    def _rewrite_uses(self) -> None:
        for node in self.source.find(ast.Attribute):
            outer = self.source.parent(node)
            if isinstance(outer, ast.Attribute) and self._usage(outer) is not None:
                continue
            home = self._usage(node)
            if home is not None:
                self.source.replace(node, self._want(home))
            elif not isinstance(outer, ast.Attribute):
                self._tell_use(node)
        if self.renames:
            self._rename_names()

    def _usage(self, node: ast.Attribute) -> Home | None:
        full = self.full_name(node)
        return None if full is None or full in self.dropped else self.home_of(full)

    def _tell_use(self, node: ast.Attribute) -> None:
        """Say that something of a module has no counterpart, unless a part of the expression has one."""
        inner: Any = node
        while isinstance(inner, ast.Attribute):
            if self._usage(inner) is not None:
                return
            inner = inner.value
        full = self.full_name(node)
        named = self.found.get(inner.id, "") if isinstance(inner, ast.Name) else ""
        # A package may have a counterpart as a whole, and this part of it none.
        is_module = isinstance(inner, ast.Name) and (named in self.roots or self.home_of(named) is None)
        if full is not None and full not in self.dropped and is_module:
            self._tell_unknown(node, full)

    def _rename_names(self) -> None:
        for node in self.source.find(ast.Name):
            full = self.found.get(node.id)
            home = None if full is None or full in self.dropped else self.home_of(full)
            is_use = isinstance(node.ctx, ast.Load) and not self._kept_name(node.id)
            if home is not None and is_use and home.name != node.id:
                self.source.replace(node, self._want(home))

    def _kept_name(self, name: str) -> bool:
        """Whether the file chose a name of its own, by `as`, which it keeps."""
        aliases = [alias for node in self.source.find(ast.ImportFrom) for alias in node.names]
        return any(alias.asname == name for alias in aliases)

    # What is written -----------------------------------------------------------------------------------------

    def want(self, module: str, name: str) -> str:
        """Have a name imported that an edit needs, and return what it is called in the file."""
        return self._want(Home(module, name))

    def finish(self) -> None:
        """Put our imports in the place of theirs, those of the file's head in the place of the first."""
        outer = [node for node in self._statements if node.col_offset == 0]
        for number, node in enumerate(self._statements):
            lines = [*self.source.comments_in(node), *self._texts[node]]
            if (outer and node is outer[0]) or (not outer and number == 0):
                lines += self._lines(" " * node.col_offset)
            if not lines:
                self.source.remove_line(node)
            else:
                self.source.replace(node, f"\n{' ' * node.col_offset}".join(lines))
        if not self._statements and self.new:
            first = self.source.tree.body[0] if self.source.tree.body else None
            text = "\n".join(self._lines("")) + "\n"
            if first is None:
                self.source.replace_span((0, 0), text)
            else:
                self.source.insert_before(first, text)

    def _lines(self, indent: str) -> Iterator[str]:
        for module, wanted in sorted(self.new.items(), key=lambda item: (item[0].startswith("treadle"), item[0])):
            names = sorted(wanted, key=_kind_and_name)
            if not module:
                yield from (f"import {name}" for name in names)
                continue
            line = f"from {module} import {', '.join(names)}"
            if len(line) + len(indent) > LONGEST:
                inner = "".join(f"{indent}    {name},\n" for name in names)
                line = f"from {module} import (\n{inner}{indent})"
            yield line


def _kind_and_name(name: str) -> tuple[bool, bool, str]:
    """Return what names in an import are sorted by: constants, then classes, then the rest."""
    return not name.isupper(), not name[0].isupper(), name.lower()
