"""Whether a test notices when one line of the core is wrong: mutations, and the tests that kill them.

`python -m benchmarks.mutation` draws one-line mutations from the modules of loop, update, saving, streams, gradients
and schedules, and runs for each the tests that `TESTS` maps its module to, in a copy of the tree. A mutation that no
test notices survives; one that cannot be noticed is listed, with the reason, in `benchmarks/mutation_equivalents.py`.
Any other survivor ends the command with an error. `--list` shows what is drawn, `--only` runs what contains a text,
`--all` runs the listed ones too.

Mutations are drawn and known by the text of their line and by the function that it stands in, not by numbers of lines
or files: what is not touched is drawn again, wherever it moves.
"""

import argparse
import ast
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from benchmarks.mutation_equivalents import EQUIVALENTS, Equivalent

TREE = Path(__file__).parents[1]
COPIED = ("treadle", "tests", "benchmarks", "examples", "docs", "pyproject.toml", "README.md", "CHANGELOG.md")
SEED = 19
PER_KIND = 25
"""So many mutations of each kind are drawn."""
MOST_SECONDS = 90
"""So long the tests of a module may take where nothing is mutated."""
PATIENCE = 4
"""After so many times what the tests take otherwise, a mutation is taken to have no end, which is noticed."""
LEAST_PATIENCE = 60.0
"""Seconds that any of them has."""

