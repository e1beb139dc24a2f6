"""Imports point one way, and what belongs in one place stands there only."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from typing import NamedTuple

from benchmarks.layers import ORDER, PACKAGE, all_imports, modules, points_up, room, typing_imports

PACKS = {"engine", "recsys", "nas", "hf"}
UPDATES = {"loop.update", "loop.nonfinite", "loop.custom_loop", "loop.accelerator", "precision", "optim.fused"}
"""Where a gradient is calculated and applied, and nowhere else."""


def is_in(module: str, places: set[str]) -> bool:
    return any(f"{module}.".startswith(f"treadle.{place}.") for place in places)


def test_imports_point_to_the_same_room_or_an_earlier_one() -> None:
    assert [str(found) for found in all_imports() if points_up(found)] == []


def test_imports_for_type_checkers_do_so_too() -> None:
    """What a part of a run is a part of, it knows by a protocol of its own room or of an earlier one."""
    assert len(typing_imports()) > len(all_imports())
    assert [str(found) for found in typing_imports() if points_up(found)] == []


def test_each_room_of_the_order_is_there_and_each_module_is_in_one() -> None:
    below = {name.removeprefix("treadle.") for name in modules() if name != "treadle"}
    assert {one for one in ORDER if one not in below} == set()
    assert {room(name) for name in modules() if name != "treadle"} == set(ORDER)


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
    core = [name for name in ours if ORDER.index(room(name)) < ORDER.index("engine")]
    texts = {name: ast.unparse(modules()[name]) for name in core}
    named = [
        f"{name} names treadle.{pack}" for name, text in texts.items() for pack in PACKS if f"treadle.{pack}" in text
    ]
    assert not named, "\n".join(named)


LOADERS = {
    *("treadle", "treadle.errors", "treadle.callbacks", "treadle.config", "treadle.parallel"),
    "treadle.config.former_names",
}
"""What loads names when they are used, and modules that have another name now."""


def test_only_what_loads_late_loads_modules_by_name() -> None:
    names = {"import_module", "load_module", "__import__"}
    assert [place for place in calls() if place.function in names and place.module not in LOADERS] == []


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
    assert [place for place in places if not is_in(place.module, UPDATES)] == []


def test_optimizers_step_in_the_core_only() -> None:
    places = [call for call in calls() if call.function == "step" and steps_an_optimizer(call)]
    assert places, "no optimizer steps: this test looks for the wrong thing"
    assert [place for place in places if not is_in(place.module, UPDATES)] == []


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
    places = {call.module for call in calls() if call.function == "print" and not call.receiver}
    assert places == {"treadle.loop.accelerator"}


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
