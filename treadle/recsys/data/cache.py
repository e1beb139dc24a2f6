"""Prepared data sets on disk, found again by what they were made of: safetensors and JSON, never a pickle."""

import json
import logging
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from treadle.checkpoint import read_file, write_file
from treadle.errors import CheckpointError
from treadle.recsys.config.configurator import Config
from treadle.recsys.config.defaults import SAMPLE, packaged
from treadle.recsys.data.dataset import Dataset
from treadle.recsys.data.interaction import Interaction
from treadle.recsys.data.tables.pipeline import Prepared
from treadle.recsys.data.tables.sources import Sources
from treadle.recsys.enums import FeatureSource, FeatureType
from treadle.recsys.optional import pyarrow

logger = logging.getLogger(__name__)
VERSION = 2
"""Goes into every key: raise it when data is prepared in another way."""
CHUNK = 1 << 22
LATER = ("unused_col", "LIST_SUFFIX", "MAX_ITEM_LIST_LENGTH", "ITEM_LIST_LENGTH_FIELD", "POSITION_FIELD", "NEG_PREFIX")
"""Settings of data that matter only after it is prepared."""


def content_key(config: Config, sources: Sources) -> str:
    """Return what the prepared data depends on, in 32 hexadecimal digits: every file, and every setting of data."""
    settings = {name: config[name] for name in (packaged(SAMPLE) or {}) if name not in LATER}
    parts = [f"{suffix} {_content(place)}" for suffix, places in sources.places.items() for place in places]
    loaded = {suffix: repr(sources.selection(suffix)) for suffix in sources.places}
    text = json.dumps([VERSION, config["encoding"], settings, loaded, parts], sort_keys=True, default=repr)
    return blake2b(text.encode(), digest_size=16).hexdigest()


def _content(place: Any) -> str:
    digest = blake2b(digest_size=16)
    if isinstance(place, (str, Path)):
        with open(place, "rb") as file:
            while block := file.read(CHUNK):
                digest.update(block)
        # How a file is read depends on its ending too.
        return f"{''.join(Path(place).suffixes)} {digest.hexdigest()}"
    _digest_table(place, digest)
    return digest.hexdigest()


def _digest_table(given: Any, digest: Any) -> None:
    """Take in a table in memory, as Arrow would write it."""
    arrow = pyarrow()
    table = given if isinstance(given, arrow.Table) else arrow.table(given)

    class Sink:
        """A file that is only counted."""

        closed = False

        def write(self, block: Any) -> int:
            digest.update(block)
            return len(block)

        def flush(self) -> None: ...

        def close(self) -> None: ...

    with arrow.ipc.new_stream(arrow.PythonFile(Sink(), mode="w"), table.schema) as writer:
        writer.write_table(table.combine_chunks())


def cache_path(config: Config, kind: str, key: str) -> Path:
    """Return where a prepared data set is kept."""
    chosen = config["dataset_save_path"]
    if chosen is not None:
        return Path(chosen)
    return Path(config["checkpoint_dir"]) / f"{config['dataset']}-{kind}-{key[:16]}.safetensors"


def split_path(config: Config) -> Path:
    """Return where the split of a data set is kept."""
    chosen = config["dataloaders_save_path"]
    if chosen is not None:
        return Path(chosen)
    return Path(config["checkpoint_dir"]) / f"{config['dataset']}-for-{config['model']}-split.safetensors"


def split_key(config: Config, dataset: Dataset) -> str:
    """Return what a split depends on: the interactions, the seed and `eval_args`."""
    digest = blake2b(digest_size=16)
    for name, column in dataset.inter_feat.interaction.items():
        digest.update(name.encode())
        digest.update(column.contiguous().view(-1).view(torch.uint8).numpy().data)
    digest.update(
        json.dumps([VERSION, config.seed_of_split, config["eval_args"]], sort_keys=True, default=repr).encode()
    )
    return digest.hexdigest()


def load_split(path: Path, key: str) -> list[Any] | None:
    """Return the rows of each part that a file holds; None if there is none, or one of other data or settings."""
    tree = _read_tree(path, key)
    return None if tree is None else [None if rows is None else rows.numpy() for rows in tree["rows"]]


