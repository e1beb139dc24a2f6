"""Kills a training run over and over, and checks that it ends, bit for bit, like one that was never disturbed.

The run is that of `tests/crash`: a network with dropout and batch norm, random augmentation, accumulation, a moving
average, a one-cycle schedule, early stopping and bf16, over several kinds of data. Each attempt is a process that is
killed with SIGKILL, at a random moment or while a checkpoint is being written, and started again until the run is
finished. Of two processes under torchrun one is killed, either of them, after a random step or within an operation on a
checkpoint, and both are started again by torchrun. Weights, optimizer, schedule, average, generators, history and every
line of metrics are compared.
"""

import argparse
import random
import shutil
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

from benchmarks.provenance import provenance
from benchmarks.results import write_section
from tests.crash.attempts import differing, finish, kill_until_finished, outcome
from tests.crash.groups import Group
from tests.crash.groups import finish as finish_group
from tests.crash.program import Options

VARIANTS = (
    {"data": "images", "workers": 2},
    {"data": "images", "workers": 0, "asynchronous": False, "keep_last": 1},
    {"data": "weighted", "workers": 2},
    {"data": "batch sampler", "workers": 1, "save_every": "1 step"},
    {"data": "placed sequence", "workers": 0},
    {"data": "sequence", "workers": 2, "save_every": "3 steps"},
)
STEPS_OF_TWO = 12
"""Updates of the run of two processes."""
OPERATIONS = 60
"""At most so many times it opens, renames or removes something of a checkpoint before the chosen one dies there."""


@dataclass
class Tally:
    """What happened so far."""

    kills: int = 0
    resumes: int = 0
    runs: int = 0
    different: int = 0


def main() -> None:
    """Kill as often as asked, print the verdict, write the section."""
    options = parse_options()
    with tempfile.TemporaryDirectory() as folder:
        tally = soak(Path(folder), options)
        tally_of_two = soak_two(Path(folder), options)
    section = as_markdown({"one": tally, "two, by torchrun": tally_of_two}, options)
    print(section)
    if tally.different or tally_of_two.different:
        sys.exit("VERDICT: different")
    if options.no_write:
        print("RESULTS.md left as it is (--no-write).")
    else:
        write_section("crash", section)


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.resume.crash", description=__doc__)
    parser.add_argument("--kills", type=int, default=500, help="how often to kill a single process")
    parser.add_argument("--kills-of-two", type=int, default=50, help="how often to kill one of two processes")
    parser.add_argument(
        "--longest", type=float, default=0.7, help="how long an attempt lives at most, in undisturbed runs of its kind"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    parser.add_argument("--no-write", action="store_true", help="print, but leave RESULTS.md as it is")
    options = parser.parse_args()
    if min(options.kills, options.kills_of_two) < 0 or options.longest <= 0:
        given = f"--kills {options.kills} --kills-of-two {options.kills_of_two} --longest {options.longest}"
        parser.error(f"{given}: kills are 0 or more, and an attempt lives longer than not at all")
    return options


def soak(folder: Path, options: argparse.Namespace) -> Tally:
    """Kill one run after the other, each variant in turn, until there were enough kills."""
    chance, tally, began = random.Random(options.seed), Tally(), monotonic()
    plain = [Options(folder=folder / f"undisturbed_{number}", **variant) for number, variant in enumerate(VARIANTS)]
    seconds = [time_undisturbed(undisturbed) for undisturbed in plain]
    while tally.kills < options.kills:
        turn = tally.runs % len(plain)
        undisturbed, longest = plain[turn], options.longest * seconds[turn]
        killed = replace(undisturbed, folder=folder / f"killed_{tally.runs}")
        tally.kills += kill_until_finished(killed, options.kills - tally.kills, chance, longest)
        compare(tally, killed.folder, undisturbed.folder, killed.data)
        print(f"{tally.kills} kills, {tally.runs} runs, {monotonic() - began:.0f} s", file=sys.stderr)
    return tally


def time_undisturbed(options: Options) -> float:
    """Run to the end and return the seconds that took, with the start of the process."""
    began = monotonic()
    finish(options)
    return monotonic() - began


def soak_two(folder: Path, options: argparse.Namespace) -> Tally:
    """Kill one of two processes, at four steps and in one operation of each run, until there were enough kills."""
    chance, tally, began = random.Random(options.seed), Tally(), monotonic()
    undisturbed = folder / "two_undisturbed"
    if options.kills_of_two:
        finish_group(Group(undisturbed))
    while tally.kills < options.kills_of_two:
        killed = folder / f"two_killed_{tally.runs}"
        steps = sorted(chance.sample(range(1, STEPS_OF_TWO + 1), 4))
        operation = f"{chance.randrange(2)}:{chance.randint(1, OPERATIONS)}"
        where = ["--kill-ranks-at", operation, "--kill-at-steps", *map(str, steps)]
        finish_group(Group(killed, "--save-every", "1 step", *where, restarts=len(steps) + 1))
        tally.kills += len(list(killed.glob("killed_at_*")))
        compare(tally, killed, undisturbed, f"two processes, {' '.join(where)}")
        print(f"two processes: {tally.kills} kills, {tally.runs} runs, {monotonic() - began:.0f} s", file=sys.stderr)
    return tally


def compare(tally: Tally, killed: Path, undisturbed: Path, what: str) -> None:
    """Count a finished run, and whether it ended differently; its folder is no longer needed."""
    tally.resumes += count_resumes(killed)
    tally.runs += 1
    places = differing(outcome(undisturbed), outcome(killed))
    tally.different += bool(places)
    for place in places[:5]:
        print(f"run {tally.runs}, {what}: {place}", file=sys.stderr)
    shutil.rmtree(killed)


def count_resumes(folder: Path) -> int:
    """Return how often a run went on from a checkpoint, which is fewer times than it was killed."""
    log = folder / "log.txt"
    return log.read_text(encoding="utf-8").count("resuming from step") if log.exists() else 0


def as_markdown(tallies: dict[str, Tally], options: argparse.Namespace) -> str:
    """Return the section: where the figures come from and the verdict."""
    facts = provenance("crash", ("treadle", "torch", "numpy", "safetensors"), seed=options.seed)
    lines = [
        "| processes | kills | resumes from a checkpoint | finished runs | compared with the undisturbed run |",
        "|---|--:|--:|--:|---|",
    ]
    for processes, tally in tallies.items():
        verdict = f"{tally.different} of {tally.runs} runs DIFFERENT" if tally.different else "all bit-identical"
        if tally.runs:
            lines.append(f"| {processes} | {tally.kills} | {tally.resumes} | {tally.runs} | {verdict} |")
    table = "\n".join(lines)
    return f"## Killed and resumed\n\n{facts}\n\n{__doc__.partition(chr(10) * 2)[2].strip()}\n\n{table}"


if __name__ == "__main__":
    main()
