"""What the name of a file says of its format: a name that means another format than is written is refused."""

import os
from pathlib import Path
from typing import Literal

from treadle.errors import CheckpointError

Format = Literal["safetensors", "torch"]

TORCH = (".pt", ".pth", ".bin", ".ckpt", ".th", ".torch")
"""What stands behind the names of files that `torch.load` reads."""

_PROGRAM = "holds the program of a model beside its weights, which is made by running the model on an example"
_MADE_BY = "write the weights as .safetensors or .pt, load them into the model, and call {}"
_OTHERS = {
    ".onnx": (_PROGRAM, _MADE_BY.format("torch.onnx.export(model, example, path)")),
    ".ts": (_PROGRAM, _MADE_BY.format("torch.jit.trace(model, example).save(path)")),
    ".jit": (_PROGRAM, _MADE_BY.format("torch.jit.trace(model, example).save(path)")),
    ".torchscript": (_PROGRAM, _MADE_BY.format("torch.jit.trace(model, example).save(path)")),
    ".pt2": (_PROGRAM, _MADE_BY.format("torch.export.save(torch.export.export(model, example), path)")),
    **dict.fromkeys((".pkl", ".pickle", ".dill", ".joblib"), ("is a pickle, which may run code when it is loaded", "")),
    **dict.fromkeys((".json", ".yaml", ".yml", ".txt", ".csv", ".py"), ("is text, which weights are not", "")),
    **dict.fromkeys(
        (
            ".h5",
            ".hdf5",
            ".keras",
            ".npz",
            ".npy",
            ".gguf",
            ".tflite",
            ".pb",
            ".msgpack",
            ".parquet",
            ".mlmodel",
            ".engine",
        ),
        ("is the format of other libraries, which is not written here", ""),
    ),
    **dict.fromkeys(
        (".zip", ".mar", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".zst", ".7z"),
        ("is an archive, which is not written here", ""),
    ),
}
"""What a file of such a name is, and how one is made of a model; "" where another name is all that helps."""


def file_format(path: str | os.PathLike[str]) -> Format:
    """Return the format that weights and states are written in under a name.

    `.pt`, `.pth`, `.bin`, `.ckpt`, `.th` and `.torch` are what `torch.load(weights_only=True)` reads. `.safetensors`,
    no suffix, and what is no format of anybody's, such as the `.1` of `model.1`, are safetensors.

    >>> file_format("best_model.pt"), file_format("runs/model.safetensors"), file_format("epoch_3")
    ('torch', 'safetensors', 'safetensors')

    Raises:
        CheckpointError: The name is that of another format.
    """
    suffix = Path(path).suffix.lower()
    if suffix in _OTHERS:
        what, how = _OTHERS[suffix]
        raise CheckpointError(
            f"{os.fspath(path)}: a {suffix} file {what}; {how or 'use .safetensors, or .pt for torch.load'}"
        )
    return "torch" if suffix in TORCH else "safetensors"