LOOP = ("tests/behaviours", "tests/test_progress.py", "tests/test_result.py")
SAVING = (
    "tests/behaviours/test_saving.py",
    "tests/callbacks/test_save_training_state.py",
    "tests/resume/test_stopped_runs.py",
)
STORE = (
    "tests/checkpoint/test_store.py",
    "tests/checkpoint/test_saver.py",
    "tests/checkpoint/test_tracked.py",
    *SAVING,
    "tests/checkpoint/faults/test_failing_disk.py",
    "tests/checkpoint/faults/test_damaged_checkpoints.py",
    "tests/checkpoint/test_retention.py",
)
DRAWING = (
    "tests/data/test_stream.py",
    "tests/data/test_order.py",
    "tests/data/test_sampler.py",
    "tests/data/test_passes.py",
)
STAGES = (
    "tests/parallel/test_weighted.py::test_stages_of_a_model_weigh_their_micro_batches_by_the_targets_that_count",
    "tests/parallel/test_weighted.py::test_the_last_module_of_stages_may_say_over_what_its_loss_is_a_mean",
    "tests/parallel/test_weighted.py::test_stages_leave_out_an_update_for_a_bad_loss_whose_gradient_is_fine",
)
UPDATES = (
    "tests/optim/test_gradients.py",
    "tests/loop/test_oom_retry.py",
    "tests/loop/test_nonfinite.py",
    "tests/loop/test_rollback.py",
    "tests/behaviours",
    "tests/ops/test_loss_items.py",
    "tests/test_progress.py",
)
STREAMS = (
    *DRAWING,
    "tests/data/test_in_memory.py",
    "tests/data/test_prefetch.py",
    "tests/behaviours/test_loaders.py",
    "tests/loop/test_forwarded.py",
    "tests/resume/test_exact_resume.py",
)
SCHEDULES = ("base", "cosine_lr", "extend", "factory", "family", "lr_multiplier", "shapes", "wsd_lr")
TESTS: dict[str, tuple[str, ...]] = {
    "treadle/trainer.py": (
        *LOOP,
        "tests/loop/test_verbs.py",
        "tests/behaviours/test_trainer_inputs.py",
        "tests/behaviours/test_settings.py",
        "tests/loop/test_forwarded.py",
        "tests/contract/test_trainer_internals.py",
        "tests/execution/test_own_execution.py",
        "tests/execution/test_modes.py",
        "tests/resume/test_longer_runs.py",
    ),
    "treadle/run.py": (
        *LOOP,
        "tests/loop/test_verbs.py",
        "tests/loop/test_nonfinite.py",
        "tests/resume/test_stopped_runs.py",
        "tests/runs/test_preemption.py",
        "tests/resume/test_longer_runs.py",
        "tests/loop/test_rollback.py",
    ),
    "treadle/loop/log.py::agree": (
        "tests/parallel/test_stop.py::test_a_nan_on_one_rank_is_raised_by_all_with_the_same_step",
    ),
    "treadle/loop/log.py": (
        "tests/loop/test_nonfinite.py",
        "tests/behaviours",
        "tests/loop/test_rollback.py",
        "tests/resume/test_lost_metrics.py",
    ),
    "treadle/loop/stop.py": ("tests/resume/test_stopped_runs.py", "tests/runs/test_preemption.py", "tests/behaviours"),
    "treadle/loop/evaluator.py": (
        *LOOP,
        "tests/runs/test_preemption.py",
        "tests/ops/test_loss_items.py",
        "tests/checkpoint/test_retention.py",
    ),
    "treadle/loop/update.py::stage": STAGES,
    **dict.fromkeys(("treadle/loop/update.py", "treadle/loop/cadence.py", "treadle/loop/schedule.py"), UPDATES),
    "treadle/checkpoint/checkpointer.py": (
        *SAVING,
        "tests/checkpoint/test_retention.py",
        "tests/runs/test_description.py",
        "tests/runs/test_preemption.py",
        "tests/checkpoint/faults/test_edited_checkpoints.py",
        "tests/resume/test_longer_runs.py",
    ),
    "treadle/checkpoint/run_state.py::read": (
        *SAVING,
        "tests/parallel/test_runs.py::test_a_resumed_run_ends_in_the_very_same_bits",
        "tests/parallel/test_saving.py::test_a_run_that_was_left_is_taken_up_to_the_very_same_bits",
    ),
    "treadle/checkpoint/run_state.py::_load_state_of": (
        "tests/parallel/test_plans.py::test_a_run_goes_on_under_another_plan",
    ),
    "treadle/checkpoint/run_state.py": (
        *SAVING,
        "tests/checkpoint/test_tracked.py",
        "tests/resume/test_exact_resume.py",
    ),
    "treadle/checkpoint/store.py": STORE,
    "treadle/checkpoint/saver.py": STORE,
    "treadle/checkpoint/tracked.py": STORE,
    **dict.fromkeys(("treadle/data/stream.py", "treadle/data/run_streams.py"), STREAMS),
    "treadle/data/order.py": DRAWING,
    "treadle/data/sampler.py": (*DRAWING, "tests/data/test_loaders.py"),
    "treadle/optim/gradients.py": (
        "tests/parallel/test_window_scale.py",
        "tests/optim/test_gradients.py",
        "tests/behaviours/test_updates.py",
        "tests/loop/test_nonfinite.py",
    ),
    "treadle/loop/oom_retry.py": ("tests/loop/test_oom_retry.py",),
    "treadle/loop/nonfinite.py": (
        "tests/loop/test_nonfinite.py",
        "tests/loop/test_rollback.py",
        "tests/precision/test_loss_scaling.py",
    ),
    "treadle/optim/state.py": ("tests/optim/test_state.py", *SAVING),
    "treadle/progress.py": ("tests/test_progress.py", *LOOP),
    "treadle/schedules/warmup_lr.py": ("tests/config/test_packaged_configs.py",),
    **dict.fromkeys(
        (f"treadle/schedules/{name}.py" for name in SCHEDULES), ("tests/schedules", "tests/resume/test_longer_runs.py")
    ),
}
"""For each module, or pattern of modules, the tests that are to notice what is wrong in it: most telling first.

After `::` stands a part of the names of functions. Of a whole file the slow tests are left out; a test that is named is
run, however slow it is.
"""

INVERSES = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
}
OPPOSITES = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.FloorDiv: ("//", "*"),
    ast.Div: ("/", "*"),
    ast.Mod: ("%", "//"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}


