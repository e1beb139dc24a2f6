"""`treadle recsys bench`: several recommenders under one protocol."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from treadle.cli import worker
from treadle.cli.recsys_settings import given_settings
from treadle.cli.report import write_page
from treadle.cli.reporting import reported
from treadle.errors import ConfigError

if TYPE_CHECKING:
    from treadle.recsys.bench import Benchmark

DataSet = Annotated[str | None, typer.Option("--dataset", "-d", metavar="NAME", help="The name of the data set.")]
Files = Annotated[
    list[str] | None,
    typer.Option("--config-file", "--config_files", "-c", metavar="FILE", help="YAML files with settings."),
]


def bench(
    ctx: typer.Context,
    models: Annotated[str, typer.Option("--models", metavar="A,B,...", help="Models, with commas between them.")],
    dataset: DataSet = None,
    files: Files = None,
    seeds: Annotated[
        str | None, typer.Option("--seeds", metavar="N,N,...", help="Train each model once with each of these.")
    ] = None,
    folder: Annotated[Path, typer.Option("--folder", metavar="DIR", help="Where all is kept.")] = Path("bench"),
) -> None:
    """Train several models under one protocol, and rank them.

    All have the same split, metrics and seeds. Further options are settings of
    all models; --BPR.embedding_size=32 is one of BPR alone. The same command
    goes on after a kill: what is done is not done again. A model that fails
    costs no other, and is tried again by the next command.

    \b
    Example:
      treadle recsys bench --models BPR,LightGCN,KGAT --dataset ml-100k \\
        --seeds 2020,2021,2022 --epochs=50
    """
    with reported("recsys bench"), worker.ready():
        from treadle.recsys.bench import Benchmark, Protocol

        names = [name.strip() for name in models.split(",") if name.strip()]
        protocol = Protocol(names, dataset, separate(files), given_settings(ctx))
        made = Benchmark(protocol, folder, seeds=_numbers(seeds))
        table = made.run(typer.echo)
        _show(table.columns(), table.rows(), len(table.metrics))
        typer.echo("\n".join([*table.notes(), f"the table is in {folder / 'leaderboard.md'}"]))
        _show_page(made)
        if table.failed:
            raise typer.Exit(1)


def separate(files: list[str] | None) -> list[str]:
    """Return files one by one; RecBole's users give several in one text, with spaces between them."""
    return [file for text in files or () for file in ([text] if Path(text).exists() else text.split())]


def _numbers(text: str | None) -> list[int]:
    parts = [part.strip() for part in (text or "").split(",") if part.strip()]
    wrong = next((part for part in parts if not part.isdecimal()), None)
    if wrong is not None:
        raise ConfigError(f"--seeds {text!r}: {wrong!r} is no whole number; give numbers with commas between them")
    return list(map(int, parts))


def _show(columns: list[str], rows: list[list[str]], metrics: int) -> None:
    """Print the table as far as a terminal has room for it: of several metrics, the one that decides."""
    from rich.console import Console
    from rich.table import Table

    places = [*range(3), *range(2 + metrics, len(columns) - 1)]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for place in places:
        table.add_column(columns[place], justify="left" if columns[place] == "model" else "right")
    for row in rows:
        table.add_row(*(row[place] for place in places))
    Console().print(table)


def _show_page(made: "Benchmark") -> None:
    """Write the page of a benchmark, and say where it is."""
    from treadle.report.page import NAME

    page = write_page(made.run_folders(), made.folder / NAME, together=made.folder, title=made.leaderboard().title())
    if page is not None:
        typer.echo(f"the page is {page}")
