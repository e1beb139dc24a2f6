"""Every test that the table of guarantees names is there, and is no other test than it seems."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| (?P<what>.+) \| `(?P<file>tests/[\w/]+\.py)::(?P<test>test_\w+)` \|$")


def rows() -> list[re.Match[str]]:
    """Return the rows of all tables of the page."""
    lines = (ROOT / "docs" / "guarantees.md").read_text().splitlines()
    tables = [line for line in lines if line.startswith("| ") and line != "| what | test |"]
    found = [ROW.match(line) for line in tables]
    assert None not in found, [line for line, match in zip(tables, found, strict=True) if match is None]
    return [match for match in found if match is not None]


@cache
def functions_of(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("row", [pytest.param(row, id=row["test"]) for row in rows()])
def test_the_test_of_a_guarantee_exists(row: re.Match[str]) -> None:
    assert (ROOT / row["file"]).is_file()
    assert row["test"] in functions_of(row["file"])


def test_a_guarantee_is_given_once_and_there_are_many() -> None:
    promises = [row["what"] for row in rows()]
    assert len(promises) == len(set(promises)) >= 30
