"""Names that a program uses and nobody defines."""

import ast
import builtins
import symtable
from collections.abc import Iterator

ALWAYS = frozenset({*dir(builtins), "__file__", "__name__", "__doc__", "__builtins__", "__spec__", "__package__"})


def undefined_names(text: str, tree: ast.Module) -> list[tuple[int, str]]:
    """Return the names that are used and defined nowhere, each with the first line it is used in.

    Nothing is said of a program that imports all names of a module.

    >>> text = "def f():\\n    return x + len(y)\\ny = 1\\n"
    >>> undefined_names(text, ast.parse(text))
    [(2, 'x')]
    """
    if any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in ast.walk(tree)):
        return []
    tables = list(_tables(symtable.symtable(text, "program", "exec")))
    top = tables[0]
    defined = {one.get_name() for one in top.get_symbols() if one.is_assigned() or one.is_imported()}
    for table in tables[1:]:
        defined |= {one.get_name() for one in table.get_symbols() if one.is_declared_global() and one.is_assigned()}
    used = {
        one.get_name()
        for table in tables
        for one in table.get_symbols()
        if one.is_referenced() and (table is top or one.is_global()) and not (one.is_assigned() or one.is_imported())
    }
    lines: dict[str, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in used - defined - ALWAYS:
            lines[node.id] = min(node.lineno, lines.get(node.id, node.lineno))
    return sorted((line, name) for name, line in lines.items())


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)
