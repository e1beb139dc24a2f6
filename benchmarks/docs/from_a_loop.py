"""The programs and the counts of docs/from-a-loop.md, from the files of examples/from_a_loop.

`python -m benchmarks.docs.from_a_loop` writes them between the comments of the page; a test compares both.
"""

import io
import tokenize
from pathlib import Path

from benchmarks.docs.readme import README, fill

ROOT = README.parent
PAGE = ROOT / "docs" / "from-a-loop.md"
EXAMPLES = ROOT / "examples" / "from_a_loop"
KINDS = {
    "classifier": "image classifier",
    "vae": "variational autoencoder",
    "recurrent": "language model with carried hidden state",
    "gpt": "GPT with gradient accumulation",
}
SILENT = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


def count_lines(path: Path) -> int:
    """Return how many lines of a program have code: blank lines, comments and docstrings are not counted."""
    lines: set[int] = set()
    begins = True
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        is_docstring = begins and token.type == tokenize.STRING
        if token.type not in SILENT and not is_docstring:
            lines.update(range(token.start[0], token.end[0] + 1))
        if token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT):
            begins = token.type == tokenize.NEWLINE
    return len(lines)


def table() -> str:
    """Return the table of lines."""
    rows = ["| program | hand-written | with Treadle |", "|---|--:|--:|"]
    for kind, name in KINDS.items():
        before, after = (count_lines(EXAMPLES / kind / f"{one}.py") for one in ("loop", "trainer"))
        rows.append(f"| {name} | {before} | {after} |")
    return "\n".join(rows)


def block(kind: str, name: str) -> str:
    """Return a program as a block of the page."""
    path = EXAMPLES / kind / f"{name}.py"
    shown = path.relative_to(ROOT).as_posix()
    return f"<!-- the file {shown}, which a test runs -->\n\n```python no-run\n{path.read_text(encoding='utf-8')}```"


def parts() -> dict[str, str]:
    """Return what stands between the comments of the page, by their names."""
    blocks = {f"{kind}/{name}": block(kind, name) for kind in KINDS for name in ("loop", "trainer")}
    return {"lines": table(), **blocks}


if __name__ == "__main__":
    for name, text in parts().items():
        fill(name, text, PAGE)
