"""The pages of the site: in which order they come, and where their links lead once they are there.

The pages in `docs/` are written to be read in the repository, and link to programs and tests beside it. The site is
complete in itself, so what they link to becomes a page of it, too.
"""

import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = "docs"
SOURCE = "source"
"""The folder of the site with what lies outside of `docs/`."""

_FENCE = re.compile(r"^(```.*?^```)$", flags=re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")
_ROW = re.compile(r"^\| \[([^\]]+)\]\(([\w/.-]+\.md)\) \|", flags=re.MULTILINE)
_LANGUAGES = {".py": "python", ".md": "markdown", ".toml": "toml", ".txt": "text", ".yaml": "yaml"}

Navigation = list[dict[str, object]]


def navigation(index: str) -> Navigation:
    """Return the pages in the order of the index: a list for each of its headings with a table of links.

    >>> navigation("# All\\n## First\\n| [One](one.md) | 1 |\\n## Words\\n## Last\\n| [Two](two.md) | 2 |")
    [{'Home': 'index.md'}, {'First': [{'One': 'one.md'}]}, {'Last': [{'Two': 'two.md'}]}]
    """
    parts: Navigation = [{"Home": "index.md"}]
    for section in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        title, _, text = section.partition("\n")
        rows = [{name: page} for name, page in _ROW.findall(text)]
        if rows:
            parts.append({title: rows})
    return parts


def site_path(target: str) -> str:
    """Return the path in the site of a file or folder of the repository.

    >>> [site_path(path) for path in ("docs/loop.md", "examples/gan.py", "CHANGELOG.md", "tests/crash")]
    ['loop.md', 'source/examples/gan.py.md', 'source/CHANGELOG.md', 'source/tests/crash.md']
    """
    if target.startswith(f"{DOCS}/"):
        return target.removeprefix(f"{DOCS}/")
    return f"{SOURCE}/{target}" if target.endswith(".md") else f"{SOURCE}/{target}.md"


def links_of(page: str, text: str) -> Iterator[str]:
    """Yield the files and folders of the repository that a page links to, as paths in it."""
    for part in _prose(text):
        for link in _LINK.findall(part):
            if not _is_elsewhere(link):
                yield _target(page, link)


def for_site(page: str, text: str) -> str:
    """Return the text of a page of the repository with links that lead to pages of the site."""
    here = posixpath.dirname(site_path(page))

    def moved(link: re.Match[str]) -> str:
        if _is_elsewhere(link[1]):
            return link[1]
        _, mark, anchor = link[1].partition("#")
        return posixpath.relpath(site_path(_target(page, link[1])), here or ".") + mark + anchor

    changed = [_outside_code(part, lambda prose: _LINK.sub(moved, prose)) for part in _FENCE.split(text)]
    # A mark for the tests, which highlighters do not know.
    return "".join(changed).replace("```python no-run\n", "```python\n")


def _outside_code(part: str, change: Callable[[str], str]) -> str:
    return part if part.startswith("```") else change(part)


def _prose(text: str) -> list[str]:
    return [re.sub(r"`[^`\n]*`", "", part) for part in _FENCE.split(text) if not part.startswith("```")]


def _is_elsewhere(link: str) -> bool:
    return "://" in link or link.startswith(("#", "mailto:"))


def _target(page: str, link: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), link.partition("#")[0]))


def source_pages(root: Path = ROOT) -> dict[str, str]:
    """Return the pages for what lies outside of `docs/` and is linked to, by their paths in the site."""
    open_pages = [str(path.relative_to(root)) for path in sorted((root / DOCS).rglob("*.md"))]
    made: dict[str, str] = {}
    seen = set(open_pages)
    while open_pages:
        page = open_pages.pop()
        text = (root / page).read_text(encoding="utf-8") if page.endswith(".md") else ""
        if not page.startswith(f"{DOCS}/"):
            made[site_path(page)] = for_site(page, text) if text else source_page(root / page, page)
        new = sorted(set(links_of(page, text)) - seen)
        # A picture, or what else is no page, is copied as it is.
        open_pages += [target for target in new if not target.startswith(f"{DOCS}/") or target.endswith(".md")]
        seen.update(new)
    return made


def source_page(path: Path, name: str) -> str:
    """Return a page that shows a file, or the names in a folder."""
    if path.is_dir():
        names = sorted(str(file.relative_to(path)) for file in path.rglob("*.py") if file.name != "__init__.py")
        return f"# {name}\n\n" + "".join(f"- `{one}`\n" for one in names)
    language = _LANGUAGES.get(path.suffix, "text")
    return f"# {name}\n\n````{language}\n{path.read_text(encoding='utf-8').rstrip()}\n````\n"
