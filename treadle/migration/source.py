"""A Python file that is changed here and there: found by its syntax tree, edited as text, so that the rest stays."""

import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from treadle.errors import ConfigError
from treadle.migration.migrated import Note


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
