"""Imports point one way, and what belongs in one place stands there only."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parents[1] / "treadle"

PARTS = "parts"
"""The layer of every module that is named nowhere below: data, precision, schedules, parallel and their like."""
LAYERS: list[set[str]] = [
    {"errors"},
    {"progress", "events", "config"},
    {PARTS},
    {"callbacks"},
    {"trainer"},
    {"lr_finder", "timm_schedule", "steps", "writers"},
    {"search"},
    {"engine", "recsys", "nas"},
    {"report", "doctor", "verification", "migration", "demos", "starting", "cli"},
]
"""From the lowest to the highest; the private modules beside `trainer` are parts of it."""
PACKS = {"engine", "recsys", "nas"}
UPDATES = {"loop", "precision", "nonfinite", "direct_step"}
"""Where a gradient is calculated and applied, and nowhere else."""


class Import(NamedTuple):
    """A line that imports a module of Treadle."""

    importer: str
    imported: str
    line: int

    def __str__(self) -> str:
        return f"{self.importer}, line {self.line}, imports {self.imported}"


@cache
def modules() -> dict[str, ast.Module]:
    """Return the syntax tree of every module of the package, by its dotted name; a package by its own."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = ast.parse(path.read_text(), str(path))
    return found


def running_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield every node, functions' bodies included, but nothing that only type checkers see."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from running_nodes(child)


def imports_of(name: str) -> Iterator[Import]:
    for node in running_nodes(modules()[name]):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}, line {node.lineno}: imports are absolute"
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            targets = [target if target in modules() else str(node.module) for target in inner]
        else:
            continue
        for target in targets:
            assert target != "treadle", f"{name}, line {node.lineno}: import from the module that defines the name"
            if target.split(".")[0] == "treadle":
                yield Import(name, target, node.lineno)


@cache
def all_imports() -> list[Import]:
    # The package itself only names what it loads on first use.
    return [found for name in modules() if name != "treadle" for found in imports_of(name)]


def room(module: str) -> str:
    """Return the first name below the package; `trainer` for the trainer's private parts, `cli` for what runs it."""
    first = module.split(".")[1]
    if first == "__main__":
        return "cli"
    return "trainer" if first.startswith("_") else first


def layer(module: str) -> int:
    named = room(module)
    return next((place for place, names in enumerate(LAYERS) if named in names), LAYERS.index({PARTS}))


def test_imports_point_to_the_same_layer_or_a_lower_one() -> None:
    upward = [str(found) for found in all_imports() if layer(found.imported) > layer(found.importer)]
    assert not upward, "\n".join(upward)


def test_every_import_of_treadle_names_a_module_that_is_there() -> None:
    unknown = [str(found) for found in all_imports() if found.imported not in modules()]
    assert not unknown, "\n".join(unknown)


def test_no_module_imports_itself_by_a_detour() -> None:
    graph: dict[str, set[str]] = {name: set() for name in modules()}
    for found in all_imports():
        graph[found.importer].add(found.imported)
    TopologicalSorter(graph).prepare()  # raises a CycleError that lists the modules


def test_packs_do_not_import_each_other() -> None:
    between = [
        str(found)
        for found in all_imports()
        if {room(found.importer), room(found.imported)} <= PACKS and room(found.importer) != room(found.imported)
    ]
    assert not between, "\n".join(between)


def test_the_core_names_no_pack() -> None:
    # A packaged configuration names its targets as words, which nothing imports until somebody builds them.
    ours = [name for name in modules() if name != "treadle" and not name.startswith("treadle.config.configs")]
    core = [name for name in ours if layer(name) < LAYERS.index(PACKS)]
    texts = {name: ast.unparse(modules()[name]) for name in core}
    named = [
        f"{name} names treadle.{pack}" for name, text in texts.items() for pack in PACKS if f"treadle.{pack}" in text
    ]
    assert not named, "\n".join(named)


def test_only_the_package_itself_loads_modules_by_name() -> None:
    names = {"import_module", "__import__"}
    assert [place for place in calls() if place.function in names and place.module != "treadle"] == []


class Call(NamedTuple):
    """A call in the source, with what it is called on and its keywords as text."""

    module: str
    line: int
    receiver: str
    function: str
    keywords: frozenset[str]


