"""A Python file that is changed here and there: found by its syntax tree, edited as text, so that the rest stays."""

import ast
import builtins
import io
import symtable
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from treadle.errors import ConfigError
from treadle.tools.migrate.migration import Note

# Names that a program uses and nobody defines


ALWAYS = frozenset({*dir(builtins), "__file__", "__name__", "__doc__", "__builtins__", "__spec__", "__package__"})


def undefined_names(text: str, tree: ast.Module) -> list[tuple[int, str]]:
    """Return the names that are used and defined nowhere, each with the first line it is used in.

    Nothing is said of a program that imports all names of a module.

    >>> text = "def f():\\n    return x + len(y)\\ny = 1\\n"
    >>> undefined_names(text, ast.parse(text))
    [(2, 'x')]
    """
    if any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in ast.walk(tree)):
        return []
    tables = list(_tables(symtable.symtable(text, "program", "exec")))
    top = tables[0]
    defined = {one.get_name() for one in top.get_symbols() if one.is_assigned() or one.is_imported()}
    for table in tables[1:]:
        defined |= {one.get_name() for one in table.get_symbols() if one.is_declared_global() and one.is_assigned()}
    used = {
        one.get_name()
        for table in tables
        for one in table.get_symbols()
        if one.is_referenced() and (table is top or one.is_global()) and not (one.is_assigned() or one.is_imported())
    }
    lines: dict[str, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in used - defined - ALWAYS:
            lines[node.id] = min(node.lineno, lines.get(node.id, node.lineno))
    return sorted((line, name) for name, line in lines.items())


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)


class Source:
    """The text of a Python file, its syntax tree, and the edits to be made.

    Args:
        text: The text.
        path: Where it is from, for messages.

    Attributes:
        tree: The syntax tree of the text as it was.
        notes: What there is to say about lines of it.

    Raises:
        ConfigError: It is no Python.
    """

    def __init__(self, text: str, path: Path) -> None:
        self.text, self.path = text, path
        try:
            self.tree = ast.parse(text)
        except SyntaxError as error:
            raise ConfigError(f"{path}, line {error.lineno}, is no Python: {error.msg}") from error
        self.notes: list[Note] = []
        self._starts = [0]
        for line in text.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._lines = text.splitlines(keepends=True)
        self._edits: dict[tuple[int, int], str] = {}
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        self._comments = [(token.start, token.string) for token in tokens if token.type == tokenize.COMMENT]
        self._parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    # Looking -------------------------------------------------------------------------------------------------

    def find(self, *kinds: type[Any]) -> Iterator[Any]:
        """Yield the nodes of some kinds, in the order of their lines."""
        found = [node for node in ast.walk(self.tree) if isinstance(node, kinds)]
        yield from sorted(found, key=lambda node: (node.lineno, node.col_offset))

    def parent(self, node: ast.AST) -> ast.AST | None:
        """Return what a node is in."""
        return self._parents.get(node)

    def names(self) -> set[str]:
        """Return every name that the file defines or imports."""
        stored = {node.id for node in self.find(ast.Name) if isinstance(node.ctx, ast.Store)}
        defined = {node.name for node in self.find(ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)}
        aliases = [alias for node in self.find(ast.Import, ast.ImportFrom) for alias in node.names]
        return stored | defined | {alias.asname or alias.name.split(".")[0] for alias in aliases}

    def place(self, line: int, column: int) -> int:
        """Return the position in the text of a place in the tree, whose columns count bytes."""
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())

    def span(self, node: Any) -> tuple[int, int]:
        """Return where a node begins and ends in the text."""
        return self.place(node.lineno, node.col_offset), self.place(node.end_lineno, node.end_col_offset)

    def segment(self, node: Any) -> str:
        """Return the text of a node."""
        start, end = self.span(node)
        return self.text[start:end]

    def break_before(self, place: int) -> str:
        """Return the line break and the indentation in front of a place; empty if there is more on its line."""
        start = self.text.rfind("\n", 0, place) + 1
        indent = self.text[start:place]
        return f"\n{indent}" if start and not indent.strip() else ""

    def comments_in(self, node: Any) -> list[str]:
        """Return the comments on the lines of a node, but for one behind its end, which stays where it is."""
        last = (node.end_lineno, node.end_col_offset)
        return [text for place, text in self._comments if (node.lineno, node.col_offset) <= place < last]

    # Changing ------------------------------------------------------------------------------------------------

    def replace(self, node: Any, text: str) -> None:
        """Put other text in the place of a node."""
        self.replace_span(self.span(node), text)

    def replace_span(self, span: tuple[int, int], text: str) -> None:
        """Put other text in the place of a part of the file; two edits of one place are joined."""
        self._edits[span] = self._edits.get(span, "") + text if span[0] == span[1] else text

    def insert_before(self, node: Any, text: str) -> None:
        """Put text in front of a node."""
        start = self.span(node)[0]
        self.replace_span((start, start), text)

    def remove_line(self, node: Any) -> None:
        """Remove the lines that a statement or a decorator stands on."""
        first = node.lineno - 1
        self.replace_span((self._starts[first], self._starts[node.end_lineno]), "")

    def note(self, node: Any, text: str, *, left: bool = True) -> None:
        """Say something about the line of a node; a number is taken for a line."""
        self.notes.append(Note(node if isinstance(node, int) else node.lineno, text, left))

    def result(self) -> str:
        """Return the text with all edits made; an edit inside another one's place is dropped with that place."""
        parts, done = [], 0
        for (start, end), text in sorted(self._edits.items(), key=_order):
            if start < done:
                continue
            parts += [self.text[done:start], text]
            done = end
        return "".join([*parts, self.text[done:]])


