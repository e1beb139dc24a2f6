"""Lazy configs and programs for LiBai and detectron2."""

import ast
import inspect
from collections.abc import Iterator
from functools import cache
from typing import Any

from treadle.errors import ConfigError, did_you_mean
from treadle.tools.migrate.imports import Home, ImportMap, Rewriter, read_import_map
from treadle.tools.migrate.source import Source

ROOTS = ("libai", "detectron2", "oneflow")
OTHERS = {
    ("detectron2.config", "LazyCall"): Home("treadle.config", "LazyCall"),
    ("detectron2.config", "LazyConfig"): Home("treadle.config", "LazyConfig"),
    ("detectron2.config", "instantiate"): Home("treadle.config", "instantiate"),
    ("detectron2.config", "configurable"): Home("treadle.config", "configurable"),
    ("detectron2.engine", "default_argument_parser"): Home("treadle.engine", "default_argument_parser"),
    ("detectron2.engine", "default_setup"): Home("treadle.engine", "default_setup"),
    ("detectron2.engine", "hooks"): Home("treadle.engine", "hooks"),
    ("detectron2.engine", "HookBase"): Home("treadle.engine", "HookBase"),
    ("detectron2.engine", "TrainerBase"): Home("treadle.engine", "TrainerBase"),
    ("detectron2.evaluation", "DatasetEvaluator"): Home("treadle.engine.evaluation", "DatasetEvaluator"),
    ("detectron2.solver.build", "get_default_optimizer_params"): Home(
        "treadle.optim.param_groups", "get_default_optimizer_params"
    ),
    ("detectron2.utils.events", "EventStorage"): Home("treadle.events", "EventStorage"),
    ("detectron2.utils.events", "get_event_storage"): Home("treadle.events", "get_event_storage"),
    ("detectron2.utils.events", "EventWriter"): Home("treadle.writers", "EventWriter"),
    ("detectron2.utils.events", "JSONWriter"): Home("treadle.writers", "JSONWriter"),
    ("detectron2.utils.events", "CommonMetricPrinter"): Home("treadle.writers", "CommonMetricPrinter"),
    ("detectron2.utils.events", "TensorboardXWriter"): Home("treadle.writers", "TensorboardXWriter"),
}
DETECTRON_KEYS = {
    "max_iter": "train_iter",
    "init_checkpoint": "load_weight",
    "eval_period": "evaluation.eval_period",
    "device": "dist.device_type",
}
"""Keys of detectron2's `train` that are called otherwise."""
PLACED = ("sbp", "placement", "to_global", "to_local", "to_consistent")
"""What says where in a cluster OneFlow keeps a tensor; Treadle's plans need no such words."""


def migrate(source: Source) -> None:
    """Turn a lazy config, or a program around one, into one for Treadle."""
    known = read_import_map()
    rewriter = Rewriter(source, ImportMap({**known.homes, **OTHERS}, known.reasons), ROOTS, fallback=_of_torch)
    rewriter.run()
    _rewrite_relative_imports(source, rewriter)
    _check_packaged(source, rewriter)
    _check_placed(source)
    _rename_keys(source)
    _check_optimizer(source)
    rewriter.finish()


def _of_torch(full: str) -> Home | None:
    """Return what torch has of the same name as OneFlow; None if it has nothing."""
    import torch

    names = full.split(".")
    if names[0] != "oneflow":
        return None
    found: Any = torch
    for name in names[1:]:
        found = getattr(found, name, None)
        if found is None:
            return None
    return Home("", ".".join(["torch", *names[1:]]))


@cache
def _packaged(path: str) -> Any:
    """Return a config that comes with Treadle; None if there is none of that name."""
    from treadle.config import get_config

    try:
        return get_config(path)
    except ConfigError:
        return None


def _rewrite_relative_imports(source: Source, rewriter: Rewriter) -> None:
    """Turn imports from LiBai's own configs, which lie beside the file there, into those that come with Treadle."""
    for node in source.find(ast.ImportFrom):
        module = str(node.module or "")
        inside = module.removeprefix("configs.")
        if not inside.startswith("common.") or (node.level == 0 and not module.startswith("configs.")):
            continue
        path = inside.replace(".", "/") + ".py"
        config = _packaged(path)
        missing = [alias.name for alias in node.names if config is None or alias.name not in config]
        if missing:
            source.note(
                node, f"{path} of LiBai has no counterpart for {', '.join(missing)}: write the config of your own"
            )
            continue
        get = rewriter.want("treadle.config", "get_config")
        lines = [f'{alias.asname or alias.name} = {get}("{path}").{alias.name}' for alias in node.names]
        source.replace(node, "\n".join(lines))


def _check_packaged(source: Source, rewriter: Rewriter) -> None:
    for node in source.find(ast.Call):
        full = rewriter.full_name(node.func) or ""
        if full.endswith(".get_config") and node.args and isinstance(node.args[0], ast.Constant):
            path = str(node.args[0].value)
            if _packaged(path) is None:
                source.note(
                    node,
                    f"{path!r} is a config of LiBai's; Treadle has common/train.py, optim.py, schedule.py and "
                    "models/graph.py: write that one yourself",
                )


