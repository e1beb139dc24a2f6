"""A file of another system, recognised and turned into one for Treadle."""

import ast
from collections.abc import Callable
from pathlib import Path

from treadle.errors import ConfigError
from treadle.tools.migrate import libai as lazy_configs
from treadle.tools.migrate import lightning, loops, nni, pytorch_accelerated, recbole, transformers
from treadle.tools.migrate import nni as search_spaces
from treadle.tools.migrate.checker import find_problems
from treadle.tools.migrate.migration import Migration, Note, line_finder
from treadle.tools.migrate.source import Source

PROGRAMS: dict[str, tuple[tuple[str, ...], Callable[[Source], None]]] = {
    "pytorch-accelerated": (pytorch_accelerated.ROOTS, pytorch_accelerated.migrate),
    "Lightning": (lightning.ROOTS, lightning.migrate),
    "RecBole": (recbole.ROOTS, recbole.migrate),
    "LiBai": (lazy_configs.ROOTS, lazy_configs.migrate),
    "NNI": (nni.ROOTS, nni.migrate),
    "transformers": (transformers.ROOTS, transformers.migrate),
}
"""Systems by name: their packages, and what turns a program for them into one for Treadle."""


def migrate(path: Path) -> Migration:
    """Return what a file for another system is for Treadle; nothing is written.

    Raises:
        ConfigError: It cannot be read, or is of no system that is known.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if path.suffix == ".json" and search_spaces.is_search_space(text, path):
        after, notes = search_spaces.migrate_search_space(text, path)
        return Migration(path, "NNI", text, after, notes, path.with_suffix(".yaml"))
    if path.suffix in (".yaml", ".yml"):
        after, notes = recbole.migrate_settings(text, path)
        return Migration(path, "RecBole", text, after, sorted(notes))
    if path.suffix != ".py":
        raise ConfigError(
            f"{path} is neither a program (.py), nor settings (.yaml), nor a search space of NNI's (.json)"
        )
    return _program(Source(text, path))


def _program(source: Source) -> Migration:
    """Turn a program that may use several systems, one after the other, into one for Treadle."""
    path, before, after = source.path, source.text, source.text
    systems = [name for name, (roots, _) in PROGRAMS.items() if _imports(source.tree) & set(roots)]
    if "transformers" in systems and not transformers.has_trainer(source.tree):
        # Its models are trained by anybody's loop.
        systems.remove("transformers")
    if not systems and loops.is_loop(source.tree):
        loops.migrate(source)
        after = source.result()
        found = [*source.notes, *(_checked(before, after) if after != before else [])]
        return Migration(path, "a hand-written loop", before, after, sorted(set(found)))
    if not systems:
        known = ", ".join(PROGRAMS)
        raise ConfigError(
            f"{path} has no loop with a backward pass, and imports none of the systems that are known: {known}"
        )
    notes: list[Note] = []
    for name in systems:
        one = Source(after, path)
        PROGRAMS[name][1](one)
        after = one.result()
        notes += one.notes
    told = {note.line for note in notes if note.left}
    notes += [note for note in _checked(before, after) if note.line not in told]
    return Migration(path, " and ".join(systems), before, after, sorted(set(notes)))


def _checked(before: str, after: str) -> list[Note]:
    """Return what keeps a migrated program from running, by the lines of the old one."""
    found = find_problems(after)
    place = line_finder(before, after) if found else None
    return [Note(place(line), text) for line, text in found] if place is not None else []


def _imports(tree: ast.Module) -> set[str]:
    """Return the packages that a program imports."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(str(node.module).split(".")[0])
    return found
