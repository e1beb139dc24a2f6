"""Model spaces and one-shot programs for NNI."""

import ast
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from treadle.errors import ConfigError
from treadle.tools.migrate.imports import Home, ImportMap, Rewriter, read_import_map
from treadle.tools.migrate.migration import Note
from treadle.tools.migrate.source import Source

# Search spaces of NNI's experiments, which are JSON, as the domains that `treadle search` takes


TYPE, VALUE = "_type", "_value"
KINDS: dict[str, Callable[[Any], str | None]] = {
    "choice": lambda values: f"one_of({', '.join(map(json.dumps, values))})",
    "uniform": lambda values: f"uniform({values[0]}, {values[1]})",
    "loguniform": lambda values: f"log({values[0]}, {values[1]})",
    "quniform": lambda values: f"uniform({values[0]}, {values[1]}, step={values[2]})",
    "randint": lambda values: f"int({values[0]}, {values[1] - 1})",
    "qloguniform": lambda values: f"int({values[0]}, {values[1]}, log=true)" if values[2] == 1 else None,
}


def is_search_space(text: str, path: Path) -> bool:
    """Whether a text is a search space of NNI's.

    Raises:
        ConfigError: It is no JSON.
    """
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}, line {error.lineno}, is no JSON: {error.msg}") from error
    return isinstance(content, dict) and any(isinstance(one, dict) and TYPE in one for one in content.values())


def migrate_search_space(text: str, path: Path) -> tuple[str, list[Note]]:
    """Return a search space as the part `search` of a config, in YAML, and what cannot be said so."""
    notes, lines = [], []
    for name, domain in json.loads(text).items():
        line = _key_line(text, name)
        try:
            written = _domain(domain)
        except (KeyError, IndexError, TypeError, ConfigError) as error:
            notes.append(Note(line, f"{name}: {error if isinstance(error, ConfigError) else 'it is no domain'}"))
            continue
        notes += [Note(line, f"{name}: {text}", left=False) for text in _shifted(domain)]
        quoted = written.replace("'", "''")
        lines.append(f"    {name}: '{quoted}'")
    return "\n".join(["search:", "  choices:", *lines]) + "\n", notes


def _domain(domain: Any) -> str:
    kind, values = domain[TYPE], domain[VALUE]
    if any(isinstance(value, dict) for value in values):
        raise ConfigError("a choice between spaces has no counterpart in a file; write the search in Python")
    if kind not in KINDS or (written := KINDS[kind](values)) is None:
        raise ConfigError(f"{kind} has no counterpart; use uniform, log, int or one_of")
    return str(written)


def _shifted(domain: Any) -> list[str]:
    """Return what to say of a domain whose grid lies elsewhere: NNI's begins at zero, Treadle's at the lowest."""
    kind, values = domain[TYPE], domain[VALUE]
    if kind != "quniform" or values[0] % values[2] == 0:
        return []
    return [f"the values were multiples of {values[2]}; here they are {values[0]} and steps of {values[2]} from it"]


def _key_line(text: str, name: str) -> int:
    """Return the line on which a name is a key."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip().lstrip("{").strip().startswith(json.dumps(name)):
            return number
    return 0


ROOTS = ("nni",)
LAYERS = ("nni.retiarii.nn.pytorch", "nni.nas.nn.pytorch", "nni.retiarii.nn.pytorch.nn")
"""NNI's copies of `torch.nn`."""
DECORATORS = (
    "nni.retiarii.model_wrapper",
    "nni.retiarii.basic_unit",
    "nni.retiarii.serializer.model_wrapper",
    "nni.retiarii.serializer.basic_unit",
    "nni.nas.nn.pytorch.basic_unit",
    "nni.trace",
)
"""What marks classes for NNI's own bookkeeping, of which there is none here."""
VALUES = ("choice", "ValueChoice")
OTHERS = {
    ("nni", "report_final_result"): Home("treadle.nas", "report_final_result"),
    ("nni", "report_intermediate_result"): Home("treadle.nas", "report_intermediate_result"),
    ("nni", "choice"): Home("treadle.nas", "ValueChoice"),
}
REASONS = {
    "RetiariiExperiment": "treadle.nas.Search, which trains each candidate; see docs/nas-search.md",
    "NasExperiment": "treadle.nas.Search, which trains each candidate; see docs/nas-search.md",
    "Experiment": "treadle.nas.Search, which trains each candidate; see docs/nas-search.md",
    "RetiariiExeConfig": "arguments of treadle.nas.Search",
    "FunctionalEvaluator": "a function of the candidate, as the objective of treadle.nas.Search",
    "get_next_parameter": "the objective of treadle.nas.Search gets the values as its argument",
    "fixed_arch": "treadle.nas.freeze(model, architecture)",
    "model_context": "treadle.nas.freeze(model, architecture)",
    "Random": "treadle.nas.Search without a strategy draws at random",
    "TPE": "treadle.nas.Tpe",
    "GridSearch": "treadle.nas.Grid",
    "RegularizedEvolution": "treadle.nas.Evolution",
}


