"""The mutation script draws what it says, kills what a test notices, and tells of what none does."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.mutation import TESTS, TREE, Copy, Mutation, drawn, main, mutations_of, sources_in
from benchmarks.mutation_equivalents import EQUIVALENTS, Equivalent

MODULE = '''
"""A module to be mutated."""


class Counter:
    def __init__(self) -> None:
        self.seen = 0

    def count(self, value: int, least: int = 3) -> int | None:
        """Return a third more; 1 is no number here."""
        if value >= least:
            self.seen += 1
            self.tell(value, f"{value + 1}")
            return value * 2 + 1
        return None

    def tell(self, value: int, text: str) -> None:
        text = text.strip()
        pass
'''
TEST = """
from shop.counter import Counter

def test_a_third_more():
    counter = Counter()
    assert counter.count(3) == 7
    assert counter.count(4) == 9
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "tree/shop").mkdir(parents=True)
    (tmp_path / "tree/shop/counter.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "tree/test_counter.py").write_text(TEST, encoding="utf-8")
    return tmp_path / "tree"


def of_module() -> list[Mutation]:
    return mutations_of("shop/counter.py", MODULE)


def test_every_kind_of_mutation_is_found_where_it_runs() -> None:
    found = {(one.kind, one.before, one.after) for one in of_module()}
    assert found == {
        ("remove", "self.seen = 0", "pass"),
        ("shift", "self.seen = 0", "self.seen = 1"),
        ("negate", "if value >= least:", "if not (value >= least):"),
        ("shift", "if value >= least:", "if value > least:"),
        ("remove", "self.seen += 1", "pass"),
        ("shift", "self.seen += 1", "self.seen += 2"),
        ("remove", 'self.tell(value, f"{value + 1}")', "pass"),
        ("swap", 'self.tell(value, f"{value + 1}")', 'self.tell(f"{value + 1}", value)'),
        ("return", "return value * 2 + 1", "return None"),
        ("swap", "return value * 2 + 1", "return value * 2 - 1"),
        ("swap", "return value * 2 + 1", "return value + 2 + 1"),
        ("shift", "return value * 2 + 1", "return value * 3 + 1"),
        ("shift", "return value * 2 + 1", "return value * 2 + 2"),
    }
    assert {one.function for one in of_module()} == {"Counter.__init__", "Counter.count"}


@pytest.mark.parametrize(
    ("line", "changes"),
    [
        ("x = a if b else c", {"x = a if not (b) else c"}),
        ("x = [a for a in b if a]", {"x = [a for a in b if not (a)]"}),
        ("x = a is None", {"x = a is not None"}),
        ("x = a not in b", {"x = a in b"}),
        ("x = a == b", {"x = a != b"}),
        ("x = a and b", {"x = a or b"}),
        ("x = f(a, b, True)", {"x = f(b, a, True)", "x = f(a, b, False)"}),
        ('x = "a" + b', set()),
        ('x = f"{a + 1}"', set()),
        ("x: list[1] = a", set()),
    ],
)
def test_lines_are_mutated_so_and_not_otherwise(line: str, changes: set[str]) -> None:
    found = mutations_of("one.py", f"def f():\n    {line}\n")
    assert {one.after for one in found} == changes
    for one in found:
        assert one.applied_to(f"def f():\n    {line}\n") == f"def f():\n    {one.after}\n"


def test_a_draw_is_the_same_wherever_the_lines_stand() -> None:
    here = drawn({"shop/counter.py": MODULE}, per_kind=2)
    moved = drawn({"house/till.py": "# moved\n\n" + MODULE}, per_kind=2)
    assert [one.key for one in here] == [one.key for one in moved]
    assert len({one.line for one in here}) == len(here)
    assert max(sum(one.kind == kind for one in here) for kind in ("remove", "shift", "negate", "swap", "return")) == 2


@pytest.mark.slow
def test_what_a_test_notices_is_killed_and_what_none_notices_survives(tree: Path, tmp_path: Path) -> None:
    copy = Copy(tree, tmp_path / "copy", names=("shop", "test_counter.py"))
    wrong = next(one for one in of_module() if one.after == "return value * 2 - 1")
    unseen = next(one for one in of_module() if one.after == "self.seen += 2")
    assert copy.kills(wrong, ("test_counter.py",))
    assert not copy.kills(unseen, ("test_counter.py",))
    assert (copy.root / "shop/counter.py").read_text(encoding="utf-8") == MODULE


@pytest.mark.slow
def test_a_mutation_without_an_end_is_killed(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.mutation.LEAST_PATIENCE", 0.5)
    monkeypatch.setattr("benchmarks.mutation.PATIENCE", 1.5)
    endless = next(one for one in of_module() if one.before == "self.seen += 1")
    endless = replace(endless, after="while True: pass")
    assert Copy(tree, tmp_path / "copy", names=("shop", "test_counter.py")).kills(endless, ("test_counter.py",))


@pytest.mark.slow
def test_tests_that_fail_by_themselves_kill_nothing(tree: Path, tmp_path: Path) -> None:
    (tree / "test_counter.py").write_text("def test_nothing():\n    assert False\n", encoding="utf-8")
    copy = Copy(tree, tmp_path / "copy", names=("shop", "test_counter.py"))
    with pytest.raises(SystemExit, match=r"without a mutation these fail: test_counter\.py"):
        copy.kills(of_module()[0], ("test_counter.py",))


def test_a_module_that_is_gone_is_told_of(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"TESTS names shop/till\.py, which is not there; mend the table"):
        sources_in(tmp_path, ["shop/till.py"])


@pytest.mark.slow
def test_the_command_ends_with_an_error_unless_every_survivor_is_listed(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = {"shop/*.py": ("test_counter.py",)}
    given: dict[str, Any] = {"tree": tree, "names": ("shop", "test_counter.py"), "table": table}
    one = next(one for one in drawn({"shop/counter.py": MODULE}) if one.before == "self.seen += 1")
    listed = Equivalent(one.path, one.function, one.before, one.after, "nobody looks")
    only = ["--only", "-    self.seen += 1"]
    with pytest.raises(SystemExit, match="1"):
        main(only, **given)
    assert "1 mutations survived" in capsys.readouterr().out
    main(only, equivalents=[listed], **given)
    assert "1 mutations, of which 1 are listed as equivalent" in capsys.readouterr().out
    (tree / "test_counter.py").write_text(TEST + "    assert counter.seen == 2\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="1"):
        main([*only, "--all"], equivalents=[listed], **given)
    assert "1 mutations are listed as equivalent, and a test notices them" in capsys.readouterr().out


def test_at_least_a_hundred_mutations_of_the_core_are_drawn_and_have_their_tests() -> None:
    assert len(drawn(sources_in(TREE, TESTS))) >= 100
    missing = {name for tests in TESTS.values() for name in tests if not (TREE / name.partition("::")[0]).exists()}
    assert missing == set()


def test_every_listed_mutation_is_listed_once_and_has_a_reason() -> None:
    assert len({one.key for one in EQUIVALENTS}) == len(EQUIVALENTS)
    assert all(one.reason and one.before != one.after for one in EQUIVALENTS)