def save_split(path: Path, key: str, rows: list[Any]) -> None:
    """Write the rows of each part; the file is complete or not there."""
    tensors = [None if part is None else torch.from_numpy(np.ascontiguousarray(part)) for part in rows]
    write_file(path, {"key": key, "rows": tensors})
    logger.info("the split is kept in %s", path)


def load_prepared(path: Path, key: str) -> Prepared | None:
    """Return the prepared data set in a file; None if there is none, or one of other data or settings."""
    tree = _read_tree(path, key)
    return None if tree is None else _prepared_path(tree)


def _read_tree(path: Path, key: str) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        tree = read_file(path)
    except CheckpointError as error:
        logger.warning("%s is not used: %s", path, error)
        return None
    if not isinstance(tree, dict) or tree.get("key") != key:
        logger.info("%s is not used: it was made of other data, or with other settings", path)
        return None
    return tree


def save_prepared(path: Path, key: str, prepared: Prepared) -> None:
    """Write a prepared data set; the file is complete or not there."""
    vocabularies, names = _distinct(prepared.tokens)
    tree = {
        "key": key,
        "features": {suffix: dict(feature.interaction) for suffix, feature in prepared.features.items()},
        "types": {name: kind.value for name, kind in prepared.types.items()},
        "sources": {name: _source_text(source) for name, source in prepared.sources.items()},
        "lengths": prepared.lengths,
        "buckets": prepared.buckets,
        "tokens": [_packed(tokens) for tokens in vocabularies],
        "token_fields": names,
        "weights": {name: torch.from_numpy(matrix) for name, matrix in prepared.weights.items()},
        "parts": prepared.parts,
    }
    write_file(path, tree)
    logger.info("the prepared data set is kept in %s", path)


def _prepared_path(tree: Mapping[str, Any]) -> Prepared:
    vocabularies = [_unpacked(*packed) for packed in tree["tokens"]]
    return Prepared(
        features={suffix: Interaction(columns) for suffix, columns in tree["features"].items()},
        types={name: FeatureType(kind) for name, kind in tree["types"].items()},
        sources={name: _source_path(source) for name, source in tree["sources"].items()},
        lengths=dict(tree["lengths"]),
        buckets=dict(tree["buckets"]),
        tokens={name: vocabularies[place] for name, place in tree["token_fields"].items()},
        weights={name: matrix.numpy() for name, matrix in tree["weights"].items()},
        parts=tree["parts"],
    )


def _distinct(tokens: Mapping[str, Any]) -> tuple[list[Any], dict[str, int]]:
    """Return the vocabularies, those that several fields share once, and which one each field has."""
    found: dict[int, int] = {}
    kept: list[Any] = []
    names = {}
    for name, array in tokens.items():
        if id(array) not in found:
            found[id(array)] = len(kept)
            kept.append(array)
        names[name] = found[id(array)]
    return kept, names


def _packed(tokens: Any) -> tuple[Tensor, Tensor]:
    """Return texts as bytes, and where each of them ends."""
    arrow = pyarrow()
    lengths = arrow.compute.binary_length(tokens).to_numpy(zero_copy_only=False)
    joined = "".join(tokens.to_pylist()).encode()
    return torch.from_numpy(np.frombuffer(bytearray(joined), np.uint8)), torch.from_numpy(
        np.cumsum(lengths, dtype=np.int64)
    )


def _unpacked(joined: Tensor, ends: Tensor) -> Any:
    arrow = pyarrow()
    offsets = np.concatenate([[0], ends.numpy()]).astype(np.int64)
    buffers = [None, arrow.py_buffer(offsets.tobytes()), arrow.py_buffer(joined.numpy().tobytes())]
    return arrow.Array.from_buffers(arrow.large_string(), len(ends), buffers).cast(arrow.string())


def _source_text(source: FeatureSource | str) -> list[str]:
    return ["source", source.value] if isinstance(source, FeatureSource) else ["suffix", source]


def _source_path(text: list[str]) -> FeatureSource | str:
    kind, value = text
    return FeatureSource(value) if kind == "source" else value
