"""`treadle verify`: whether a run can be made again, bit for bit."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from treadle.cli._consent import Allow, confirm_program
from treadle.cli._errors import complain, error_message, format_error, is_user_error
from treadle.cli._errors import is_typer_exit as is_typers
from treadle.cli._options import Run

if TYPE_CHECKING:
    from treadle.tools.reproduce import Verification

UNTRIED = 2
"""The exit status where nothing could be compared."""


def verify(
    run: Run,
    steps: Annotated[
        int | None, typer.Option("--steps", min=1, metavar="N", help="How many steps to make again, each time.")
    ] = None,
    checkpoint: Annotated[
        int | None, typer.Option("--from", metavar="STEP", help="The checkpoint to resume from.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one line of JSON.")] = False,
    allow: Allow = None,
) -> None:
    """Make steps of a run again and compare them, bit for bit.

    Once from the beginning and once from a checkpoint, in a folder that is
    then removed: nothing in the run's folder is changed. Exits with status 0
    if everything is equal, 1 if something differs, and says what is no longer
    as it was; 2 if some of it, or all, could not be tried. What made the run is
    run: of a folder that somebody else made, you are asked first (see --allow).

    \b
    Example:
      treadle verify runs/first
      treadle verify runs/first --steps 500 --from 2000
    """
    try:
        from treadle.tools.reproduce import verify as verify_run

        confirm_program(run, allow)
        found = verify_run(None, run, steps=steps, checkpoint=checkpoint)
    except Exception as error:
        if is_typers(error):
            raise
        if is_user_error(error):
            complain("verify", error_message(error))
        else:
            typer.echo(format_error("verify", error), err=True)
        raise typer.Exit(UNTRIED) from error
    typer.echo(json.dumps(_plain(found)) if as_json else str(found))
    if found.status:
        raise typer.Exit(found.status)


def _plain(found: "Verification") -> dict[str, Any]:
    return {"verdict": found.verdict, **asdict(found), "run": str(found.run)}
