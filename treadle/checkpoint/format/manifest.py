"""What a checkpoint says of itself: its files with their sizes and checksums, under a checksum of its own."""

import json
import zlib
from collections.abc import Container, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.checkpoint.format.deflate import LEAST_LISTING, deflated_text, inflated_text
from treadle.errors import CheckpointError
from treadle.files.atomic_io import checksum, replace_text

if TYPE_CHECKING:
    from treadle.checkpoint.format.readers import Reader

FORMAT = "treadle-checkpoint-1"
SHARING_FORMAT = "treadle-checkpoint-2"
"""That of checkpoints with files that others share: a version that does not know these must not read one."""
DEFLATED_FORMAT = "treadle-checkpoint-3"
"""That of checkpoints with deflated text, in the manifest or beside it."""
FORMATS = (FORMAT, SHARING_FORMAT, DEFLATED_FORMAT)
LISTINGS = ("identity", "made of")
"""What a manifest says layer by layer, which may be as long as the weights of a small adapter."""
DEFLATED = "deflated"
MANIFEST = "manifest.json"
ADVICE = ": start again when it can be, or move the folder of this checkpoint away to resume from the one before"


def file_names(rank: int) -> tuple[str, str]:
    """Return the names of the files with the tensors and with the rest of a rank's state."""
    return f"rank_{rank}.safetensors", f"rank_{rank}.json"


def deflated_name(rank: int) -> str:
    """Return the name of the file with the rest of a rank's state where that is long."""
    return f"rank_{rank}.json.gz"


def own_names(rank: int, present: Container[str]) -> tuple[str, str]:
    """Return the names of a rank's own files, the rest of its state by the name by which it is `present`."""
    tensors, structure = file_names(rank)
    return tensors, deflated_name(rank) if deflated_name(rank) in present else structure


def describe_files(folder: Path, rank: int) -> dict[str, dict[str, Any]]:
    """Return the sizes and checksums of a rank's own files, as a manifest lists them."""
    present = {path.name for path in folder.iterdir()}
    return {name: describe_file(folder / name) for name in own_names(rank, present)}


def describe_file(path: Path) -> dict[str, Any]:
    """Return the size and checksum of a file."""
    return {"size": path.stat().st_size, "crc32": checksum(path)}


def sealed(facts: dict[str, Any]) -> str:
    """Return the text of a manifest that says `facts`."""
    files = facts.get("files", ())
    own = {name for rank in range(facts.get("ranks", 0)) for name in own_names(rank, files)}
    said = {name: _packed(value) if name in LISTINGS else value for name, value in facts.items()}
    kind = FORMAT if own.issuperset(files) else SHARING_FORMAT
    if said != facts or any(name.endswith(".gz") for name in own):
        kind = DEFLATED_FORMAT
    content = {"format": kind, **said}
    return json.dumps({**content, "crc32": _seal(content)}, indent=1)


def _packed(listing: Any) -> Any:
    """Return what stands in a manifest for a listing: itself, unless it is long."""
    text = json.dumps(listing)
    packed = deflated_text(text) if len(text) >= LEAST_LISTING else None
    return listing if packed is None else {DEFLATED: packed}


def _unpacked(value: Any) -> Any:
    if isinstance(value, dict) and set(value) == {DEFLATED}:
        return json.loads(inflated_text(value[DEFLATED]))
    return value


def write_manifest(folder: Path, facts: dict[str, Any]) -> None:
    """Write `facts` as the manifest of the checkpoint in `folder`."""
    replace_text(folder / MANIFEST, sealed(facts))


def read_manifest(reader: "Reader") -> dict[str, Any]:
    """Return what the manifest of a checkpoint says.

    Raises:
        CheckpointError: It is missing, damaged, or of a format this version does not know.
        StorageError: It cannot be read now.
    """
    try:
        manifest: dict[str, Any] = json.loads(reader.manifest())
        kind, seal = manifest["format"], manifest.pop("crc32", None)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{reader} has no readable manifest: {error}") from error
    if kind not in FORMATS:
        known = f"{FORMAT!r}, {SHARING_FORMAT!r} and {DEFLATED_FORMAT!r}"
        raise CheckpointError(f"{reader} has the format {kind!r}; this version reads {known}")
    if seal != _seal(manifest):
        raise CheckpointError(f"{reader} has a damaged manifest: its checksum differs")
    try:
        return manifest | {name: _unpacked(manifest[name]) for name in LISTINGS if name in manifest}
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{reader} has no readable manifest: {error}") from error


FACTS: dict[str, tuple[type, ...]] = {
    "epoch": (int,),
    "identity": (dict,),
    "environment": (dict,),
    "planned": (dict,),
    "finished": (bool,),
    "stopped": (str, type(None)),
}
"""What a run says of itself in the manifest of a checkpoint, and of which types that is."""


def require_facts(place: str, manifest: dict[str, Any]) -> None:
    """Refuse a manifest that a run did not write so.

    Raises:
        CheckpointError: A fact is missing, or of another type.
    """
    wrong = [name for name, types in FACTS.items() if type(manifest.get(name)) not in types]
    planned = manifest.get("planned")
    if isinstance(planned, dict):
        units = ("steps", "epochs")
        wrong += [f"planned.{unit}" for unit in units if type(planned.get(unit, "")) not in (int, type(None))]
    if wrong:
        value = planned.get(wrong[0][8:]) if wrong[0].startswith("planned.") else manifest.get(wrong[0])  # type: ignore[union-attr]
        raise CheckpointError(
            f"{place} has a manifest that no run wrote: {wrong[0]} is {value!r}; restore it, or move this checkpoint "
            "away to resume from the one before"
        )


def damage(reader: "Reader", manifest: dict[str, Any]) -> Iterator[str]:
    """Yield, in words, everything in which the files of a checkpoint are not as `manifest` says.

    Raises:
        StorageError: A file cannot be read now.
    """
    try:
        own = (name for rank in range(manifest["ranks"]) for name in own_names(rank, manifest["files"]))
        for name in dict.fromkeys((*own, *manifest["files"])):
            yield from _find_damage(reader, name, manifest["files"].get(name))
    except (OSError, KeyError, TypeError, AttributeError) as error:
        yield f"it cannot be checked: {error}"


def _find_damage(reader: "Reader", name: str, entry: Any) -> Iterator[str]:
    if entry is None:
        yield f"{name} is not in the manifest"
        return
    try:
        size = reader.size(name)
        if size != entry["size"]:
            yield f"{name} has {size} bytes instead of {entry['size']}"
        elif reader.checksum(name) != entry["crc32"]:
            yield f"{name} is damaged: its checksum differs"
    except FileNotFoundError:
        yield f"{name} is missing"


def _seal(content: dict[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(content, sort_keys=True).encode()):08x}"
