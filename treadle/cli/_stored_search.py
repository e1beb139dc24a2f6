"""`treadle search status`, `best`, `export`, `retry` and `stop`: of a search that there is, by its store."""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from treadle.console.lines import counted
from treadle.errors import ConfigError
from treadle.files.atomic_io import replace_text
from treadle.search.stored import StoredSearch, as_rows
from treadle.search.trial.lines import parameters_in, trial_line, values_in


def about_search(word: str, arguments: Sequence[str], name: str | None, *, as_json: bool) -> None:
    """Do what a word says with a search.

    Args:
        word: "status", "best", "export", "retry" or "stop".
        arguments: The folder of the search or the URL of its store, and what the word takes besides.
        name: The name of the search, in a store with several.
        as_json: Whether to print plain data.

    Raises:
        ConfigError: There is no folder, or there is too much.
    """
    if not arguments:
        raise ConfigError(f"treadle search {word} needs the folder of a search, or the URL of its store")
    place, *rest = arguments
    most = {"export": 1, "retry": len(rest)}.get(word, 0)
    if len(rest) > most:
        raise ConfigError(f"treadle search {word} takes no {rest[most]!r} after {place}")
    stored = StoredSearch(place, name)
    if word == "status":
        _status(stored, as_json=as_json)
    elif word == "best":
        _best(stored, as_json=as_json)
    elif word == "export":
        _export(stored, Path(rest[0]) if rest else None)
    elif word == "retry":
        numbers = stored.retry([_number(text) for text in rest])
        typer.echo(f"run again: {', '.join(f'trial {one}' for one in numbers) or 'none, for none has failed'}")
    else:
        stored.stop()
        typer.echo(f"{stored.name}: asked to stop; trials that are running come to their end")


def _status(stored: StoredSearch, *, as_json: bool) -> None:
    results = stored.results()
    states = [trial["state"] for trial in results["trials"]]
    counts = {state: states.count(state) for state in dict.fromkeys(sorted(states))}
    running = [trial for trial in results["trials"] if trial["state"] == "running"]
    if as_json:
        best = results["best"]
        told = {"name": stored.name, "states": counts, "running": [one["number"] for one in running]}
        typer.echo(json.dumps({**told, "best": None if best is None else best["number"]}))
        return
    listed = ", ".join(f"{count} {state}" for state, count in counts.items())
    typer.echo(
        f"{stored.name}: {counted(len(states), 'trial')}{f' ({listed})' if listed else ''} by {results['strategy']}"
    )
    for trial in running:
        typer.echo(trial_line(trial))
    if results["best"] is not None:
        typer.echo(f"best: {_line_of(results['best'])}")


def _best(stored: StoredSearch, *, as_json: bool) -> None:
    results = stored.results()
    front = [results["trials"][number] for number in results["pareto"]]
    if as_json:
        typer.echo(json.dumps(front))
    for trial in [] if as_json else front:
        typer.echo(_line_of(trial))
        folder = stored.trial_folder(trial)
        if folder is not None:
            typer.echo(f"  in {folder}")
    if not front:
        raise typer.Exit(1)


def _line_of(trial: dict[str, Any]) -> str:
    return f"trial {trial['number']}  {values_in(trial)}  {parameters_in(trial['parameters'])}"


def _export(stored: StoredSearch, path: Path | None) -> None:
    """Write the trials, as JSON or as a table; without a file, print JSON."""
    results = stored.results()
    if path is None:
        typer.echo(json.dumps(results, indent=1, default=str))
        return
    if path.suffix not in (".json", ".csv"):
        raise ConfigError(f"treadle search export writes .json and .csv, and not {path.name!r}")
    text = json.dumps(results, indent=1, default=str)
    if path.suffix == ".csv":
        columns, rows = as_rows(results)
        table = io.StringIO()
        csv.writer(table, lineterminator="\n").writerows([columns, *rows])
        text = table.getvalue()
    replace_text(path, text)
    typer.echo(str(path))


def _number(text: str) -> int:
    if not text.isdigit():
        raise ConfigError(f"treadle search retry takes numbers of trials, and {text!r} is none")
    return int(text)