@cache
def calls() -> list[Call]:
    found = []
    for name, tree in modules().items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            target = node.func
            receiver = ast.unparse(target.value) if isinstance(target, ast.Attribute) else ""
            function = target.attr if isinstance(target, ast.Attribute) else ast.unparse(target)
            keywords = frozenset(ast.unparse(keyword) for keyword in node.keywords)
            found.append(Call(name, node.lineno, receiver, function, keywords))
    return found


def test_gradients_are_calculated_in_the_core_only() -> None:
    places = [call for call in calls() if call.function == "backward"]
    assert places, "nothing calculates a gradient: this test looks for the wrong thing"
    assert [place for place in places if room(place.module) not in UPDATES] == []


def test_optimizers_step_in_the_core_only() -> None:
    places = [call for call in calls() if call.function == "step" and steps_an_optimizer(call)]
    assert places, "no optimizer steps: this test looks for the wrong thing"
    assert [place for place in places if room(place.module) not in UPDATES] == []


def steps_an_optimizer(call: Call) -> bool:
    """Whether the call is `optimizer.step()`, whatever object the optimizer hangs on, or a scaler's step of one."""
    last = call.receiver.lower().rsplit(".", 1)[-1]
    return "optim" in last or "scaler" in last


def test_nothing_evaluates_text_as_code() -> None:
    assert [call for call in calls() if call.function in {"eval", "exec"} and not call.receiver] == []


PICKLERS = {"pickle", "cPickle", "dill", "cloudpickle", "joblib"}
PICKLE_ERRORS = {"UnpicklingError", "PicklingError"}
"""What of a pickler may be named: the errors that torch's restricted reader raises."""


def names_from_picklers(tree: ast.Module) -> Iterator[str]:
    """Yield every name that is taken from a module that can unpickle."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] in PICKLERS:
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (f"as {alias.asname}" for alias in node.names if alias.name in PICKLERS and alias.asname)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in PICKLERS:
            yield node.attr


def test_nothing_is_unpickled() -> None:
    used = {name: set(names_from_picklers(tree)) - PICKLE_ERRORS for name, tree in modules().items()}
    assert {name: names for name, names in used.items() if names} == {}
    safe = {("torch", "load"): "weights_only=True", ("np", "load"): "allow_pickle=False"}
    loads = [(call, safe[call.receiver, call.function]) for call in calls() if (call.receiver, call.function) in safe]
    assert [call for call, keyword in loads if keyword not in call.keywords] == []
    assert [call for call in calls() if call.keywords & {"weights_only=False", "allow_pickle=True"}] == []


def test_only_the_accelerator_prints() -> None:
    places = {room(call.module) for call in calls() if call.function == "print" and not call.receiver}
    assert places == {"accelerator"}


def in_a_new_process(program: str) -> object:
    """Run `program`, which prints JSON, and return what it printed."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=PACKAGE.parent)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_importing_the_package_loads_nothing_but_the_standard_library() -> None:
    program = """
import importlib, json, sys, typing
before = set(sys.modules)
import treadle
print(json.dumps(sorted(set(sys.modules) - before)))
"""
    assert in_a_new_process(program) == ["treadle"]


STATE = """
import json, logging, os, random, sys, threading, warnings
import numpy, torch

def state():
    return [
        repr(random.getstate()), repr(numpy.random.get_state()), torch.get_rng_state().tolist(),
        dict(os.environ), repr(warnings.filters), threading.active_count(), logging.root.level,
        len(logging.root.handlers), torch.get_num_threads(), str(torch.get_default_dtype()), repr(sys.excepthook),
        torch.backends.cudnn.benchmark, torch.backends.cuda.matmul.allow_tf32,
        torch.are_deterministic_algorithms_enabled(),
    ]

before, loaded = state(), set(sys.modules)
import treadle.trainer
new = {name.split(".")[0] for name in set(sys.modules) - loaded}
print(json.dumps({"changed": before != state(), "new": sorted(new - set(sys.stdlib_module_names))}))
"""


def test_importing_the_trainer_changes_nothing_and_loads_only_what_a_step_needs() -> None:
    # Neither rich nor torchmetrics, matplotlib or omegaconf: a machine without them can train.
    assert in_a_new_process(STATE) == {"changed": False, "new": ["safetensors", "treadle"]}
