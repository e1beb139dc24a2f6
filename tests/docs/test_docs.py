"""What the pages say is so: their programs run, their links lead somewhere, their tables are those of the code."""

import inspect
import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from treadle import callbacks, schedules
from treadle.callback import EVENTS
from treadle.checkpoint import Policy
from treadle.phase import Phase
from treadle.trainer import Trainer

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
LINKED = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
NOT_RUN = "no-run"
"""Stands behind the language of a block that is only a signature or a fragment."""
TITLED = re.compile(r'python title="[\w.]+"')
"""A block that is a file: the test of its page, `test_tutorial.py` or `test_recsys_serving.py`, writes and runs it."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: its info string, its text, the line it begins at, and the line above it."""

    info: str
    text: str
    line: int
    above: str


def blocks_of(text: str) -> Iterator[Block]:
    """Yield the fenced blocks of a page."""
    lines = text.splitlines()
    start: int | None = None
    for place, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if start is None:
            start = place
            continue
        above = next((earlier for earlier in reversed(lines[:start]) if earlier.strip()), "")
        yield Block(lines[start][3:].strip(), "\n".join(lines[start + 1 : place]), start + 2, above)
        start = None
    assert start is None, f"the block at line {start} is never closed"


def programs_of(text: str) -> list[Block]:
    """Return the blocks of a page that are Python, run or not."""
    return [block for block in blocks_of(text) if block.info.split()[:1] == ["python"]]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


SLOW = (ROOT / "README.md", DOCS / "resume.md")
"""Pages whose programs write many checkpoints."""

with_programs = [
    pytest.param(page, id=name_of(page), marks=[pytest.mark.slow] if page in SLOW else [])
    for page in PAGES
    if any(block.info == "python" for block in programs_of(page.read_text()))
]


