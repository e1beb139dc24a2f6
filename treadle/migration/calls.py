"""Arguments of a call renamed, dropped and added, as text."""

import ast
from typing import Any

from treadle.migration.source import Source


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
