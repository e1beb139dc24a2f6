"""The glossary has forty words in their order, each of them used, with one meaning and a page that says more."""

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "glossary.md"
ROW = re.compile(r"\| ([a-z -]+) \| (.+) \| \[[^\]]+\]\(([\w-]+\.md)\) \|")


def rows() -> list[re.Match[str]]:
    """Return the rows of the table."""
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")][1:]
    found = [ROW.fullmatch(line) for line in lines]
    assert None not in found, [line for line, match in zip(lines, found, strict=True) if match is None]
    return [match for match in found if match is not None]


@cache
def text_of_pages() -> str:
    pages = [ROOT / "README.md", *(page for page in (ROOT / "docs").rglob("*.md") if page != PAGE)]
    return "".join(page.read_text(encoding="utf-8").lower() for page in pages)


@cache
def text_of_package() -> str:
    return "".join(path.read_text(encoding="utf-8").lower() for path in (ROOT / "treadle").rglob("*.py"))


def test_the_glossary_has_forty_words_in_alphabetical_order() -> None:
    words = [row[1] for row in rows()]
    assert len(words) == 40
    assert words == sorted(set(words))


@pytest.mark.parametrize("row", [pytest.param(row, id=row[1]) for row in rows()])
def test_a_word_is_used_where_it_is_said_to_be_and_in_the_code(row: re.Match[str]) -> None:
    word = re.compile(rf"\b{row[1].replace(' ', '[ _]')}")
    assert word.search((ROOT / "docs" / row[3]).read_text(encoding="utf-8").lower()), f"{row[3]} does not have the word"
    assert word.search(text_of_pages())
    assert word.search(text_of_package())


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "CONTRIBUTING.md"])
def test_newcomers_are_led_to_the_glossary(page: str) -> None:
    assert "glossary.md)" in (ROOT / page).read_text(encoding="utf-8")
