"""`treadle fetch`: a run that is kept in a bucket as a folder of this machine."""

from pathlib import Path
from typing import Annotated

import typer

from treadle.cli._errors import report_errors


def fetch(
    url: Annotated[str, typer.Argument(metavar="URL", help="Where the run is kept, such as s3://bucket/run.")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder to make; it must not be there yet.")],
) -> None:
    """Copy a run that is kept in a bucket, or another place that fsspec knows.

    The copy is a run's folder like any other: it is listed, shown, verified,
    exported and gone on with. What is kept in the bucket stays as it is.

    \b
    Example:
      treadle fetch s3://bucket/first runs/first
      treadle report runs/first
    """
    with report_errors("fetch"):
        from treadle.runs.mirror import fetch_run

        count, size = fetch_run(url, folder)
        typer.echo(f"{count} files, {size:,} bytes, copied to {folder}")
