"""docs/options.md: every argument of the trainer and of `train`, what doors call it, and what does not go together.

`python -m benchmarks.docs.options_page` writes it, from the signatures, their docstrings and the tables of the doors. A
test compares the page with what would be written, and provokes each refusal that it lists.
"""

import ast
import inspect
import re
from pathlib import Path
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

import treadle.trainer
from treadle.engine.config import keys as of_engine
from treadle.lightning import trainer as of_steps
from treadle.nas.oneshot import trainer as of_search
from treadle.recsys.config import core_options as of_recommenders
from treadle.spec import Names, Refused, check_names
from treadle.trainer import Trainer

PAGE = Path(__file__).parents[2] / "docs" / "options.md"
DOORS: dict[str, tuple[Names, Names]] = {
    "engine": (of_engine.NAMES, of_engine.PARTS),
    "recommenders": (of_recommenders.NAMES, of_recommenders.PARTS),
    "search": (of_search.NAMES, of_search.PARTS),
    "StepTrainer": (of_steps.NAMES, of_steps.PARTS),
}
HEAD = """# Options

<!-- Written by `python -m benchmarks.docs.options_page`; change it there. -->
There is one loop and one set of options. Every door has each of them under a name of its own, or says why not.
What an option does is told where its subject is; here is what there is, what it is called, and what does not go
together.

The [engine](engine.md) has keys of a config; [recommenders](recsys.md) have settings, of a file, a dict or a command
line; a [one-shot search](nas.md) and `StepTrainer` have arguments, those of `fit` among them for what `train` is asked
for.
"""
NAMED = """## Behind the doors

A dash stands before the reason why there is none. `parallel` of the engine is `train.dist.*` and
`train.zero_optimization` together, and `precision` is `train.amp`. A recommender's `parallel` has no more than `data`,
since an evaluation needs whole tables of users and items on every process; its `gpu_id` goes with `use_gpu`. Of the
recommenders' own kinds of training, models that are fitted in one go, trees, loops of your own and several passes in
an epoch refuse what they cannot have, by its name and before anything is trained.
"""


class Argument(NamedTuple):
    """An argument of the core: where it stands, what it may be, and what it means."""

    name: str
    kind: str
    default: str
    meaning: str


class Conflict(NamedTuple):
    """Two options that do not go together, and a part of what is said then."""

    first: str
    second: str
    message: str


CONFLICTS = [
    Conflict("num_epochs=None", "max_steps=None", "train() needs a limit"),
    Conflict("max_steps", "max_num_train_steps with another number", "differ; pass one of them"),
    Conflict("save_every", "run_dir=None", "needs a folder for the run"),
    Conflict('resume="auto"', "run_dir=None", "needs a folder for the run"),
    Conflict('on_nonfinite="rollback"', "run_dir=None", "needs checkpoints to go back to"),
    Conflict('on_nonfinite="rollback"', "a `_run_training` of your own", "would not notice; use 'raise' or 'skip'"),
    Conflict("timeout", "one that processes have joined with", "give it to the first trainer of the program"),
    Conflict('execution="graph"', 'device="cpu"', "records the step on a CUDA device"),
    Conflict('execution="graph"', 'compile="reduce-overhead"', "records CUDA graphs of its own"),
    Conflict('execution="graph"', "offload_optimizer=True", "brings state from the host in every step"),
    Conflict('execution="graph"', 'microbatch="auto"', "changes the shape of a step"),
    Conflict('execution="graph"', "several processes", "gradients are exchanged inside"),
    Conflict('execution="graph"', "parallel=Plan(shard=...)", "which execution='graph' cannot record; use 'compile'"),
    Conflict("offload_optimizer=True", "an optimizer that mixes weights", "not known to be right for"),
    Conflict(
        "create_scheduler_fn", "optimizers that take turns", "create_scheduler_fn is for optimizers that step together"
    ),
    Conflict("lr_scaling", "batches of unknown size", "needs a batch size"),
    Conflict("extend=None", "a schedule by the length of a run that became longer", "pass extend='stretch'"),
    Conflict("parallel=Plan(shard=...)", "a loop of your own", "is your own, and may do anything"),
    Conflict("parallel=Plan(shard=...)", "optimizers that take turns", "sharded model make one update together"),
    Conflict("parallel=Plan(pipeline=...)", 'loss_reduction="sum"', "the stages know means only"),
    Conflict("parallel=Plan(pipeline=...)", "compile=True", "stages are carried out by torch's schedule"),
    Conflict("parallel=Plan(pipeline=...)", 'microbatch="auto"', "stages cut windows themselves"),
    Conflict(
        "parallel=Plan(pipeline=...)",
        "`cpu_offload` or `forward_methods`",
        "stages are on the device",
    ),
]
"""`tests/options/test_together.py` provokes each."""


