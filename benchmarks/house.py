"""How the house stands: what a reader of the trainer meets, and what a step passes through, in numbers.

`python -m benchmarks.house` prints them. What is counted:

- classes: the trainer and what it inherits from, `object` included.
- attributes: the names in `vars(trainer)` before the first `train`.
- forwarded: the attributes of a trainer that its run owns, and that are found on the trainer too.
- lines: those of `trainer.py` and `run.py`, which are the loop and the order of a run; and how many of them are code,
  without docstrings, comments and empty lines.
- the package: modules at its top, without `__main__`; its files and lines; modules whose names end in -ing, and
  functions whose names end in `_of`; its rooms, and the imports that point to a later room, and those for types alone.
- overridden, read: the private names of the core that doors override, and those that they read. Private is what begins
  with an underscore and is named on no page of the contract.
- calls: the Python functions of Treadle that are called from one ordinary update to the next, without those that seed
  single samples, and those before the first update: of the core's trainer, of a recommender (BPR) and of the engine.
"""

import ast
import inspect
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout
from importlib import import_module
from io import StringIO
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

import treadle
from benchmarks.layers import ORDER, all_imports, modules, points_up, typing_imports
from treadle import Trainer
from treadle.checkpoint.checkpointer import NoCheckpointer, RunCheckpointer
from treadle.checkpoint.run_state import RunState
from treadle.data.run_streams import Streams
from treadle.execution import Execution
from treadle.loop import Due, Evaluator, Log, Stop, Updater
from treadle.loop.forwarded import HandedLoader, OfRun
from treadle.parallel import Strategy
from treadle.parallel.ddp import SharedLoss
from treadle.progress import Progress
from treadle.run import Run

PACKAGE = Path(treadle.__file__).parent
DOORS = ("engine", "recsys", "nas", "lightning")
CORE: tuple[type, ...] = (
    Trainer,
    Run,
    Stop,
    Due,
    Log,
    Updater,
    Evaluator,
    NoCheckpointer,
    RunCheckpointer,
    RunState,
    Streams,
    Execution,
    SharedLoss,
    Strategy,
)
CONTRACT = {
    "_accelerator",
    "_clip_gradients",
    "_create_run_config",
    "_eval_dataloader",
    "_loss_tracker",
    "_prepare_dataloaders",
    "_prepare_model_and_optimizer",
    "_run_eval_epoch",
    "_run_train_epoch",
    "_run_training",
    "_train_dataloader",
}
"""Names with an underscore that a page of the contract has."""
CORES = (
    "engine.core",
    "recsys.trainers.decision_tree_trainer",
    "nas.oneshot.spos",
    "nas.oneshot.darts",
    "lightning.core",
)
"""Modules whose import brings every door's own trainer and parts."""
SEEDING = "per_sample"


def is_private(name: str) -> bool:
    """Whether a name is the core's own."""
    return name.startswith("_") and not name.startswith("__") and name not in CONTRACT


def private_names() -> set[str]:
    """Return the private methods and attributes of the core."""
    found = {name for kind in CORE for name in vars(kind) if is_private(name)}
    for kind in CORE:
        for node in ast.walk(ast.parse(inspect.getsource(sys.modules[kind.__module__]))):
            if isinstance(node, ast.ClassDef) and node.name == kind.__name__:
                found |= {name for name in _stored(node) if is_private(name)}
    return found


def _stored(tree: ast.AST) -> set[str]:
    """Return the attributes that something in a tree assigns."""
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}


def _subclasses(kind: type) -> Iterator[type]:
    for one in kind.__subclasses__():
        yield one
        yield from _subclasses(one)


def overridden() -> list[str]:
    """Return the private names of the core that a class of a door defines anew."""
    for name in CORES:
        import_module(f"treadle.{name}")
    found = set()
    for kind in CORE:
        own = {name for name in vars(kind) if is_private(name)}
        for one in _subclasses(kind):
            place = one.__module__.split(".")
            if place[0] == "treadle" and place[1] in DOORS:
                found |= {f"{one.__name__}.{name}" for name in own & set(vars(one))}
    return sorted(found)


