"""The tables of README.md that benchmarks write, each between two comments."""

import re
from collections.abc import Sequence
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def fill(name: str, markdown: str, path: Path = README) -> None:
    """Put `markdown` between the comments `<!-- begin: name -->` and `<!-- end: name -->` of a page.

    Raises:
        ValueError: The page has no such place, or more than one.
    """
    text = path.read_text(encoding="utf-8")
    begin, end = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
    if (text.count(begin), text.count(end)) != (1, 1) or text.index(begin) > text.index(end):
        raise ValueError(
            f"{path.name} needs one line {begin!r} and after it one {end!r}, for the table to stand between"
        )
    before, _, rest = text.partition(begin)
    after = rest.partition(end)[2]
    path.write_text(f"{before}{begin}\n\n{markdown.strip()}\n\n{end}{after}", encoding="utf-8")


def section_of(name: str, path: Path) -> str:
    """Return the section of a results file that a benchmark wrote.

    Raises:
        ValueError: There is none.
    """
    found = re.search(
        rf"<!-- begin: {name} -->\n(.*?)\n<!-- end: {name} -->", path.read_text(encoding="utf-8"), re.DOTALL
    )
    if found is None:
        raise ValueError(f"{path.name} has no section {name!r}; run the benchmark that writes it")
    return found[1]


def columns_of(markdown: str, columns: Sequence[str]) -> str:
    """Return some columns of the first table in a text, as a table.

    >>> print(columns_of("words\\n\\n| a | b | c |\\n|---|--:|--:|\\n| x | 1 | 2 |", ["a", "c"]))
    | a | c |
    |---|--:|
    | x | 2 |

    Raises:
        ValueError: There is no table, or it has no such column.
    """
    lines = [line.strip() for line in markdown.splitlines() if line.startswith("|")]
    if not lines:
        raise ValueError("there is no table in the section")
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    for name in columns:
        if name not in table[0]:
            raise ValueError(f"the table has no column {name!r}; it has {table[0]}")
    places = [table[0].index(name) for name in columns]
    rows = [[row[place] for place in places] for row in table]
    head, rule, *body = rows
    ruled = f"|{'|'.join(rule)}|"
    return "\n".join([_line(head), ruled, *map(_line, body)])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
