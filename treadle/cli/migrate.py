"""`treadle migrate` and `treadle import`: files of other systems, as files for Treadle."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from treadle.cli._errors import report_errors
from treadle.errors import ConfigError

if TYPE_CHECKING:
    from treadle.tools.migrate import Migration


def migrate(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Programs, settings or search spaces.")],
    write: Annotated[bool, typer.Option("--write", "-w", help="Put the new text in the place of the old one.")] = False,
) -> None:
    """Turn a program or config for another system into one for Treadle.

    Knows pytorch-accelerated, Lightning, the Trainer of transformers, RecBole,
    LiBai and detectron2, and NNI. Prints the change as a diff, and what is left for you to change, by line.
    With --write the file is changed; unless git has the old one, that is kept
    as FILE.orig. Exits with status 1 if something is left to do.

    \b
    Example:
      treadle migrate train.py
      treadle migrate train.py settings.yaml --write
    """
    with report_errors("migrate"):
        from treadle.tools.migrate import migrate as migrate_file

        found = [migrate_file(path) for path in files]
        for migration in found:
            _show(migration, write)
        if any(migration.left for migration in found):
            raise typer.Exit(1)


def _show(migration: "Migration", write: bool) -> None:
    if not write:
        typer.echo(migration.diff(), nl=False)
    elif migration.changed:
        from treadle.tools.migrate.migration import write as write_file

        kept = write_file(migration)
        where = f"; the old one is {kept}" if kept is not None else ""
        typer.echo(f"{migration.target or migration.path}: migrated from {migration.system}{where}")
    if not migration.changed:
        typer.echo(f"{migration.path}: nothing to change")
    for note in migration.notes:
        kind = "left to do" if note.left else "good to know"
        typer.echo(f"{migration.path}:{note.line}: {kind}: {note.text}")


def import_checkpoint(
    source: Annotated[
        Path, typer.Argument(metavar="FILE", help="A .ckpt, .pth or .pt, a folder, or an exported .json.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The file to write.")],
    space: Annotated[
        str, typer.Option("--space", metavar="NAME", help="For a .json of NNI's: the full name of the space.")
    ] = "",
) -> None:
    """Make a checkpoint of Treadle's of one that another system wrote.

    Knows Lightning, detectron2, pytorch-accelerated, plain torch, and the
    folders of transformers' Trainer; nothing in them is run. Weights, and the optimizer's state if there is one,
    can then be loaded with trainer.load_checkpoint, and exported. An
    architecture that NNI exported needs the migrated space.

    \b
    Example:
      treadle import epoch=3.ckpt -o weights.safetensors
      treadle import export.json -o found.json --space my.spaces.Net
    """
    with report_errors("import"):
        if source.suffix == ".json":
            typer.echo(_import_architecture(source, output, space))
            return
        from treadle.checkpoint import write_file
        from treadle.checkpoint.importers.systems import read_foreign

        found = read_foreign(source)
        state = {"model_state_dict": found.weights, "facts": found.facts}
        if found.optimizer is not None:
            state["optimizer_state_dict"] = {"optimizer": found.optimizer}
        if found.scheduler is not None:
            state["scheduler_state_dict"] = found.scheduler
        write_file(output, state)
        beside = " and the state of an optimizer" if found.optimizer is not None else ""
        typer.echo(f"{len(found.weights)} tensors{beside} of {found.system} written to {output}")
        if found.passed_over:
            typer.echo(f"not brought over: {', '.join(found.passed_over)}")


def _import_architecture(source: Path, output: Path, space: str) -> str:
    import json

    from treadle.config import locate
    from treadle.files.atomic_io import replace_text
    from treadle.tools.migrate.nni_architectures import read_architecture

    if not space:
        raise ConfigError(f"{source} is read with the space it belongs to; pass --space, such as my.spaces.Net")
    if output.suffix.lower() != ".json":
        raise ConfigError(f"{output}: an architecture is written as JSON; give it a name that ends in .json")
    architecture = read_architecture(source, locate(space)())
    replace_text(output, json.dumps(architecture, indent=1) + "\n")
    return f"{len(architecture)} choices written to {output}"