def read() -> list[str]:
    """Return the private names of the core that a module of a door reads, and does not define itself anywhere."""
    core, found = private_names(), set()
    for door in DOORS:
        trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted((PACKAGE / door).rglob("*.py"))}
        own = {name for tree in trees.values() for name in _stored(tree)}
        own |= {node.name for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        for path, tree in trees.items():
            used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
            found |= {f"{path.relative_to(PACKAGE)}: {name}" for name in (used & core) - own}
    return sorted(found)


def forwarded() -> list[str]:
    """Return the attributes of a trainer that are its run's."""
    return sorted(name for name, value in vars(Trainer).items() if isinstance(value, (OfRun, HandedLoader)))


def lines() -> int:
    """Return the lines of the trainer and of the run."""
    return sum(len((PACKAGE / name).read_text(encoding="utf-8").splitlines()) for name in ("trainer.py", "run.py"))


def code_lines() -> int:
    """Return how many of these lines are code."""
    found = 0
    for name in ("trainer.py", "run.py"):
        text = (PACKAGE / name).read_text(encoding="utf-8")
        documented = {
            line
            for node in ast.walk(ast.parse(text))
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None
            for line in range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)
        }
        lines = enumerate(map(str.strip, text.splitlines()), start=1)
        found += sum(bool(line) and not line.startswith("#") and number not in documented for number, line in lines)
    return found


def names_of_the_package() -> dict[str, int]:
    """Return the counts of files, lines and names of the package, by what is counted."""
    paths = sorted(PACKAGE.rglob("*.py"))
    functions = [
        node.name for tree in modules().values() for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
    ]
    return {
        "modules at the top": sum(path.parent == PACKAGE and path.stem != "__main__" for path in paths),
        "files": len(paths),
        "lines": sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths),
        "modules in -ing": sum(path.stem.endswith("ing") for path in paths),
        "functions in _of": sum(name.endswith("_of") for name in functions),
        "rooms in order": len(ORDER),
        "imports of later rooms": sum(map(points_up, all_imports())),
        "of these for types": sum(map(points_up, typing_imports())),
    }


class Calls:
    """Counts the functions of Treadle that are called while entered, from one update to the next.

    Attributes:
        between: How many were called before each update was counted, since the one before it.
    """

    def __init__(self) -> None:
        self.between: list[int] = []
        self._count = 0

    def __enter__(self) -> "Calls":
        sys.setprofile(self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(str(PACKAGE)) or SEEDING in code.co_filename:
            return
        self._count += 1
        if code is Progress.count_update.__code__:
            self.between.append(self._count)
            self._count = 0

    @property
    def before(self) -> int:
        """Return how many were called before the first update."""
        return self.between[0]

    @property
    def ordinary(self) -> int:
        """Return how many an ordinary update takes."""
        return int(statistics.median(self.between[5:-5]))


def core_run(folder: Path) -> None:
    """Train a linear model with Adam and the default callbacks, into a folder."""
    model = nn.Linear(4, 1)
    data = torch.utils.data.TensorDataset(torch.randn(256, 4), torch.randn(256, 1))
    trainer = Trainer(model, nn.MSELoss(), torch.optim.Adam(model.parameters()), seed=1, run_dir=folder / "run")
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        trainer.train(data, 1, per_device_batch_size=4, log_every=1000)


def recommender_run(folder: Path) -> None:
    """Train BPR for an epoch on interactions that are made up."""
    from treadle.recsys.quick_start import run_recbole

    generator = torch.Generator().manual_seed(0)
    pairs = torch.randperm(40 * 50, generator=generator)[:800].tolist()
    rows = "".join(f"u{pair // 50}\ti{pair % 50}\n" for pair in pairs)
    (folder / "toy").mkdir()
    (folder / "toy" / "toy.inter").write_text(f"user_id:token\titem_id:token\n{rows}", encoding="utf-8")
    settings = {"data_path": str(folder), "checkpoint_dir": str(folder / "saved"), "load_col": None}
    training = {"epochs": 1, "train_batch_size": 16, "eval_step": 0, "show_progress": False, "seed": 1}
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()), chdir(folder):
        run_recbole(model="BPR", dataset="toy", config_dict={**settings, **training}, saved=False)


def calls_of(train: Callable[[Path], None]) -> Calls:
    """Return the calls of a training."""
    with tempfile.TemporaryDirectory() as folder, Calls() as calls:
        train(Path(folder))
    return calls


def main() -> None:
    """Print every count."""
    model = nn.Linear(1, 1)
    trainer = Trainer(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1), callbacks=())
    calls = calls_of(core_run)
    print(f"classes of the trainer      {len(Trainer.__mro__)}")
    print(f"attributes before a run     {len(vars(trainer))}")
    print(f"attributes of the run's     {len(forwarded())}")
    print(f"lines of trainer and run    {lines()}")
    print(f"of which code               {code_lines()}")
    print(f"private names overridden    {len(overridden())}")
    print(f"private names read          {len(read())}")
    print(f"calls of an ordinary update {calls.ordinary}")
    print(f"calls before the first      {calls.before}")
    print(f"calls, a recommender        {calls_of(recommender_run).ordinary}")
    for name, number in names_of_the_package().items():
        print(f"{name:<27} {number}")


if __name__ == "__main__":
    main()
