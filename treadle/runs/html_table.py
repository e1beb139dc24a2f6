"""Tables for notebooks: what `_repr_html_` of a result shows."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any


def html_table(columns: Sequence[Any], rows: Iterable[Sequence[Any]], title: str = "") -> str:
    """Return a table in HTML, everything in it escaped; a cell of None is empty.

    >>> html_table(["name", "value"], [["a < b", 0.123456], ["c", None]], "Two rows")
    '<p>Two rows</p><table><tr><th>name</th><th>value</th></tr><tr><td>a &lt; b</td><td>0.1235</td></tr><tr><td>c</td><td></td></tr></table>'
    """  # noqa: E501 - what it returns is one line
    head = "".join(f"<th>{escape(str(column))}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{_cell(value)}</td>" for value in row) + "</tr>" for row in rows)
    above = f"<p>{escape(title)}</p>" if title else ""
    return f"{above}<table><tr>{head}</tr>{body}</table>"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else escape(str(value))
