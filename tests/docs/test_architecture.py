"""The map of the code is that of the tree: rooms in their order, paths that are there, guesses that were right."""

import re
from pathlib import Path

import pytest

from benchmarks.docs.diagrams import IMAGES, WAYS, drawing
from tests.guards.test_layers import ORDER

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PATH = re.compile(r"`([\w./]+(?:\.py|\.md|/))`")
ENTRY = re.compile(r"\| (.+) \| `([^`|]+)` \| (\*\*)?`([^`|]+)`(?:\*\*)? \|")


def part(title: str) -> str:
    """Return what stands below a heading of the page."""
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows_of(text: str) -> list[list[str]]:
    """Return the cells of the rows of all tables in a text, but for their headings."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    heads = {
        before for before, line in zip(text.splitlines(), text.splitlines()[1:], strict=False) if line[:4] == "|---"
    }
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line not in heads]


def minute() -> list[tuple[str, str, bool, str]]:
    """Return the questions, each with the guess, whether it is said to be wrong, and the right path."""
    lines = [line for line in part("The newcomer's minute").splitlines() if line.startswith("| ") and "`" in line]
    found = [ENTRY.fullmatch(line) for line in lines]
    assert None not in found, [line for line, match in zip(lines, found, strict=True) if match is None]
    return [(match[1], match[2], match[3] is not None, match[4]) for match in found if match is not None]


def is_right(guess: str, real: str) -> bool:
    """Whether a guess is there, and is or contains the right path."""
    return (ROOT / guess).exists() and (guess == real or (guess.endswith("/") and real.startswith(guess)))


def test_the_tree_has_every_room_in_the_order_of_imports() -> None:
    table = part("The tree").split("\n\nA few modules")[0]
    names = [name for room, _ in rows_of(table) for name in re.findall(r"`(\w+)(?:\.py|/)`", room)]
    assert [name for name in names if name != "__init__"] == [room for room in ORDER if "." not in room]
    there = {
        path.stem for path in (ROOT / "treadle").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert set(names) == there


def test_every_path_on_the_page_is_there() -> None:
    named = PATH.findall(PAGE)
    assert len(named) > 100
    places = (ROOT, ROOT / "treadle", ROOT / "treadle" / "recsys", ROOT / "treadle" / "nas")
    assert [name for name in named if not any((place / name).exists() for place in places)] == []


def test_there_are_forty_questions_and_each_answer_is_there() -> None:
    questions = minute()
    assert len(questions) == len({question for question, *_ in questions}) == 40
    assert [real for *_, real in questions if not (ROOT / real).exists()] == []
    assert all(real.startswith("treadle/") for *_, real in questions)


def test_a_newcomer_guesses_at_least_thirty_six_of_forty_paths() -> None:
    wrong = [(question, guess, real) for question, guess, _, real in minute() if not is_right(guess, real)]
    assert len(wrong) <= 4, wrong
    assert [question for question, _, bold, _ in minute() if bold] == [question for question, *_ in wrong]
    assert f"\n{40 - len(wrong)} of 40 guesses are right." in PAGE


def test_a_guess_is_wrong_if_it_is_another_file_or_not_there() -> None:
    assert is_right("treadle/loop/", "treadle/loop/update.py")
    assert is_right("treadle/spec.py", "treadle/spec.py")
    assert not is_right("treadle/loop/", "treadle/trainer.py")
    assert not is_right("treadle/nothing/", "treadle/nothing/at_all.py")


def test_every_recipe_names_files_and_a_test_that_are_there() -> None:
    recipes = rows_of(part("Recipes"))
    assert len(recipes) == 12
    for what, _, touched, proof in recipes:
        proofs = re.findall(r"`(tests/[\w/]+\.py)`", proof)
        assert proofs, what
        files = re.findall(r"`((?:treadle|docs|tests)/[\w./]+)`", touched)
        assert files, what
        assert [name for name in (*proofs, *files) if not (ROOT / name).exists()] == [], what


@pytest.mark.parametrize("name", WAYS)
def test_a_picture_of_the_way_is_as_it_is_drawn_and_on_the_page(name: str) -> None:
    assert (IMAGES / f"{name}.svg").read_text(encoding="utf-8") == drawing(WAYS[name])
    assert f"](images/{name}.svg)" in PAGE


@pytest.mark.parametrize("name", WAYS)
def test_what_a_picture_names_is_in_the_file_beside_it(name: str) -> None:
    for step in WAYS[name].steps:
        files = [ROOT / "treadle" / file for file in step.file.split(", ")]
        assert [str(file) for file in files if not file.exists()] == []
        modules = [module for file in files for module in ([file] if file.suffix else file.rglob("*.py"))]
        text = "".join(module.read_text(encoding="utf-8") for module in modules)
        called = re.findall(r"\w+", step.call.partition("(")[0])
        assert [word for word in called if not re.search(rf"\b{word}\b", text)] == [], step


def test_decisions_are_ordered_by_room_and_each_is_in_the_index() -> None:
    page = (ROOT / "docs" / "decisions.md").read_text(encoding="utf-8")
    index, _, sections = page.split("\n## Index\n")[1].partition("\n## ")
    rooms = re.findall(r"^- \[(.+)\]\(#", index, flags=re.MULTILINE)
    assert rooms == re.findall(r"^## (.+)$", f"## {sections}", flags=re.MULTILINE)
    listed = re.findall(r"^  - \[(.+)\]\(#", index, flags=re.MULTILINE)
    assert listed == re.findall(r"^### (.+)$", sections, flags=re.MULTILINE)
    assert len(listed) == len(set(listed)) >= 160
    order = [room for room in ORDER if "." not in room]
    names = [re.findall(r"`(\w+)(?:\.py|/)`", room) for room in rooms]
    named = [min(map(order.index, found)) for found in names if found]
    assert names[:2] == [[], ["trainer", "run"]]
    # The trainer and its run come first, since everything else is a part of them.
    assert named[1:] == sorted(named[1:])
