"""`treadle doctor`: what is wrong with a program, found in a few of its steps."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from treadle.cli._consent import Allow, confirm_source
from treadle.cli._errors import report_errors, with_width
from treadle.cli._options import Overrides

if TYPE_CHECKING:
    from treadle.tools.doctor import Examination, Finding


def doctor(
    program: Annotated[Path, typer.Argument(metavar="PROGRAM", help="A Python program that trains, or a config.")],
    overrides: Overrides = None,
    steps: Annotated[int, typer.Option("--steps", min=6, help="How many updates to look at.")] = 12,
    as_json: Annotated[bool, typer.Option("--json", help="Print each finding as one line of JSON.")] = False,
    allow: Allow = None,
) -> None:
    """Run a few steps of a program and say what is wrong with it.

    The program is run twice, in processes of its own, until it has trained for some
    steps; where it has sets or hashes, up to four times. Nothing is written into the
    folder of its run. Exits with status 1 if something was found. KEY=VALUE changes
    a config; a program gets it as its arguments.

    \b
    Example:
      treadle doctor train.py
      treadle doctor configs/gpt.py --steps 30 train.amp.enabled=true
    """
    with report_errors("doctor"):
        from treadle.tools.doctor.processes import examine_in_processes

        confirm_source(str(program), allow)
        found = examine_in_processes(program, steps, tuple(overrides or ()))
        for line in _lines(found, as_json):
            typer.echo(line)
        if found.findings:
            raise typer.Exit(1)


def _lines(found: "Examination", as_json: bool) -> list[str]:
    if as_json:
        return [json.dumps(one) for one in (*map(asdict, found.findings), *map(asdict, found.notes))]
    lines = [with_width(_in_words(finding), is_terminal=True) for finding in found.findings]
    lines += [with_width(f"{note.kind}: {note.message}", is_terminal=True) for note in found.notes]
    count = len(found.findings)
    said = "nothing wrong was found" if not count else f"{count} finding{'s' if count > 1 else ''}"
    return [*lines, f"{said} in {found.steps} steps"]


def _in_words(finding: "Finding") -> str:
    place = f"{finding.place}: " if finding.place else ""
    return f"{place}{finding.kind}: {finding.message}\n  fix: {finding.remedy}"
