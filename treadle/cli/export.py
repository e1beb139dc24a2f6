"""`treadle export`: the weights of a run as one plain file."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from treadle.cli._errors import report_errors
from treadle.runs.place import is_url

if TYPE_CHECKING:
    from torch import Tensor

    from treadle.checkpoint import CheckpointStore


def export(
    source: Annotated[str, typer.Argument(help="A run folder or its URL, or a checkpoint file such as best_model.pt.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file to write: .safetensors or .pt; by default model.safetensors."),
    ] = None,
    torch: Annotated[bool, typer.Option("--torch", help="Write what torch.load reads, as .pt does.")] = False,
    best: Annotated[bool, typer.Option("--best", help="Take the best checkpoint of a run, not the last.")] = False,
) -> None:
    """Write the weights of a model as one plain file.

    The name decides: torch.load(weights_only=True) reads a .pt, .pth, .bin,
    .ckpt, .th or .torch, and without --torch other names are in the safetensors format. An
    .onnx or TorchScript file needs the model and an example of its inputs.

    \b
    Example:
      treadle export runs/first --best --output weights.safetensors
    """
    with report_errors("export"):
        from treadle.checkpoint.format.suffixes import file_format

        target = output or Path("model.pt" if torch else "model.safetensors")
        torch_format = file_format(target) == "torch" or torch
        weights = _weights_of(source, best=best)
        _write(weights, target, torch_format=torch_format)
        typer.echo(f"{len(weights)} tensors written to {target}")


def _weights_of(place: str, *, best: bool) -> "dict[str, Tensor]":
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
