"""`treadle report`: runs as a web page."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from treadle.cli.reporting import complain, reported
from treadle.errors import ConfigError, TreadleError


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
    with reported("report"):
        if serve and output is not None:
            raise ConfigError("--serve writes no file; leave out --output")
        if serve:
            from treadle.report.serving import serve as serve_runs

            serve_runs(runs, port, typer.echo)
            return
        from treadle.report.page import write_report

        typer.echo(write_report(_chosen(runs), output))


def write_page(run: Path) -> None:
    """Write the page of a run that has just ended, where Plotly is there to draw it."""
    if find_spec("plotly") is None:
        return
    from treadle.report.page import write_report

    try:
        write_report([run])
    except TreadleError as error:
        # The run itself is complete: a full disk must not turn it into a failure.
        complain("report", str(error))


def _chosen(paths: list[Path]) -> list[Path]:
    """Return the folders that are meant; one of runs stands for all of them, and that of a search for itself."""
    from treadle.run_reading import find_runs, is_search

    def meant(path: Path) -> list[Path]:
        return [path] if is_search(path) or not path.is_dir() else list(find_runs(path)) or [path]

    return list(dict.fromkeys(run for path in paths for run in meant(path)))
