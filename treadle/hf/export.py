"""A run as a folder that `from_pretrained` reloads, or as the model itself; the program that made it is not needed."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from treadle.checkpoint.format.file import on_host
from treadle.checkpoint.model_state import load_plain_state_dict
from treadle.checkpoint.policy import Policy
from treadle.checkpoint.store import CheckpointStore
from treadle.errors import CheckpointError, ConfigError, importing
from treadle.files.storage import LocalStorage, Storage, Within
from treadle.hf.adapters import add_adapters, has_adapters, save_adapters
from treadle.runs.mirror import Place, open_storage
from treadle.runs.pretrained import ADAPTERS, PRETRAINED

CONFIG = "config.json"
MODEL_FILES = (CONFIG, "generation_config.json")
"""What of a run's folder the model writes itself."""


def load_pretrained(run: Place, *, best: bool = False) -> Any:
    """Return the model of a run, with the weights of its last checkpoint, on the CPU.

    A model of PEFT comes with its adapters.

    Args:
        run: The folder of the run, its URL or its storage.
        best: Whether to take its best checkpoint.

    Raises:
        CheckpointError: The run holds no such checkpoint, or not what the model is built from.
        ConfigError: The class of the model is none of transformers.
        MissingDependencyError: A package of the extra `hf` is not installed.
    """
    with _pretrained_files(run) as files:
        return _model_of(run, files, _weights_of(run, best=best))


def export_pretrained(run: Place, folder: str | Path, *, best: bool = False, merge: bool = False) -> int:
    """Write the model of a run, and its tokenizer, as a folder that `from_pretrained` reloads.

    The weights that come back have the bits of the checkpoint. Of a model of PEFT the folder has the adapters alone,
    for `PeftModel.from_pretrained`, unless they are merged.

    Args:
        run: The folder of the run, its URL or its storage.
        folder: A new or empty folder.
        best: Whether to take the best checkpoint of the run.
        merge: Whether adapters are added to the weights that they adapt, so that a plain model is left.

    Returns:
        How many tensors were written.

    Raises:
        CheckpointError: As for `load_pretrained`; or the folder holds something, or cannot be written.
        ConfigError: As for `load_pretrained`; or nothing is there to merge, or adapters that cannot be merged.
        MissingDependencyError: A package of the extra `hf` is not installed.
    """
    target = Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise CheckpointError(f"{target} is there already; give --output a new folder")
    with _pretrained_files(run) as files:
        model = _model_of(run, files, _weights_of(run, best=best))
        adapted = has_adapters(files)
        if merge and not adapted:
            raise ConfigError(f"{run} has no adapters to merge; leave --merge out")
        try:
            _write(model, files, target, adapted=adapted, merge=merge)
        except OSError as error:
            raise CheckpointError(f"cannot write {target}: {error}") from error
    return sum(_count_tensors(path) for path in target.rglob("*.safetensors"))


def _write(model: Any, files: Path, target: Path, *, adapted: bool, merge: bool) -> None:
    # Beside its place until it is whole: a kill leaves no folder that looks complete.
    part = target.with_name(f".{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    if adapted and not merge:
        save_adapters(model, part)
    else:
        plain = model.merge_and_unload() if adapted else model
        plain.save_pretrained(part)
    beside = shutil.ignore_patterns(*MODEL_FILES, ADAPTERS)
    shutil.copytree(files, part, ignore=beside, dirs_exist_ok=True)
    if target.is_dir():
        target.rmdir()
    part.rename(target)


def _count_tensors(path: Path) -> int:
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return len(header.keys() - {"__metadata__"})


def _weights_of(run: Place, *, best: bool) -> dict[str, Tensor]:
    storage = open_storage(run)
    inside = storage.folder / "checkpoints" if isinstance(storage, LocalStorage) else Within(storage, "checkpoints")
    store = CheckpointStore(inside, Policy())
    step = store.pointer("best") if best else store.newest_good()
    if step is None:
        raise CheckpointError(f"{storage.url} holds no {'best' if best else 'whole'} checkpoint")
    store.manifest(step, verify=True)
    return on_host(store.read_weights(step))


@contextmanager
def _pretrained_files(run: Place) -> Iterator[Path]:
    """Yield the folder with what a run keeps of its model; a copy where the run is not on this disk."""
    storage = open_storage(run)
    names = storage.files(PRETRAINED)
    if f"{PRETRAINED}/{CONFIG}" not in names:
        raise CheckpointError(
            f"{storage.url} holds no {PRETRAINED}/{CONFIG}: a run keeps it whose model is one of transformers or PEFT. "
            "Call save_pretrained() of the model in the program itself, or export its weights with --format torch"
        )
    with TemporaryDirectory(prefix="treadle-pretrained-", ignore_cleanup_errors=True) as scratch:
        for name in names:
            _copy(storage, name, Path(scratch))
        yield Path(scratch) / PRETRAINED


def _copy(storage: Storage, name: str, folder: Path) -> None:
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise CheckpointError(f"{storage.address(name)} is no name of a file of a run; remove it")
    path.parent.mkdir(parents=True, exist_ok=True)
    storage.download(name, path)


def _model_of(run: Place, files: Path, weights: dict[str, Tensor]) -> Any:
    with importing("transformers", extra="hf", user="a model of transformers"):
        import transformers
    config = transformers.AutoConfig.from_pretrained(files, trust_remote_code=False)
    # Where these files lie for now is not where the model came from, which adapters would write down.
    config.name_or_path = ""
    name = (config.architectures or ["none"])[0]
    kind = getattr(transformers, name, None)
    if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
        raise ConfigError(
            f"the model of {open_storage(run).url} is a {name}, which transformers does not have; call "
            "save_pretrained() of the model in the program itself, or export its weights with --format torch"
        )
    with torch.random.fork_rng(devices=()):
        # What is drawn here is replaced at once.
        model: Any = kind(config)
        if has_adapters(files):
            model = add_adapters(model, files / ADAPTERS)
    return _filled(model, weights, open_storage(run).url)


def _filled(model: Any, weights: dict[str, Tensor], where: str) -> Any:
    """Return a model with these weights, each of the type that it has there."""
    for name, tensor in {**dict(model.named_parameters()), **dict(model.named_buffers())}.items():
        if name in weights and tensor.dtype != weights[name].dtype:
            tensor.data = tensor.data.to(weights[name].dtype)
    load_plain_state_dict(model, weights, where=where)
    return model.eval()
