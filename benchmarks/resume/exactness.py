"""Whether a run that is killed and resumed ends like one that was never killed: Treadle and its peers, in one run.

Run by `make bench-resume`. Every trainer trains the same network on the same samples, is killed by SIGKILL a few
micro-batches after it saved itself, and is resumed in another process, in the way its documentation says. What counts
is the largest difference of any weight at the end from the same trainer's run that was never killed.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.docs.readme import README, fill
from benchmarks.loop.overhead import prepare_process
from benchmarks.provenance import provenance
from benchmarks.results import write_section
from benchmarks.resume import CONTENDERS, Contender
from benchmarks.resume.measuring import Outcome, measure_all
from benchmarks.resume.work import SCENARIOS, Scenario

PACKAGES = tuple(dict.fromkeys(["torch", *(name for one in CONTENDERS for name in one.packages), "numpy"]))
NOTES = """\
Work: 160 samples, batch 8, 3 epochs of 20 batches, a network of two layers, AdamW. The run is saved after batch 30, in
the second epoch (after batch 32 where 4 batches make an update; after every epoch where the row says so), is killed by
SIGKILL in the third batch after that, and goes on in another process, with the same program. 1 torch thread, a CPU.
Data is shuffled, and all kills are in the middle of an epoch, unless the row says otherwise.

**exact**: all weights, and their moving average where there is one, are equal bit for bit to those of the same
trainer's run that was never killed. A number: the largest difference of a weight; two runs that were never killed do
not differ. "not repeatable": those two differ, by that much. **-**: it cannot be done, and **fails**: the checkpoint
cannot be loaded, for the reasons below the table. Each process begins with generators that nobody has seeded; each
trainer seeds them as it says one should."""
MARKS = {"exact": "**exact**", "not possible": "-", "starts over": "starts over", "cannot resume": "fails"}
README_SECTION = "resume-exactness"
README_COLUMNS = {
    "Treadle": "Treadle",
    "transformers Trainer": "transformers",
    "Lightning": "Lightning",
    "Lightning, stateful loader": "Lightning, stateful loader",
    "accelerate": "accelerate",
    "accelerate, seedable": "accelerate, seedable sampler",
    "pytorch-accelerated": "pytorch-accelerated",
    "Ignite": "Ignite",
    "Ignite, deterministic": "Ignite, deterministic",
}
"""The columns that README shows, and what it calls them; RESULTS.md has all."""

Table = dict[str, dict[str, Outcome]]
"""Outcomes by contender and scenario."""


def main() -> None:
    """Measure, print the table, write it."""
    options = parse_options()
    prepare_process()
    scenarios = [one for one in SCENARIOS if not options.only or options.only in one.name]
    if options.outcomes is not None:
        options.outcomes.mkdir(parents=True, exist_ok=True)
    table, missing = measure_contenders(chosen_contenders(options.contender), scenarios, options.outcomes)
    section = as_markdown(table, scenarios, missing)
    print(section)
    if options.write:
        write_section("resume-exactness", section)
        fill(README_SECTION, readme_table(table, scenarios), README)
    else:
        print("\nRESULTS.md and README.md left as they are; --write writes them.")
    inexact = [name for name, outcome in table.get("Treadle", {}).items() if outcome.verdict != "exact"]
    if inexact:
        sys.exit(f"VERDICT: Treadle is not exact: {', '.join(inexact)}")


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.resume.exactness", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the table into RESULTS.md and README.md")
    parser.add_argument("--only", metavar="TEXT", help="only rows with TEXT in their names")
    parser.add_argument("--contender", metavar="NAME", action="append", help="only this column; may be repeated")
    parser.add_argument(
        "--outcomes",
        type=Path,
        metavar="DIR",
        help="keep each outcome there, and measure none again that is there: goes on after a kill, and lets several "
        "commands share the columns",
    )
    options = parser.parse_args()
    known = [one.name for one in CONTENDERS]
    for name in options.contender or []:
        if name not in known:
            parser.error(f"--contender {name!r}: there is no such column; the columns are {known}")
    if options.write and (options.only or options.contender):
        parser.error("--write writes whole tables only; leave out --only and --contender")
    return options


def chosen_contenders(names: Sequence[str] | None) -> list[Contender]:
    """Return the contenders of these names, or all."""
    return [one for one in CONTENDERS if not names or one.name in names]


def measure_contenders(
    contenders: Sequence[Contender], scenarios: Sequence[Scenario], folder: Path | None = None
) -> tuple[Table, dict[str, str]]:
    """Measure one contender after the other; return the outcomes, and why each that is missing is."""
    table: Table = {}
    missing: dict[str, str] = {}
    for contender in contenders:
        try:
            table[contender.name] = measure_all(contender, scenarios, folder)
        except ImportError as error:
            missing[contender.name] = str(error)
    return table, missing


def as_markdown(table: Table, scenarios: Sequence[Scenario], missing: Mapping[str, str]) -> str:
    """Return the section: where the figures come from, how they were taken, the table, and all reasons."""
    absent = "; ".join(f"{name} ({reason})" for name, reason in missing.items()) or "none"
    facts = provenance("resume_exactness", PACKAGES, missing=absent)
    columns = {name: name for name in table}
    ways = "\n".join(f"- {one.name}: {one.how}" for one in CONTENDERS if one.name in table)
    parts = [
        "## Exactness of a resume",
        facts,
        NOTES,
        f"How each is resumed:\n\n{ways}",
        rows_of(table, scenarios, columns),
        reasons_of(table),
    ]
    return "\n\n".join(filter(None, parts))


def rows_of(table: Table, scenarios: Sequence[Scenario], columns: Mapping[str, str]) -> str:
    """Return the Markdown table of these columns."""
    shown = {name: title for name, title in columns.items() if name in table}
    head = f"| killed | {' | '.join(shown.values())} |\n|---|{'--:|' * len(shown)}"
    lines = [
        f"| {scenario.name} | {' | '.join(as_cell(table[name][scenario.name]) for name in shown)} |"
        for scenario in scenarios
    ]
    return "\n".join([head, *lines])


def as_cell(outcome: Outcome) -> str:
    """Return an outcome as a cell.

    >>> as_cell(Outcome("exact")), as_cell(Outcome("differs", 0.0297)), as_cell(Outcome("not possible"))
    ('**exact**', '3e-02', '-')
    """
    if outcome.verdict in MARKS:
        return MARKS[outcome.verdict]
    number = f"{outcome.difference:.0e}"
    return number if outcome.verdict == "differs" else f"not repeatable ({number})"


def reasons_of(table: Table) -> str:
    """Return why some cells hold no number, one line each."""
    lines = [
        f"- {name}, {scenario}: {outcome.verdict}: {outcome.reason}"
        for name, outcomes in table.items()
        for scenario, outcome in outcomes.items()
        if outcome.reason
    ]
    return "\n".join(lines)


def readme_table(table: Table, scenarios: Sequence[Scenario]) -> str:
    """Return what README shows: the table of the usual ways, and where the rest is."""
    counts = {name: sum(one.verdict == "exact" for one in outcomes.values()) for name, outcomes in table.items()}
    total = f"| rows that are exact | {' | '.join(str(counts[name]) for name in README_COLUMNS if name in table)} |"
    return f"{rows_of(table, scenarios, README_COLUMNS)}\n{total}"


if __name__ == "__main__":
    main()
