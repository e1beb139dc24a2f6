"""`treadle export`: the model of a run, for use elsewhere."""

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from treadle.cli._consent import Allow
from treadle.cli._errors import report_errors
from treadle.errors import ConfigError
from treadle.runs.place import is_url

if TYPE_CHECKING:
    from torch import Tensor

    from treadle.checkpoint import CheckpointStore


class Format(StrEnum):
    """What a model is written as."""

    SAFETENSORS = "safetensors"
    TORCH = "torch"
    HF = "hf"
    ONNX = "onnx"
    PROGRAM = "torch.export"


SUFFIX = {
    Format.SAFETENSORS: "model.safetensors",
    Format.TORCH: "model.pt",
    Format.HF: "model",
    Format.ONNX: "model.onnx",
    Format.PROGRAM: "model.pt2",
}
"""What is written where no name is given."""
PROGRAMS = {".onnx": Format.ONNX, ".pt2": Format.PROGRAM}
"""What the names of programs end in."""


def export(
    source: Annotated[str, typer.Argument(help="A run folder or its URL, or a checkpoint file such as best_model.pt.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file or folder to write; by default model, with the fitting suffix."),
    ] = None,
    format: Annotated[
        Format | None, typer.Option("--format", "-f", help="What to write; by default what the name says.")
    ] = None,
    torch: Annotated[bool, typer.Option("--torch", help="The same as --format torch.")] = False,
    best: Annotated[bool, typer.Option("--best", help="Take the best checkpoint of a run, not the last.")] = False,
    merge: Annotated[
        bool,
        typer.Option("--merge", help="For hf: add adapters to the weights that they adapt; a plain model is left."),
    ] = False,
    example: Annotated[
        Path | None,
        typer.Option("--example", help="For onnx and torch.export: inputs by name, in a .safetensors or .pt file."),
    ] = None,
    allow: Allow = None,
) -> None:
    """Write the model of a run for use elsewhere.

    safetensors and torch are one file of weights; without --format the name
    decides: torch.load(weights_only=True) reads a .pt, .pth, .bin, .ckpt, .th
    or .torch, a .onnx or .pt2 is a program, and other names are in the
    safetensors format. hf is a folder that from_pretrained of transformers
    or PEFT reloads, tokenizer with it. onnx and torch.export are programs that
    need no code of the model; they are compared with it, and written only if
    they compute the same. They need a model of transformers or a run of a
    config, and an example of its inputs.

    \b
    Example:
      treadle export runs/first --best --output weights.safetensors
      treadle export runs/first --format hf --output my-model
    """
    with report_errors("export"):
        chosen = _format_of(format, output, torch=torch)
        target = output or Path(SUFFIX[chosen])
        programs = tuple(PROGRAMS.values())
        _require_use(merge and chosen not in (Format.HF, *programs), "--merge", "--format hf, onnx and torch.export")
        _require_use(example is not None and chosen not in programs, "--example", "--format onnx and torch.export")
        if chosen is Format.HF:
            from treadle.hf.export import export_pretrained

            count = export_pretrained(source, target, best=best, merge=merge)
        elif chosen in programs:
            from treadle.checkpoint.format.program import export_onnx, export_program
            from treadle.cli._program_export import build_model, example_of

            read = partial(_read_weights, source, best=best)
            model = build_model(source, read, allow=allow, best=best, merge=merge)
            write = export_onnx if chosen is Format.ONNX else export_program
            write(model, example_of(model, example), target)
            typer.echo(f"{type(model).__name__} written to {target}, and compared with it")
            return
        else:
            weights = _read_weights(source, best=best)
            _write(weights, target, torch_format=chosen is Format.TORCH)
            count = len(weights)
        typer.echo(f"{count} tensors written to {target}")


def _format_of(asked: Format | None, output: Path | None, *, torch: bool) -> Format:
    from treadle.checkpoint.format.suffixes import file_format

    if torch and asked not in (None, Format.TORCH):
        raise ConfigError(f"--torch and --format {asked} exclude each other; leave one of them out")
    if asked in (Format.HF, Format.ONNX, Format.PROGRAM):
        return asked
    if asked is None and not torch and output is not None and output.suffix in PROGRAMS:
        return PROGRAMS[output.suffix]
    by_name = Format(file_format(output or Path("model")))
    if asked is Format.SAFETENSORS and by_name is Format.TORCH:
        raise ConfigError(f"{output} is to be written as safetensors, and its name says torch; use .safetensors")
    return Format.TORCH if torch else asked or by_name


def _require_use(unused: bool, option: str, beside: str) -> None:
    if unused:
        raise ConfigError(f"{option} is for {beside} alone; leave it out")


def _read_weights(place: str, *, best: bool) -> "dict[str, Tensor]":
    from treadle.checkpoint import CheckpointStore, Policy
    from treadle.checkpoint.importers.weights import import_weights, weights_in
    from treadle.errors import CheckpointError

    if is_url(place):
        from treadle.files.storage import Within
        from treadle.runs.mirror import open_storage

        return _weights_in(CheckpointStore(Within(open_storage(place), "checkpoints"), Policy()), place, best=best)
    source = Path(place)
    if not source.exists():
        raise CheckpointError(f"there is no checkpoint file {source}")
    if not source.is_dir():
        return weights_in(import_weights(source))
    return _weights_in(CheckpointStore(source / "checkpoints", Policy()), place, best=best)


def _weights_in(store: "CheckpointStore", place: str, *, best: bool) -> "dict[str, Tensor]":
    from treadle.errors import CheckpointError

    step = store.pointer("best") if best else store.newest_good()
    if step is None:
        raise CheckpointError(f"{place} holds no {'best' if best else 'whole'} checkpoint")
    store.manifest(step, verify=True)
    return store.read_weights(step)


def _write(weights: "dict[str, Tensor]", output: Path, *, torch_format: bool) -> None:
    from safetensors.torch import save_file

    from treadle.checkpoint.format.file import on_host
    from treadle.checkpoint.importers.weights import export_torch
    from treadle.errors import CheckpointError
    from treadle.files.atomic_io import replace_file

    if torch_format:
        export_torch(weights, output)
        return
    try:
        plain = on_host(weights)
        replace_file(output, lambda temporary: save_file(plain, temporary))
    except OSError as error:
        raise CheckpointError(f"cannot write {output}: {error}") from error