@dataclass(frozen=True)
class Mutation:
    """One line of a module, and what stands there instead.

    Attributes:
        path: The module, from the root of the tree.
        line: The number of the line.
        function: The class and the function that it stands in.
        kind: "remove", "negate", "shift", "swap" or "return".
        before: The line, without its indentation.
        after: What stands there instead.
        same: How many mutations of the same function read the same, before this one.
    """

    path: str
    line: int
    function: str
    kind: str
    before: str
    after: str
    same: int = 0

    @property
    def key(self) -> tuple[str, str, str]:
        """What it is known by, wherever it moves."""
        return self.function, self.before, self.after

    @property
    def rank(self) -> str:
        """Where it stands in the draw: as good as random, but always the same."""
        text = f"{SEED} {self.function} {self.kind} {self.before} {self.after} {self.same}"
        return hashlib.sha256(text.encode()).hexdigest()

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.function} ({self.kind})\n-    {self.before}\n+    {self.after}"

    def applied_to(self, source: str) -> str:
        """Return the text of the module with the mutation in it."""
        lines = source.splitlines(keepends=True)
        line = lines[self.line - 1]
        assert line.strip() == self.before, f"{self.path}:{self.line} is another line now"
        lines[self.line - 1] = line.replace(self.before, self.after)
        return "".join(lines)


# Drawing ----------------------------------------------------------------------------------------------------