def migrate(source: Source) -> None:
    """Turn a model space, or a program around one, into one for Treadle."""
    known = read_import_map()
    table = ImportMap({**known.homes, **OTHERS}, {**known.reasons, **REASONS})
    rewriter = Rewriter(source, table, ROOTS, fallback=_of_torch, dropped=DECORATORS)
    rewriter.run()
    _drop_decorators(source, rewriter)
    _rewrite_choices(source, rewriter)
    _build_layers(source, rewriter)
    rewriter.finish()


def _of_torch(full: str) -> Home | None:
    """Return where a layer is that NNI has a copy of."""
    from torch import nn

    module, _, name = full.rpartition(".")
    if full in LAYERS:
        return Home("torch", "nn")
    if module not in LAYERS:
        return None
    name = {"ModelSpace": "Module"}.get(name, name.removeprefix("Mutable"))
    return Home("torch", f"nn.{name}") if hasattr(nn, name) else None


def _drop_decorators(source: Source, rewriter: Rewriter) -> None:
    for node in source.find(ast.ClassDef, ast.FunctionDef):
        for decorator in node.decorator_list:
            inner = decorator.func if isinstance(decorator, ast.Call) else decorator
            if rewriter.full_name(inner) in DECORATORS:
                source.remove_line(decorator)


def _rewrite_choices(source: Source, rewriter: Rewriter) -> None:
    """Turn `nni.choice(label, values)` around: here the values come first."""
    for node in source.find(ast.Call):
        if rewriter.full_name(node.func) == "nni.choice" and len(node.args) == 2:
            label, values = map(source.segment, node.args)
            start, end = source.span(node.args[0])[0], source.span(node.args[1])[1]
            source.replace_span((start, end), f"{values}, label={label}")


def _build_layers(source: Source, rewriter: Rewriter) -> None:
    """Have torch's layers with a choice among their arguments built once it is made."""
    open_names = _names_of_values(source, rewriter)
    for node in source.find(ast.Call):
        full = rewriter.full_name(node.func)
        home = None if full is None else _of_torch(full)
        inside: list[Any] = [*node.args, *(keyword.value for keyword in node.keywords)]
        if home is not None and any(_has_value(one, rewriter, open_names) for one in inside):
            kind = rewriter.want(home.module, home.name)
            source.replace(node.func, rewriter.want("treadle.nas", "Built"))
            if node.args:
                source.insert_before(node.args[0], f"{kind}, ")
            elif node.keywords:
                source.insert_before(node.keywords[0], f"{kind}, ")


def _names_of_values(source: Source, rewriter: Rewriter) -> set[str]:
    """Return the variables and attributes that hold a choice of values."""
    found: set[str] = set()
    for node in source.find(ast.Assign, ast.AnnAssign):
        if node.value is not None and _has_value(node.value, rewriter, found, deeply=False):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {ast.unparse(target) for target in targets}
    return found


def _has_value(node: Any, rewriter: Rewriter, names: set[str], *, deeply: bool = True) -> bool:
    """Whether an expression is a choice of values, or calculates with one; choices inside of layers are theirs."""
    if isinstance(node, ast.Call):
        full = rewriter.full_name(node.func) or ""
        if full.rpartition(".")[2] in VALUES:
            return True
        if _of_torch(full) is not None:
            return False
    if isinstance(node, (ast.Name, ast.Attribute)) and ast.unparse(node) in names:
        return True
    if isinstance(node, ast.Call) and not deeply:
        return False
    return any(_has_value(child, rewriter, names, deeply=deeply) for child in ast.iter_child_nodes(node))
