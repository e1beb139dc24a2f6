"""The helper that lets every benchmark replace its own section of RESULTS.md."""

from pathlib import Path

import pytest

from benchmarks.results import TITLE, write_section

BEFORE = """\
# Results

<!-- begin: a -->
## A
<!-- end: a -->

by hand

<!-- begin: b -->
## B
<!-- end: b -->
"""


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "RESULTS.md"


def test_first_section_makes_the_file(results: Path) -> None:
    write_section("overhead", "\n## Overhead\n\n1.02x\n\n", results)
    expected = TITLE + "\n<!-- begin: overhead -->\n## Overhead\n\n1.02x\n<!-- end: overhead -->\n"
    assert results.read_text(encoding="utf-8") == expected


def test_second_section_is_appended(results: Path) -> None:
    write_section("a", "## A", results)
    first = results.read_text(encoding="utf-8")
    write_section("b", "## B", results)
    assert results.read_text(encoding="utf-8") == first + "\n<!-- begin: b -->\n## B\n<!-- end: b -->\n"


def test_section_is_replaced_in_its_place_and_the_rest_is_kept(results: Path) -> None:
    results.write_text(BEFORE, encoding="utf-8")
    write_section("a", "## A\n\n3 µs \\1", results)
    assert results.read_text(encoding="utf-8") == BEFORE.replace("## A", "## A\n\n3 µs \\1")


def test_writing_the_same_section_twice_changes_nothing(results: Path) -> None:
    results.write_text(BEFORE, encoding="utf-8")
    write_section("b", "## B", results)
    assert results.read_text(encoding="utf-8") == BEFORE


def test_section_whose_name_begins_another_name_is_not_mistaken_for_it(results: Path) -> None:
    write_section("overhead-gpu", "## GPU", results)
    write_section("overhead", "## CPU", results)
    write_section("overhead", "## CPU again", results)
    text = results.read_text(encoding="utf-8")
    assert "<!-- begin: overhead-gpu -->\n## GPU\n<!-- end: overhead-gpu -->" in text
    assert text.endswith("<!-- begin: overhead -->\n## CPU again\n<!-- end: overhead -->\n")


@pytest.mark.parametrize("name", ["", "Over head", "a--b", "a -->", "-a"])
def test_name_that_would_break_the_comment_is_refused(results: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"section name .*: use lower-case words joined by single hyphens"):
        write_section(name, "## A", results)
    assert not results.exists()


def test_markdown_with_a_marker_in_it_is_refused(results: Path) -> None:
    with pytest.raises(ValueError, match=r"section 'a' holds a marker; leave out its .* lines"):
        write_section("a", "## A\n<!-- end: a -->", results)
    assert not results.exists()


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("<!-- begin: a -->\n", "1 and 0"),
        ("<!-- end: a -->\n", "0 and 1"),
        ("<!-- end: a -->\n<!-- begin: a -->\n", "1 and 1"),
        ("<!-- begin: a -->\n<!-- begin: a -->\n<!-- end: a -->\n", "2 and 1"),
    ],
)
def test_markers_that_do_not_pair_are_refused_and_the_file_is_kept(results: Path, text: str, counts: str) -> None:
    results.write_text(text, encoding="utf-8")
    complaint = rf"RESULTS\.md: section 'a' needs one .*, found {counts}; mend or delete these lines by hand"
    with pytest.raises(ValueError, match=complaint):
        write_section("a", "## A", results)
    assert results.read_text(encoding="utf-8") == text