def _check_placed(source: Source) -> None:
    for node in source.find(ast.Attribute):
        if node.attr in PLACED and not isinstance(source.parent(node), ast.Attribute):
            source.note(node, f".{node.attr} says where OneFlow keeps a tensor; leave it out, and set train.dist")


def _rename_keys(source: Source) -> None:
    """Give keys of `train` the names that they have here, and say which are not known."""
    for node, path in _keys_set(source, "train"):
        if _known(path):
            continue
        new = DETECTRON_KEYS.get(path)
        if new is not None and isinstance(node, ast.Attribute):
            value = source.segment(node.value)
            source.replace(node, f"{value}.{new}")
        elif new is not None and isinstance(node, ast.keyword) and "." not in new:
            start, _ = source.span(node)
            source.replace_span((start, start + len(str(node.arg))), new)
        else:
            hint = f"; it is train.{new} here" if new else did_you_mean(path, _paths())
            source.note(node if hasattr(node, "lineno") else 0, f"train.{path} is not known{hint}")


def _keys_set(source: Source, section: str) -> list[tuple[Any, str]]:
    """Return what sets keys of a packaged section, one by one or many at once, with the path of each key."""
    names = _called(source, section)
    found: list[tuple[Any, str]] = []
    for node in source.find(ast.Assign, ast.AugAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            path = _path(target, names)
            found += [(target, path)] if path else []
            if path is not None and isinstance(node, ast.Assign):
                found += _in_mapping(node.value, path)
    for node in source.find(ast.Call):
        path = _path(node.func.value, names) if isinstance(node.func, ast.Attribute) else None
        if path is not None and node.func.attr == "update":
            for given in (*node.args, ast.Call(ast.Name("dict"), [], node.keywords)):
                found += _in_mapping(given, path)
    return found


def _called(source: Source, section: str) -> set[str]:
    """Return what a program calls a packaged section."""
    names = {section}
    for node in source.find(ast.ImportFrom):
        if str(node.module).endswith(f"common.{section}"):
            names |= {alias.asname or alias.name for alias in node.names if alias.name == section}
    for node in source.find(ast.Assign):
        text = ast.unparse(node.value)
        if "get_config(" in text and text.endswith(f").{section}"):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def _path(node: Any, names: set[str]) -> str | None:
    """Return the path of `train.amp` or `train["amp"]` below the section; None if it is of no section."""
    if isinstance(node, ast.Name):
        return "" if node.id in names else None
    if isinstance(node, ast.Attribute):
        key = node.attr
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        key = str(node.slice.value)
    else:
        return None
    above = _path(node.value, names)
    return None if above is None else f"{above}.{key}".lstrip(".")


def _in_mapping(node: Any, above: str) -> Iterator[tuple[Any, str]]:
    """Yield the keys of `dict(...)` or `{...}`, and of such in them."""
    pairs: list[tuple[Any, str, Any]] = []
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "dict":
        pairs = [(keyword, keyword.arg, keyword.value) for keyword in node.keywords if keyword.arg]
    elif isinstance(node, ast.Dict):
        keyed = zip(node.keys, node.values, strict=True)
        pairs = [(key, str(key.value), value) for key, value in keyed if isinstance(key, ast.Constant)]
    for place, key, value in pairs:
        path = f"{above}.{key}".lstrip(".")
        yield place, path
        yield from _in_mapping(value, path)


def _check_optimizer(source: Source) -> None:
    """Say which keys are given to the optimizer that comes with Treadle and that it does not take."""
    from treadle.config import locate

    bound = [node.value for node in source.find(ast.Assign) if ast.unparse(node.targets[0]) == "optim"]
    if any(not ast.unparse(value).endswith(").optim") for value in bound):
        return
    target: Any = locate(str(_packaged("common/optim.py").optim["_target_"]))
    takes = list(inspect.signature(target).parameters)
    for node, key in _keys_set(source, "optim"):
        if "." not in key and not key.startswith("_") and key not in takes:
            source.note(node, f"optim.{key}: {target.__name__} takes no {key!r}{did_you_mean(key, takes)}")


@cache
def _paths() -> tuple[str, ...]:
    def walk(value: Any, place: str) -> list[str]:
        inside = [(f"{place}.{key}".lstrip("."), value._get_node(key)) for key in value]
        below = [path for name, node in inside if hasattr(node, "keys") and node.keys() for path in walk(node, name)]
        return [name for name, _ in inside] + below

    return tuple(walk(_packaged("common/train.py").train, ""))


def _known(path: str) -> bool:
    # What a lazy call takes is checked when the config is loaded.
    free = ("evaluation.evaluator", "scheduler", "amp.loss_scaling")
    return path in _paths() or any(path == name or path.startswith(f"{name}.") for name in free)
