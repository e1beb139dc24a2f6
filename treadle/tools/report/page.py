"""The page: its data, its program and its looks in one file."""

import base64
import gzip
import json
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from html import escape
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.callback import TrainerCallback
from treadle.errors import CheckpointError, ConfigError, TreadleError, require
from treadle.files.atomic_io import replace_text
from treadle.runs.lock import held_here
from treadle.runs.reader import Panel, Run, read_any_run, read_panels
from treadle.tools.report.payload import build_payload, short_names

if TYPE_CHECKING:
    from treadle.trainer import Trainer

NAME = "report.html"


def write_report(
    runs: Sequence[Path], output: Path | None = None, *, together: Path | None = None, title: str | None = None
) -> Path:
    """Write the page of one or several runs.

    Args:
        runs: Their folders.
        output: The file to write; by default `report.html` in the folder of the first run.
        together: A folder whose `panels` are about all of the runs, and come first on the page.
        title: What the page is called; by default after the run, or the number of them.

    Returns:
        The file.

    Raises:
        ConfigError: One of the folders is not that of a run, or the file has the name of another format.
        MissingDependencyError: Plotly, which draws the curves, is not installed.
        CheckpointError: The file cannot be written.
    """
    target = runs[0] / NAME if output is None else output
    if target.suffix.lower() not in ("", ".html", ".htm"):
        raise ConfigError(f"{target}: a report is a page of HTML; give it a name that ends in .html")
    panels = () if together is None else tuple(read_panels(together))
    found = [read_any_run(path, name) for path, name in zip(runs, short_names(list(runs)), strict=True)]
    page = render_page(found, panels=panels, title=title)
    try:
        replace_text(target, page)
    except OSError as error:
        raise CheckpointError(f"cannot write the page {target}: {error}") from error
    return target


def write_final_report(
    runs: Sequence[Path],
    tell: Callable[[str], object],
    output: Path | None = None,
    *,
    together: Path | None = None,
    title: str | None = None,
) -> Path | None:
    """Write the page of runs that have just ended, where Plotly is there to draw it.

    The runs are complete: whatever hinders the page, such as a full disk, is told and turns none of them into a
    failure.

    Args:
        runs: Their folders.
        tell: Takes a message about a page that could not be written.
        output: As in `write_report`.
        together: As in `write_report`.
        title: As in `write_report`.

    Returns:
        The file; None where there is no new page.
    """
    if not runs or find_spec("plotly") is None:
        return None
    try:
        return write_report(runs, output, together=together, title=title)
    except TreadleError as error:
        tell(str(error))
        return None


def render_page(
    runs: Iterable[Run],
    *,
    live: float = 0.0,
    panels: Sequence[Panel] = (),
    title: str | None = None,
    colours: dict[str, int] | None = None,
) -> str:
    """Return the page of some runs as HTML.

    Args:
        runs: The runs.
        panels: What is to be shown of all of them together.
        title: What the page is called; by default after the run, or the number of them.
        live: How often the page asks its server for what is new, in seconds; 0 for a page without a server.
        colours: The colours that runs have already, by their names; those of new ones are added.
    """
    found = list(runs)
    if title is None:
        title = found[0].name if len(found) == 1 else f"{len(found)} runs"
    return filled(
        asset("page.html"),
        title=escape(title),
        style=asset("page.css"),
        plotly=plotly_source(),
        data=embedded(build_payload(found, panels, colours)),
        live=json.dumps(live),
        program=asset("page.js"),
    )


def embedded(value: Any) -> str:
    """Return plain data as JSON that can stand inside of a page: nothing in it ends a script.

    >>> embedded("</script>")
    '"\\\\u003c/script>"'
    """
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def filled(template: str, **parts: str) -> str:
    """Return a template with its parts put in, each looked for in the template only."""
    pieces = template.split("@@")
    return "".join(parts[piece] if place % 2 else piece for place, piece in enumerate(pieces))


def asset(name: str) -> str:
    """Return the text of a file that pages are made of."""
    return (files("treadle.tools.report") / "assets" / name).read_text(encoding="utf-8")


@cache
def plotly_source() -> str:
    """Return the program that draws, packed, as text; a browser unpacks it.

    Raises:
        MissingDependencyError: Plotly is not installed.
    """
    require("plotly", extra="report", user="a report")
    source = (files("plotly") / "package_data" / "plotly.min.js").read_bytes()
    return base64.b64encode(gzip.compress(source, 6, mtime=0)).decode()


# The page of a run, written when the run ends


class ReportCallback(TrainerCallback):
    """Writes `report.html` into the folder of the run when the run ends, on the first process.

    Raises:
        MissingDependencyError: Plotly is not installed.
    """

    def __init__(self) -> None:
        plotly_source()

    def on_training_run_start(self, trainer: "Trainer", **kwargs: Any) -> None:
        """Have the page written once the metrics are complete and it is known how the run ended."""
        if trainer.run_dir is None:
            raise ConfigError(f"ReportCallback writes {NAME} into the folder of the run; give the trainer a run_dir=")
        if trainer.processes.is_main:
            lock = held_here(trainer.run_dir)
            # With the lock, for a page that is written earlier would say that the run is still running.
            after = trainer.this_run.checkpointer.afterwards if lock is None else lock.afterwards
            after(partial(write_final_report, [trainer.run_dir], trainer.print))
