"""Google docstrings as Markdown."""

import re
import textwrap

SECTIONS = ("Args", "Attributes", "Raises", "Returns", "Yields")
_HEAD = re.compile(rf"^({'|'.join(SECTIONS)}):$")
_ENTRY = re.compile(r"^(\*{0,2}[\w., *]+?): (.*)$", flags=re.DOTALL)


def as_markdown(docstring: str) -> str:
    """Return a docstring as Markdown: sections as lists, examples as blocks.

    >>> print(as_markdown("Return twice `x`.\\n\\nArgs:\\n    x: A number,\\n        not too large.\\n"))
    Return twice `x`.
    <BLANKLINE>
    **Args**
    <BLANKLINE>
    - `x`: A number, not too large.
    """
    parts = []
    for paragraph in re.split(r"\n{2,}(?!    )", docstring.strip()):
        first, _, rest = paragraph.partition("\n")
        head = _HEAD.match(first)
        if head is not None:
            parts.append(_section(head[1], textwrap.dedent(rest)))
        elif first.startswith(">>>"):
            parts.append(f"```pycon\n{paragraph}\n```")
        else:
            parts.append(paragraph)
    return "\n\n".join(parts)


def _section(title: str, body: str) -> str:
    """Return a section as a list of its entries; one without names as a paragraph."""
    entries = re.split(r"\n(?=\S)", body.strip())
    lines = []
    for entry in entries:
        found = _ENTRY.match(entry)
        if found is None or title in ("Returns", "Yields"):
            return f"**{title}** {' '.join(body.split())}"
        lines.append(f"- {_names(found[1])}: {' '.join(found[2].split())}")
    return f"**{title}**\n\n" + "\n".join(lines)


def _names(text: str) -> str:
    return ", ".join(f"`{name.strip()}`" for name in text.split(","))
