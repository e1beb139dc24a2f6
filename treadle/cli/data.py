"""`treadle data`: text made into token bins, and a look at what token bins hold."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from treadle.cli._errors import report_errors
from treadle.cli.runs import size as bytes_of
from treadle.console.lines import counted
from treadle.errors import ConfigError
from treadle.files.bounded_io import printable

if TYPE_CHECKING:
    from treadle.data.prepare import Inspection, Prepared

data = typer.Typer(no_args_is_help=True)
BAR = 30
"""The width of the longest bar of a histogram."""
SHOWN = 400
"""How many characters of a document are shown."""
Tokenizing = Annotated[
    Path | None, typer.Option("--tokenizer", "-t", metavar="PATH", help="tokenizer.json, or a folder with a tokenizer.")
]


class Document(StrEnum):
    """What is a document in a plain text."""

    FILE = "file"
    LINE = "line"


@data.callback()
def about() -> None:
    """Prepare text for training, and look at what was prepared.

    \b
    Example:
      treadle data prepare books/ web/*.jsonl.gz -t tokenizer.json -o tokens
      treadle data inspect tokens -t tokenizer.json
    """


@data.command()
def prepare(
    inputs: Annotated[
        list[str], typer.Argument(metavar="INPUT...", help="Files, folders and patterns: JSON lines, Parquet, text.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="The folder of the token bins.")],
    tokenizer: Tokenizing = None,
    key: Annotated[str, typer.Option(metavar="NAME", help="The field or column that holds the text.")] = "text",
    document: Annotated[Document, typer.Option(help="What is a document in a plain text.")] = Document.FILE,
    end: Annotated[
        str, typer.Option(metavar="TOKEN", help="Put behind each document; auto is the tokenizer's own, or none.")
    ] = "auto",
    workers: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Processes; one for each core if not given.")
    ] = None,
    part_size: Annotated[int, typer.Option(metavar="MIB", min=1, help="Input of one bin, in MiB.")] = 64,
    skip_errors: Annotated[bool, typer.Option("--skip-errors", help="Leave out records without text.")] = False,
) -> None:
    """Make token bins of text, on all cores.

    Killed at any moment, the same command finishes the work: bins that are
    there are kept, and the bytes are those of a run that nobody disturbed.

    \b
    Example:
      treadle data prepare "web/*.jsonl" -t tokenizer.json -o tokens
      treadle data prepare wiki.parquet --key body -t models/gpt2 -o tokens
    """
    with report_errors("data prepare"):
        from treadle.data.prepare import prepare as make
        from treadle.data.prepare.text_files import Reading

        if tokenizer is None:
            raise ConfigError(
                "text becomes tokens by a tokenizer; name one with --tokenizer, a folder or a tokenizer.json"
            )
        reading = Reading(key, document.value, skip_errors)
        with _bar("preparing", in_bytes=True) as tell:
            done = make(
                inputs,
                output,
                tokenizer=tokenizer,
                reading=reading,
                end=end,
                workers=workers,
                part_size=part_size << 20,
                progress=tell,
            )
        for line in _told(done):
            typer.echo(line)


def _told(done: "Prepared") -> Iterator[str]:
    ending = "no token behind documents" if done.end is None else f"{done.end} behind each document"
    yield f"{counted(done.tokens, 'token')} of {counted(done.documents, 'document')} in {done.folder}"
    kept = f", {done.found:,} of them made before" if done.found else ""
    yield f"{counted(done.parts, 'bin')}{kept}; {done.dtype}; {printable(ending)}"
    if done.skipped or done.empty:
        yield f"left out: {counted(done.skipped, 'record')} without text, {counted(done.empty, 'empty text')}"


@data.command()
def inspect(
    bins: Annotated[list[Path], typer.Argument(metavar="BINS...", help="Token bins, or folders of them.")],
    tokenizer: Tokenizing = None,
    samples: Annotated[int, typer.Option(metavar="N", min=0, help="How many documents are shown.")] = 3,
    seed: Annotated[int, typer.Option(metavar="N", help="Which documents are shown.")] = 0,
    no_duplicates: Annotated[
        bool, typer.Option("--no-duplicates", help="Do not look for documents that are there twice.")
    ] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Compare the checksums of all tokens.")] = False,
) -> None:
    """Show what token bins hold: sizes, lengths, duplicates and samples.

    \b
    Example:
      treadle data inspect tokens --tokenizer tokenizer.json --samples 5
      treadle data inspect tokens/part-000000.bin --verify --no-duplicates
    """
    with report_errors("data inspect"):
        from treadle.data.prepare.inspection import inspect_bins, sample_documents
        from treadle.data.prepare.tokenizer import NONE, Tokenizer
        from treadle.data.sources import TokenBin
        from treadle.data.sources.token_bins import found_bins

        paths = found_bins(bins)
        if verify:
            for path in paths:
                TokenBin(path).verify()
        with _bar("reading") as tell:
            found = inspect_bins(bins, duplicates=not no_duplicates, told=tell)
        tool = None if tokenizer is None else Tokenizer(tokenizer, NONE)
        for line in _shown(found):
            typer.echo(line)
        if verify:
            typer.echo("all checksums are right")
        for name, number, tokens in sample_documents(bins, samples, seed):
            text = " ".join(map(str, tokens.tolist())) if tool is None else tool.decode(tokens.tolist())
            typer.echo(f"\n{name}, document {number}, {counted(len(tokens), 'token')}:")
            typer.echo(f"  {printable(text[:SHOWN])}{' ...' if len(text) > SHOWN else ''}")


def _shown(found: "Inspection") -> Iterator[str]:
    made = f", made with {', '.join(map(printable, found.tokenizers))}" if found.tokenizers else ""
    yield f"{counted(found.bins, 'bin')}, {bytes_of(found.size)}, {' and '.join(found.dtypes)}{made}"
    yield f"{counted(found.documents, 'document')}, {counted(found.tokens, 'token')}"
    if found.duplicates is not None:
        share = found.duplicates / max(1, found.documents)
        yield f"{counted(found.duplicates, 'duplicate')}, {share:.1%} of the documents"
    yield f"length: mean {found.mean:,.1f}, from {found.shortest:,} to {found.longest:,}"
    yield "percentiles: " + ", ".join(f"{name}% {value:,}" for name, value in found.percentiles.items())
    most = max((count for _, _, count in found.histogram), default=1)
    for low, high, count in found.histogram:
        span = f"{low:,}" if low == high else f"{low:,}-{high:,}"
        yield f"  {span:>17}  {'#' * -(-BAR * count // most)} {count:,}"


@contextmanager
def _bar(what: str, *, in_bytes: bool = False) -> Iterator[Callable[[int, int], object]]:
    """Show how far something is, on a terminal; nothing is left of it at the end."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    amount = DownloadColumn(binary_units=True) if in_bytes else MofNCompleteColumn()
    columns = TextColumn("{task.description}"), BarColumn(), amount, TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=None)

        def tell(step: int, total: int) -> None:
            progress.update(task, advance=step, total=total)

        yield tell