def _order(edit: tuple[tuple[int, int], str]) -> tuple[int, bool, int]:
    """Return what edits are sorted by: at one place, what is put in front comes first, then the longest."""
    (start, end), _ = edit
    return start, start != end, -end


# Arguments of a call renamed, dropped and added, as text


class Call:
    """A call in a file whose arguments are changed.

    Args:
        source: The file.
        node: The call.
    """

    def __init__(self, source: Source, node: ast.Call) -> None:
        self.source, self.node = source, node
        self._arguments: list[Any] = sorted([*node.args, *node.keywords], key=lambda one: (one.lineno, one.col_offset))
        self._dropped: set[Any] = set()
        self._added: list[str] = []

    def keyword(self, name: str) -> ast.keyword | None:
        """Return the argument of a name."""
        return next((keyword for keyword in self.node.keywords if keyword.arg == name), None)

    def rename(self, keyword: ast.keyword, name: str, value: str | None = None) -> None:
        """Give an argument another name, and another value if one is given."""
        start, end = self.source.span(keyword)
        if value is None:
            end = start + len(str(keyword.arg))
            self.source.replace_span((start, end), name)
        else:
            self.source.replace_span((start, end), f"{name}={value}")

    def drop(self, argument: Any) -> None:
        """Leave an argument out."""
        self._dropped.add(argument)

    def add(self, text: str) -> None:
        """Add an argument behind the others."""
        self._added.append(text)

    def finish(self) -> None:
        """Note the edits for what was dropped and added."""
        self._drop_all()
        if not self._added:
            return
        kept = [argument for argument in self._arguments if argument not in self._dropped]
        if kept:
            start, place = self.source.span(kept[-1])
            separator = f",{self.source.break_before(start) or ' '}"
            self.source.replace_span((place, place), "".join(f"{separator}{text}" for text in self._added))
        else:
            place = self.source.span(self.node)[1] - 1
            self.source.replace_span((place, place), ", ".join(self._added))

    def _drop_all(self) -> None:
        spans = [self.source.span(argument) for argument in self._arguments]
        last = len(spans) - 1
        while last >= 0 and self._arguments[last] in self._dropped:
            last -= 1
        if last < len(spans) - 1:
            # What follows the last argument that stays goes with its comma.
            start = spans[last][1] if last >= 0 else spans[0][0]
            self.source.replace_span((start, spans[-1][1]), "")
        for place in range(last + 1):
            if self._arguments[place] in self._dropped:
                self.source.replace_span((spans[place][0], spans[place + 1][0]), "")


def literal(node: Any) -> Any:
    """Return the value of an expression that is a plain constant; None if it is none."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return None
