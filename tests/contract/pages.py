"""The pages whose examples must run here: where they are, their code, and what may be changed in it.

The pages are not part of the project. They are looked for in the folder that the environment variable TREADLE_CONTRACT
names, else in `shared/contract` beside the checkout; where they are absent, the tests that read them skip.
"""

import ast
import os
import re
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

PROJECT = Path(__file__).parents[2]
IMPORT_MAP = PROJECT / "docs" / "import-map.md"


def contract_folder() -> Path:
    """Return where the pages are, whether they are there or not."""
    return Path(os.environ.get("TREADLE_CONTRACT") or PROJECT.parent / "shared" / "contract")


def read_page(name: str) -> str:
    """Return the text of a page; without it, skip the test that asks."""
    path = contract_folder() / name
    if not path.is_file():
        pytest.skip(f"{path} is not there; set TREADLE_CONTRACT to the folder of the contract pages")
    return path.read_text()


def literal_blocks(text: str) -> list[str]:
    """Return the code of a page in reStructuredText: each indented block after a line that ends with two colons.

    >>> literal_blocks("Write::\\n\\n    x = 1\\n\\n    y = 2\\n\\nThen::\\n\\n  z = 3\\n.. note::\\n    no code\\n")
    ['x = 1\\n\\ny = 2\\n', 'z = 3\\n']
    """
    pattern = r"^(?!\.\.)[^\n]*::\n\s*\n((?:[ \t]+[^\n]*\n|\s*\n)+)"
    return [dedent(block).strip("\n") + "\n" for block in re.findall(pattern, text + "\n", re.MULTILINE)]


def block_with(page: str, text: str) -> str:
    """Return the one block of a page that holds `text`."""
    (found,) = [block for block in literal_blocks(read_page(page)) if text in block]
    return found


def read_import_map() -> dict[str, str]:
    """Return the import lines of other systems, and ours for each."""
    rows = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|$", IMPORT_MAP.read_text(), re.MULTILINE)
    return dict(rows)


@dataclass(frozen=True)
class Mend:
    """A change to an example that cannot run anywhere as it is written.

    Attributes:
        old: What is written.
        new: What to run in its place, everywhere.
        reason: Why nobody can run it as written.
    """

    old: str
    new: str
    reason: str


def ported(code: str, *mends: Mend) -> str:
    """Return an example with its import lines changed as the import map says, and mended; nothing else changes."""
    for mend in mends:
        assert mend.old in code, f"nothing to mend: {mend.old!r} is not in the example any more"
        assert mend.reason, f"a change to the example without a reason: {mend.old!r}"
        code = code.replace(mend.old, mend.new)
    lines = code.splitlines()
    ours = read_import_map()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom):
            written = [f"from {node.module} import {ast.unparse(alias)}" for alias in node.names]
            if any(line in ours for line in written):
                lines[node.lineno - 1 : node.end_lineno] = ["; ".join(ours[line] for line in written)]
    return "\n".join(lines) + "\n"


def run(code: str, **names: Any) -> dict[str, Any]:
    """Execute an example with `names` defined, and return what it defines."""
    namespace: dict[str, Any] = {"__name__": "example", **names}
    exec(compile(code, "the example", "exec"), namespace)  # noqa: S102 - executing the page's code is the test
    return namespace
