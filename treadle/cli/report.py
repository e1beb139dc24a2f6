"""`treadle report`: runs as a web page."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from treadle.cli._errors import complain, report_errors
from treadle.errors import ConfigError


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to write; RUN/report.html by default.")
    ] = None,
    serve: Annotated[bool, typer.Option("--serve", help="Show the runs live, to browsers on this machine.")] = False,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Where to listen; 0 takes a free port.")] = 8123,
) -> None:
    """Show one run, or several over each other, as a web page.

    The page is one file that needs no network. With --serve the folders may
    hold any number of runs; the page follows them while they train.

    \b
    Example:
      treadle report runs/first
      treadle report runs/first runs/second -o both.html
      treadle report runs --serve
    """
    with report_errors("report"):
        if serve and output is not None:
            raise ConfigError("--serve writes no file; leave out --output")
        if serve:
            from treadle.tools.report.server import serve as serve_runs

            serve_runs(runs, port, typer.echo)
            return
        from treadle.tools.report.page import write_report

        typer.echo(write_report(_chosen(runs), output))


def write_page(
    runs: Sequence[Path], output: Path | None = None, *, together: Path | None = None, title: str | None = None
) -> Path | None:
    """Write the page of runs that have just ended, as `write_final_report` does; stderr takes what hinders it."""
    from treadle.tools.report.page import write_final_report

    return write_final_report(runs, partial(complain, "report"), output, together=together, title=title)


def _chosen(paths: list[Path]) -> list[Path]:
    """Return the folders that are meant; one of runs stands for all of them, and that of a search for itself."""
    from treadle.runs.reader import find_runs, is_search

    def meant(path: Path) -> list[Path]:
        return [path] if is_search(path) or not path.is_dir() else list(find_runs(path)) or [path]

    return list(dict.fromkeys(run for path in paths for run in meant(path)))
