"""Whether a run can be made again: from its beginning and from a checkpoint, bit for bit."""

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from treadle.errors import CheckpointError, ConfigError, TreadleError
from treadle.runs.place import require_folder
from treadle.runs.reader import Run, read_config, read_json, read_run
from treadle.tools.reproduce.comparison import (
    Comparison,
    compare,
    environment_changes,
    find_damage,
    open_store,
    recorded_steps,
)
from treadle.tools.reproduce.programs import Program, find_program
from treadle.tools.reproduce.repetition import Repetition

EQUAL, DIFFERENT, UNTRIED = "equal", "different", "could not be tried"
PARTLY = "tried in part"
"""The verdict where what was tried is equal, and something was not tried."""
STEPS = 20
"""So many steps are made again at least, where nobody says how many."""
REACH = 200
"""So many steps away a checkpoint may be for the run to be made again up to it."""


@dataclass
class Part:
    """Steps of a run that were made again.

    Attributes:
        after: The step they began behind: that of a checkpoint, or 0 for the beginning. Where it is `to`, there was no
            checkpoint to begin from.
        to: The last of them.
        verdict: "equal", "different" or "could not be tried".
        reason: Why it could not be tried.
        comparison: What was compared.
    """

    after: int
    to: int
    verdict: str = UNTRIED
    reason: str = ""
    comparison: Comparison = field(default_factory=Comparison)

    @property
    def place(self) -> str:
        """What the part is, in words."""
        if self.after == self.to:
            return "from a checkpoint"
        start = f"from the checkpoint of step {self.after}" if self.after else "from the beginning"
        return f"{start} to step {self.to}"


@dataclass
class Verification:
    """What came of making some steps of a run again.

    Attributes:
        run: The folder of the run.
        parts: The steps that were made again, or should have been.
        damaged: Checkpoints that are not what was written, in words.
        surroundings: What differs between now and when the run was made, in words.
        repeatable: Whether two repetitions agree with each other; None if that was not asked.
    """

    run: Path
    parts: list[Part] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    surroundings: list[str] = field(default_factory=list)
    repeatable: bool | None = None

    @property
    def verdict(self) -> str:
        """ "equal" if all was tried and is, "different" if something is, else "tried in part", "could not be tried"."""
        verdicts = {part.verdict for part in self.parts}
        if self.damaged or DIFFERENT in verdicts:
            return DIFFERENT
        if EQUAL not in verdicts:
            return UNTRIED
        return PARTLY if UNTRIED in verdicts else EQUAL

    @property
    def equal(self) -> bool:
        """Whether everything was tried, and is the same."""
        return self.verdict == EQUAL

    @property
    def status(self) -> int:
        """The exit status of the command: 0 equal, 1 different, 2 if some of it, or all, could not be tried."""
        return {EQUAL: 0, DIFFERENT: 1, UNTRIED: 2, PARTLY: 2}[self.verdict]

    def lines(self) -> list[str]:
        """Return what there is to say, for people."""
        told = [f"{self.run}: {self.verdict}"]
        told += [f"  damaged: {problem}" for problem in self.damaged]
        for part in self.parts:
            told.append(f"  {part.place}: {part.verdict}{f': {part.reason}' if part.reason else _compared(part)}")
            told += [f"    {difference}" for difference in part.comparison.differences]
        return [*told, *self._explained()]

    def _explained(self) -> list[str]:
        if self.verdict == EQUAL and self.surroundings:
            return ["  though this is not as it was:", *(f"    {line}" for line in self.surroundings)]
        if self.verdict == EQUAL:
            return []
        if self.surroundings:
            return ["  what is not as it was:", *(f"    {line}" for line in self.surroundings)]
        if self.repeatable is False:
            return [
                "  nothing that is recorded has changed, but two repetitions differ from each other, too: the program",
                "  draws random numbers that nobody seeds, or waits for threads; 'treadle doctor' may say where",
            ]
        if self.repeatable:
            return [
                "  nothing that is recorded has changed, and two repetitions agree with each other: look for what the",
                "  folder of the run does not tell, such as data from elsewhere, or a file of the run that was edited",
            ]
        return []

    def __str__(self) -> str:
        return "\n".join(self.lines())


def _compared(part: Part) -> str:
    found = part.comparison
    told = [f"{found.values} metrics"] if found.values else []
    if found.checkpoints:
        steps = ", ".join(map(str, found.checkpoints))
        told.append(f"{found.tensors} tensors of the checkpoint{'s' * (len(found.checkpoints) > 1)} of step {steps}")
    return f" ({' and '.join(told)})" if told else ""


def verify(
    program: Callable[[], Any] | None,
    run_dir: str | os.PathLike[str],
    *,
    steps: int | None = None,
    checkpoint: int | None = None,
) -> Verification:
    """Make some steps of a run again, elsewhere, and compare them with what the run kept; the run is not changed.

    Args:
        program: What makes the run: a function without arguments that builds the trainer and trains, and names the
            folder `run_dir`. None finds out from the folder: its config, script or command.
        run_dir: The folder of the run.
        steps: How many steps to make, from the beginning and from a checkpoint. By default as many as lead to the
            next checkpoint if that is near, otherwise to the first metrics.
        checkpoint: The step of the checkpoint to resume from; by default the newest one that has another behind it.

    Raises:
        ConfigError: `run_dir` is no run, or cannot be started again from its folder.
        CheckpointError: There is no such checkpoint.
    """
    require_folder(run_dir, "a run is made again beside its folder")
    run = Path(run_dir)
    if steps is not None and steps < 1:
        raise ConfigError(f"steps={steps} must be at least 1")
    _require_one_process(read_run(run))
    made = find_program(run) if program is None else Program("the program", program, _named(run))
    found = Verification(run)
    store = open_store(run)
    problems = {step: problem for step in store.steps() if (problem := find_damage(store, step)) is not None}
    found.damaged = list(problems.values())
    for after, to in _spans(run, steps, checkpoint, set(problems)):
        found.parts.append(_try(Part(after, to), run, made, found))
    found.parts += _left_out(run, found.parts)
    _check_determinism(found, made)
    return found