class _Finder(ast.NodeVisitor):
    """Finds what can be mutated in the functions of a module; what Python does not run there is left alone."""

    def __init__(self, path: str, source: str) -> None:
        self.found: list[Mutation] = []
        self._path, self._lines = path, source.splitlines()
        self._place: list[str] = []
        self._in_function = False
        self._known: Counter[tuple[str, str, str]] = Counter()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._inside(node.name, node.body, in_function=self._in_function)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        # Neither decorators nor annotations are looked at.
        self._inside(node.name, node.body, in_function=True)

    def _inside(self, name: str, body: list[ast.stmt], *, in_function: bool) -> None:
        outer, self._in_function = self._in_function, in_function
        self._place.append(name)
        for statement in body:
            self.visit(statement)
        self._place.pop()
        self._in_function = outer

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Leave text alone: until Python 3.12 nobody knows where in it something stands."""

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" not in ast.unparse(node.test):
            self._negate(node.test)
            self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for condition in node.ifs:
            self._negate(condition)
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self._note("remove", node, "pass")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if all(isinstance(target, (ast.Attribute, ast.Subscript)) for target in node.targets):
            self._note("remove", node, "pass")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._note("remove", node, "pass")
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
            self._note("return", node.value, "None")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if type(node.value) is int:
            self._note("shift", node, str(node.value + 1))
        elif type(node.value) is bool:
            self._note("negate", node, str(not node.value))

    def visit_Compare(self, node: ast.Compare) -> None:
        for left, kind, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
            self._operator("shift", left, INVERSES.get(type(kind)), right)
            self._operator("negate", left, OPPOSITES.get(type(kind)), right)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self._operator("swap", node.values[0], OPPOSITES[type(node.op)], node.values[1])
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if not any(isinstance(side, ast.JoinedStr) or is_text(side) for side in (node.left, node.right)):
            self._operator("swap", node.left, OPPOSITES.get(type(node.op)), node.right)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if len(node.args) >= 2 and not any(isinstance(one, ast.Starred) for one in node.args[:2]):
            first, second = node.args[:2]
            texts = [self._text(one) for one in (first, second)]
            if None not in texts and texts[0] != texts[1] and first.lineno == second.end_lineno:
                assert first.end_col_offset is not None
                between = self._lines[first.lineno - 1][first.end_col_offset : second.col_offset]
                self._note("swap", first, f"{texts[1]}{between}{texts[0]}", until=second)
        self.generic_visit(node)

    def _negate(self, test: ast.expr) -> None:
        text = self._text(test)
        if text is not None:
            self._note("negate", test, f"not ({text})")

    def _operator(self, kind: str, left: ast.expr, words: tuple[str, str] | None, right: ast.expr) -> None:
        if words is None or left.end_lineno != right.lineno:
            return
        assert left.end_lineno is not None
        assert left.end_col_offset is not None
        between = self._lines[left.end_lineno - 1][left.end_col_offset : right.col_offset]
        changed = re.sub(rf"(?<!\S){re.escape(words[0])}(?!\S)", words[1], between, count=1)
        if changed != between:
            self._replace(kind, left.end_lineno, (left.end_col_offset, right.col_offset), changed)

    def _text(self, node: ast.expr) -> str | None:
        if node.lineno != node.end_lineno:
            return None
        return self._lines[node.lineno - 1][node.col_offset : node.end_col_offset]

    def _note(self, kind: str, node: ast.stmt | ast.expr, instead: str, until: ast.expr | None = None) -> None:
        last = node if until is None else until
        if node.lineno == last.end_lineno and last.end_col_offset is not None:
            self._replace(kind, node.lineno, (node.col_offset, last.end_col_offset), instead)

    def _replace(self, kind: str, number: int, columns: tuple[int, int], instead: str) -> None:
        line = self._lines[number - 1]
        # Columns are those of bytes: a line with other letters than ASCII's is left alone.
        if not self._in_function or not line.isascii():
            return
        function, before = ".".join(self._place), line.strip()
        after = (line[: columns[0]] + instead + line[columns[1] :]).strip()
        same = self._known[function, before, after]
        self._known[function, before, after] += 1
        self.found.append(Mutation(self._path, number, function, kind, before, after, same))


def is_text(node: ast.expr) -> bool:
    """Whether an expression is text as it stands."""
    return isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))


def mutations_of(path: str, source: str) -> list[Mutation]:
    """Return every mutation of a module."""
    finder = _Finder(path, source)
    finder.visit(ast.parse(source))
    return finder.found


def drawn(sources: dict[str, str], per_kind: int = PER_KIND) -> list[Mutation]:
    """Return so many mutations of each kind of the modules, at most one of a line, by module."""
    ranked = sorted(
        (one for path, source in sources.items() for one in mutations_of(path, source)), key=lambda one: one.rank
    )
    taken: Counter[str] = Counter()
    lines: set[tuple[str, int]] = set()
    chosen = []
    for one in ranked:
        if taken[one.kind] < per_kind and (one.path, one.line) not in lines:
            taken[one.kind] += 1
            lines.add((one.path, one.line))
            chosen.append(one)
    return sorted(chosen, key=lambda one: (one.path, one.line))


def sources_in(tree: Path, patterns: Iterable[str]) -> dict[str, str]:
    """Return the text of every module that a pattern names, by its path from the root of the tree.

    Raises:
        SystemExit: A pattern names nothing, so that the table is not that of this tree.
    """
    found = {}
    for pattern in patterns:
        paths = sorted(tree.glob(pattern.partition("::")[0]))
        if not paths:
            raise SystemExit(f"benchmarks.mutation: TESTS names {pattern}, which is not there; mend the table")
        found.update({str(path.relative_to(tree)): path.read_text(encoding="utf-8") for path in paths})
    return found


# Running ----------------------------------------------------------------------------------------------------


class Copy:
    """A copy of a tree, in which modules are mutated and tests are run.

    Args:
        tree: The root of the tree.
        folder: Where the copy is made.
        names: What of the tree is copied.
    """

    def __init__(self, tree: Path, folder: Path, names: Sequence[str] = COPIED) -> None:
        self.root = folder
        self._seconds: dict[tuple[str, ...], float] = {}
        # Moments long past: what was compiled of a file as it was has none of them.
        self._moments = count(1)
        for name in names:
            if (tree / name).is_dir():
                shutil.copytree(tree / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
            elif (tree / name).exists():
                shutil.copy(tree / name, folder / name)

    def kills(self, mutation: Mutation, tests: tuple[str, ...]) -> bool:
        """Whether tests fail, or find no end, while a mutation is applied."""
        limit = max(LEAST_PATIENCE, PATIENCE * self.seconds(tests))
        path = self.root / mutation.path
        source = path.read_text(encoding="utf-8")
        try:
            self._write(path, mutation.applied_to(source))
            return self._run(tests, limit) != 0
        finally:
            self._write(path, source)

    def seconds(self, tests: tuple[str, ...]) -> float:
        """Return how long tests take where nothing is mutated.

        Raises:
            SystemExit: They fail.
        """
        if tests not in self._seconds:
            begin = time.monotonic()
            if self._run(tests, 10 * MOST_SECONDS) != 0:
                raise SystemExit(f"benchmarks.mutation: without a mutation these fail: {' '.join(tests)}")
            self._seconds[tests] = taken = time.monotonic() - begin
            note = f", more than {MOST_SECONDS} s: is the machine busy?" if taken > MOST_SECONDS else ""
            print(f"{taken:.0f} s for {' '.join(tests)}{note}", flush=True)
        return self._seconds[tests]

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text, encoding="utf-8")
        # Python takes a compiled module for that of a file of the same second and size.
        moment = next(self._moments)
        os.utime(path, (moment, moment))

    def _run(self, tests: tuple[str, ...], limit: float) -> int:
        files, named = [one for one in tests if "::" not in one], [one for one in tests if "::" in one]
        commands = [[*files, "-m", "not slow"]] if files else []
        commands += [named] if named else []
        return next((failed for one in commands if (failed := self._run_pytest(one, limit)) != 0), 0)

    def _run_pytest(self, arguments: list[str], limit: float) -> int:
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *arguments]
        environment = {**os.environ, "PYTHONPATH": str(self.root), "OMP_NUM_THREADS": "1"}
        quiet = subprocess.DEVNULL
        # A group of its own: what tests have started ends with them.
        process = subprocess.Popen(
            command, cwd=self.root, env=environment, stdout=quiet, stderr=quiet, start_new_session=True
        )
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            return -1
        finally:
            if process.poll() is None:
                _end(process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End tests and what they started: asked to, a launcher ends the processes that it put into groups of their own."""
    for number, seconds in ((signal.SIGINT, 20), (signal.SIGKILL, None)):
        with suppress(subprocess.TimeoutExpired, ProcessLookupError):
            os.killpg(process.pid, number)
            process.wait(seconds)
            return