@pytest.mark.parametrize("page", with_programs)
def test_the_programs_of_a_page_run(
    page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    for block in programs_of(page.read_text()):
        if block.info == "python":
            # Blank lines in front, so that an error is reported at its line of the page.
            code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
            exec(code, names)  # noqa: S102 - to run them is what the test is for
    capsys.readouterr()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_program_that_is_not_run_says_why(page: Path) -> None:
    for block in programs_of(page.read_text()):
        if TITLED.fullmatch(block.info) and page in (DOCS / "tutorial.md", DOCS / "recsys-serving.md"):
            continue
        assert block.info in ("python", f"python {NOT_RUN}"), f"line {block.line}: {block.info!r}"
        if block.info != "python":
            reason = re.fullmatch(r"<!--\s*(.+?)\s*-->", block.above)
            assert reason is not None, f"line {block.line}: say why in an HTML comment above the block"
            assert len(reason[1].split()) >= 3, f"line {block.line}: {reason[1]!r} is no reason"


def links_in(text: str) -> list[str]:
    """Return the targets of all links of a page, blocks and code left out."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", prose))


def anchors_of(text: str) -> set[str]:
    """Return the anchors that the headings of a page have."""
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", LINKED, ids=name_of)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    for link in links_in(page.read_text()):
        if "://" in link:
            continue
        target, _, anchor = link.partition("#")
        path = (page.parent / target) if target else page
        assert path.exists(), f"{link} does not exist"
        if anchor:
            assert anchor in anchors_of(path.read_text()), f"{link}: there is no such heading"


def test_every_page_of_the_documentation_is_in_the_index() -> None:
    linked = links_in((DOCS / "index.md").read_text())
    pages = [str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")]
    assert [page for page in pages if page != "index.md" and page not in linked] == []


def test_every_callback_is_in_the_table_with_its_arguments() -> None:
    page = (DOCS / "callbacks.md").read_text()
    kinds = [getattr(callbacks, name) for name in callbacks.__all__ if name not in ("TrainerCallback", "WatchesMetric")]
    wanted = [call_of(kind) for kind in kinds if isinstance(kind, type)]
    assert [call for call in wanted if f"| `{call}` |" not in page] == []


def call_of(kind: type) -> str:
    """Return how to build a thing, with its defaults: `Name(required, other=1)`."""
    parts = []
    for parameter in inspect.signature(kind).parameters.values():
        default = parameter.default
        shown = default.__name__ if isinstance(default, type) else repr(default)
        parts.append(parameter.name if default is parameter.empty else f"{parameter.name}={shown}")
    return f"{kind.__name__}({', '.join(parts)})"


def test_every_schedule_is_on_its_page() -> None:
    page = (DOCS / "schedules.md").read_text()
    kinds = [name for name in schedules.__all__ if name != "require_factory"]
    assert [name for name in kinds if f"`{name}" not in page] == []


def test_every_event_is_on_the_pages_of_the_loop_and_of_callbacks() -> None:
    for page in ("loop.md", "callbacks.md"):
        text = (DOCS / page).read_text()
        assert [event for event in EVENTS if event not in text] == [], page


@pytest.mark.parametrize(("kind", "page"), [(Phase, "loop.md"), (Policy, "resume.md")])
def test_every_argument_of_a_phase_and_of_a_policy_is_on_its_page(kind: Any, page: str) -> None:
    text = (DOCS / page).read_text()
    assert [name for name in inspect.signature(kind).parameters if not re.search(rf"\b{name}\b", text)] == []


@pytest.mark.parametrize("function", [Trainer, Trainer.train])
def test_every_argument_of_the_trainer_is_on_some_page(function: Any) -> None:
    text = "".join(page.read_text() for page in PAGES)
    names = [name for name in inspect.signature(function).parameters if name != "self"]
    assert [name for name in names if not re.search(rf"`{name}\b", text)] == []


def test_the_reader_of_blocks_finds_text_place_and_what_stands_above() -> None:
    page = "a\n\n<!-- only a part -->\n\n```python no-run\nx = 1\ny\n```\n```sh\nls\n```\n"
    assert list(blocks_of(page)) == [
        Block("python no-run", "x = 1\ny", 6, "<!-- only a part -->"),
        Block("sh", "ls", 10, "```"),
    ]


def test_the_reader_of_links_leaves_code_out() -> None:
    assert links_in("[a](b.md) `[c](d)` [e](f.md#g)\n```\n[h](i)\n```\n") == ["b.md", "f.md#g"]
    assert anchors_of("# The `loop`, on one page\n## Two\n") == {"the-loop-on-one-page", "two"}


DOORS = {"core": 1, "steps": 2, "engine": 3, "recommender": 4, "search": 5}
"""The columns of the table of names, by the first word of a recorded program."""
PATTERNS = {
    "<metric>": r"[\w@]+",
    "<choice>": r"\w+",
    "<candidate>": r"\w+",
    "<group>": r"\w+",
    "<name>": r"\w+",
    "<number>": r"\d+",
}
BY_CALLBACK = ("ema_model_", "val_loss", "Acc@")
"""What recorded programs report that is their own: by a callback, by `self.log`, by an evaluator."""


def test_the_names_that_each_door_reports_are_those_of_the_table() -> None:
    page = (DOCS / "events.md").read_text()
    everywhere = [row.split("|")[1] for row in page.splitlines() if row.startswith("| `") and row.count("|") == 3]
    rows = [row.split("|")[1:-1] for row in page.splitlines() if row.startswith("| ") and row.count("|") == 7]
    programs = json.loads((ROOT / "tests" / "golden" / "golden.json").read_text())["programs"]
    for door, column in DOORS.items():
        cells = [*everywhere, *(row[column] for row in rows)]
        known = [re.escape(name) for cell in cells for name in re.findall(r"`([^`]+)`", cell)]
        for mark, pattern in PATTERNS.items():
            known = [name.replace(mark, pattern) for name in known]
        recorded = {
            name
            for program, record in programs.items()
            if program.split()[0] == door
            for line in record["metrics"]
            for name in (json.loads(line) if isinstance(line, str) else line)
        }
        assert len(recorded) > 4
        unknown = [name for name in recorded if not any(re.fullmatch(one, name) for one in known)]
        assert [name for name in sorted(unknown) if not name.startswith(BY_CALLBACK)] == [], door


def test_every_extra_is_on_the_page_about_installing_with_what_it_installs() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    rows = [row.split("|")[1:4] for row in (DOCS / "install.md").read_text().splitlines() if row.startswith("| `")]
    shown = {name: row[2].lower() for row in rows for name in re.findall(r"`([\w-]+)`", row[0])}
    assert set(shown) == set(extras)
    for name, packages in extras.items():
        named = {re.split(r"[\[<>=;]", package)[0].strip() for package in packages}
        wanted = named - {"treadle", "xgboost-cpu"} if name != "dev" else set()
        assert [one for one in sorted(wanted) if one not in shown[name]] == [], name