def _require_one_process(run: Run) -> None:
    count = run.manifest.get("processes", 1)
    if count != 1:
        raise ConfigError(
            f"{run.path} was made by {count} processes, whose sums round otherwise than those of the one process that "
            "would make it again; start the same command in another folder, and compare by 'treadle report'"
        )


def _named(run: Path) -> Path:
    """Return the folder that the program which made a run names for it."""
    named = read_config(run).get("run_dir")
    return Path(str(read_json(run / "manifest.json").get("folder") or ".")) / str(named) if named else run


def _spans(run: Path, steps: int | None, checkpoint: int | None, damaged: set[int]) -> list[tuple[int, int]]:
    """Return which steps to make again: from the beginning, and from a checkpoint if there is one to reach another."""
    saved = [step for step in open_store(run).steps() if step not in damaged]
    recorded = recorded_steps(run)
    if checkpoint is not None and checkpoint not in saved:
        kept = ", ".join(map(str, saved)) or "none"
        raise CheckpointError(f"{run} has no whole checkpoint of step {checkpoint}; it has {kept}")
    known = sorted({step for step in (*saved, *recorded) if step > 0})
    if not known:
        raise ConfigError(f"{run} recorded no step: there is nothing to compare with")
    spans = [(0, _end(0, steps, saved, recorded))]
    later = [step for step in saved if step > 0 and any(other > step for other in known)]
    chosen = checkpoint if checkpoint is not None else later[-1] if later else None
    if chosen:
        spans.append((chosen, _end(chosen, steps, saved, recorded)))
    return spans


def _left_out(run: Path, parts: list[Part]) -> list[Part]:
    """Return a part that was not tried where no checkpoint was gone on from, and steps of the run are left."""
    last = max((*open_store(run).steps(), *recorded_steps(run)))
    if len(parts) > 1 or parts[0].to >= last:
        return []
    told = f"the run kept none with steps behind it; pass --steps {last} to make all of it again from the beginning"
    return [Part(last, last, reason=told)]


def _end(after: int, steps: int | None, saved: list[int], recorded: list[int]) -> int:
    if steps is not None:
        # Behind the last step that is known there is nothing to compare, and nothing is claimed.
        last = max((*saved, *recorded), default=0)
        return min(after + steps, last) if last > after else after + steps
    checkpoints, metrics = ([step for step in known if step > after] for known in (saved, recorded))
    if checkpoints and checkpoints[0] - after <= REACH:
        return checkpoints[0]
    enough = [step for step in metrics if step >= after + STEPS] or metrics[-1:] or checkpoints
    return enough[0] if enough else after + STEPS


def _try(part: Part, run: Path, program: Program, found: Verification) -> Part:
    """Make the steps of a part again, and note what came of it; the surroundings are noted with the first part."""
    scratch = Path(tempfile.mkdtemp(prefix="treadle-verify-"))
    repetition = Repetition(run, program.run_dir, part.after, part.to, scratch)
    try:
        _make(part, repetition, program)
        for line in environment_changes(run, repetition.folder):
            if line not in found.surroundings:
                found.surroundings.append(line)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return part


def _make(part: Part, repetition: Repetition, program: Program) -> None:
    try:
        repetition.make(program.start)
    except CheckpointError as error:
        # The checkpoint is refused: what is built now is not what it was saved of.
        told = str(error).replace(str(repetition.folder), str(repetition.run))
        part.verdict = DIFFERENT if part.after else UNTRIED
        part.reason = told.removesuffix(". Start afresh in another run_dir")
        return
    except Exception as error:
        told = (
            str(error) if isinstance(error, TreadleError) else f"{program.name} failed: {type(error).__name__}: {error}"
        )
        part.reason = told
        return
    part.comparison = compare(repetition.run, repetition.folder, after=part.after, to=part.to)
    if not part.comparison.compared:
        part.reason = f"the run recorded nothing up to step {part.to}; make more steps"
        return
    part.verdict = DIFFERENT if part.comparison.differences else EQUAL


def _check_determinism(found: Verification, program: Program) -> None:
    """Where the bits differ and nothing else does, find out whether the program itself is never the same."""
    differing = [part for part in found.parts if part.verdict == DIFFERENT]
    if not differing or found.surroundings or not differing[0].comparison.compared:
        return
    part = differing[0]
    folders = []
    scratch = Path(tempfile.mkdtemp(prefix="treadle-verify-"))
    try:
        for name in ("first", "second"):
            repetition = Repetition(found.run, program.run_dir, part.after, part.to, scratch / name)
            repetition.make(program.start)
            folders.append(repetition.folder)
        found.repeatable = not compare(*folders, after=part.after, to=part.to).differences
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