Table = Mapping[str, tuple[str, ...]]


def tests_of(mutation: Mutation, table: Table) -> tuple[str, ...]:
    """Return the tests of a mutation: those of the first entry that fits."""
    for pattern, tests in table.items():
        path, _, part = pattern.partition("::")
        if Path(mutation.path).match(path) and part in mutation.function:
            return tests
    raise AssertionError(f"{mutation.path} was drawn, and is not in the table")


def survivors(copy: Copy, mutations: Sequence[Mutation], table: Table) -> Iterator[Mutation]:
    """Yield the mutations that no test notices, and say how far it is."""
    for number, mutation in enumerate(mutations, start=1):
        begin = time.monotonic()
        killed = copy.kills(mutation, tests_of(mutation, table))
        word = "killed" if killed else "SURVIVED"
        print(f"[{number}/{len(mutations)}] {word} in {time.monotonic() - begin:.0f} s: {mutation}", flush=True)
        if not killed:
            yield mutation


def main(
    arguments: Sequence[str] | None = None,
    *,
    tree: Path = TREE,
    names: Sequence[str] = COPIED,
    table: Table = TESTS,
    equivalents: Sequence[Equivalent] = EQUIVALENTS,
) -> None:
    """Draw, run and report.

    Raises:
        SystemExit: A mutation survived that is not listed; or one that is listed, and was run too, did not.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutation", description=__doc__.partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="show what is drawn, and run nothing")
    parser.add_argument("--only", default="", help="only mutations that show this text in file, function or lines")
    parser.add_argument("--all", action="store_true", help="also those that are listed as equivalent")
    parser.add_argument("--per-kind", type=int, default=PER_KIND, help="how many of each kind are drawn")
    given = parser.parse_args(arguments)
    chosen = [one for one in drawn(sources_in(tree, table), given.per_kind) if given.only in str(one)]
    listed = {one.key for one in equivalents}
    known = [one for one in chosen if one.key in listed]
    wanted = chosen if given.all else [one for one in chosen if one.key not in listed]
    print(f"{len(chosen)} mutations, of which {len(known)} are listed as equivalent")
    if given.list:
        print(*chosen, sep="\n")
        return
    # Who is told to end takes along what it has started, and the copy.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("benchmarks.mutation: told to end"))
    with tempfile.TemporaryDirectory(prefix="treadle-mutation-") as folder:
        found = list(survivors(Copy(tree, Path(folder), names), wanted, table))
    seen = [one for one in known if given.all and one not in found]
    unlisted = [one for one in found if one.key not in listed]
    if seen:
        print(f"\n{len(seen)} mutations are listed as equivalent, and a test notices them", *seen, sep="\n")
    if unlisted:
        print(
            f"\n{len(unlisted)} mutations survived: write the test, or list them with the reason", *unlisted, sep="\n"
        )
    if seen or unlisted:
        raise SystemExit(1)
    print("no mutation survived that is not listed")


if __name__ == "__main__":
    main()