def arguments() -> list[Argument]:
    """Return every argument of the trainer and of `train`, in their order.

    >>> len(arguments())
    48
    """
    (tree,) = (
        node
        for node in ast.parse(inspect.getsource(treadle.trainer)).body
        if isinstance(node, ast.ClassDef) and node.name == "Trainer"
    )
    methods = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    built = _arguments(methods["__init__"], meanings(inspect.getdoc(Trainer) or ""))
    return built + _arguments(methods["train"], meanings(inspect.getdoc(Trainer.train) or ""))


def _arguments(method: ast.FunctionDef, told: dict[str, str]) -> list[Argument]:
    given, defaults = method.args, list(method.args.defaults)
    places: list[ast.expr | None] = [None] * (len(given.args) - len(defaults))
    pairs = [
        *zip(given.args, [*places, *defaults], strict=True),
        *zip(given.kwonlyargs, given.kw_defaults, strict=True),
    ]
    return [
        Argument(
            one.arg,
            "" if one.annotation is None else _spelt_out(ast.unparse(one.annotation).replace("'", "")),
            "" if default is None else ast.unparse(default),
            told[one.arg],
        )
        for one, default in pairs
        if one.arg != "self"
    ]


def _words_of(kind: Any) -> list[str]:
    """Return what is in a type of several, word by word."""
    if get_origin(kind) is Literal:
        return [f'"{text}"' for text in get_args(kind)]
    parts = get_args(kind)
    return [word for part in parts for word in _words_of(part)] if parts else [kind.__name__]


def _spelt_out(annotation: str) -> str:
    """Return an annotation with the words that a name such as `LossReduction` stands for in its place."""
    for name, kind in vars(treadle.trainer).items():
        if get_origin(kind) in (Literal, Union):
            annotation = re.sub(rf"\b{name}\b", " | ".join(_words_of(kind)), annotation)
    return re.sub(r"Literal\[(\w+)\]", r'"\1"', annotation)


def meanings(docstring: str) -> dict[str, str]:
    """Return what a docstring says of each argument.

    >>> meanings("Do it.\\n\\nArgs:\\n    a: One thing,\\n        and more.\\n    b: Another.\\n\\nReturns: c.")
    {'a': 'One thing, and more.', 'b': 'Another.'}
    """
    section = re.search(r"^Args:\n((?:    .*\n?|\n)*)", docstring, flags=re.MULTILINE)
    found: dict[str, str] = {}
    name = ""
    for line in section[1].splitlines() if section else ():
        begun = re.match(r"    (\w+): (.*)", line)
        if begun:
            name = begun[1]
            found[name] = begun[2]
        elif line.startswith("        "):
            found[name] += f" {line.strip()}"
    return found


def page() -> str:
    """Return the text of the page."""
    for door, (names, _) in DOORS.items():
        check_names(door, names)
    known = arguments()
    own = [[f"`{one.name}`", _code(one.kind), _code(one.default), _cell(one.meaning)] for one in known]
    named = [[f"`{one.name}`", *(_named(one.name, *tables) for tables in DOORS.values())] for one in known]
    refused = [[_mixed(one.first), _mixed(one.second), _cell(f"“… {one.message} …”")] for one in CONFLICTS]
    parts = [
        HEAD,
        "## What there is\n",
        _table(["argument", "type", "default", "meaning"], own),
        NAMED,
        _table(["argument", *DOORS], named),
        "## What does not go together\n\nAll else does. These are refused before anything is trained, or in the first "
        "step; a test provokes each.\n",
        _table(["this", "with", "is refused"], refused),
    ]
    return "\n".join(parts)


def _named(name: str, names: Names, parts: Names) -> str:
    own = {**parts, **names}[name]
    return _cell(f"- {own.reason}") if isinstance(own, Refused) else _code(own)


def _code(text: str) -> str:
    return f"`{_cell(text)}`" if text else ""


def _mixed(text: str) -> str:
    return text if " " in text and "=" not in text.split()[0] else _code(text)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
