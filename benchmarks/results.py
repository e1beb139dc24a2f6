"""RESULTS.md, in which each benchmark owns one section and leaves the others alone."""

import re
from pathlib import Path

RESULTS = Path(__file__).with_name("RESULTS.md")
TITLE = "# Results\n\nEach section was written by the command it names; run that command to measure again.\n"


def write_section(name: str, markdown: str, path: Path = RESULTS) -> None:
    """Put `markdown` in the place of section `name` of the results file, or at its end if it has none yet.

    Args:
        name: lower-case words joined by hyphens; it appears only in the comments around the section.
        markdown: the section with its heading.
        path: the results file, which is made if it does not exist.

    Raises:
        ValueError: `name` is no such name, `markdown` holds a marker, or the file's markers do not pair.
    """
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
        raise ValueError(f"section name {name!r}: use lower-case words joined by single hyphens")
    if re.search(r"<!-- (begin|end): ", markdown):
        raise ValueError(f"section {name!r} holds a marker; leave out its '<!-- begin/end: ... -->' lines")
    text = path.read_text(encoding="utf-8") if path.exists() else TITLE
    path.write_text(_replace(text, name, markdown.strip(), path), encoding="utf-8")


def _replace(text: str, name: str, markdown: str, path: Path) -> str:
    begin, end = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
    section = f"{begin}\n{markdown}\n{end}"
    counts = text.count(begin), text.count(end)
    if counts == (0, 0):
        return f"{text.rstrip()}\n\n{section}\n"
    before, _, rest = text.partition(begin)
    _, found, after = rest.partition(end)
    if counts != (1, 1) or not found:
        raise ValueError(
            f"{path.name}: section {name!r} needs one {begin!r} and after it one {end!r}, "
            f"found {counts[0]} and {counts[1]}; mend or delete these lines by hand"
        )
    return before + section + after
