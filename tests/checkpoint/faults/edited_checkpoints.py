"""Checkpoints that somebody edited, with every checksum right again."""

import copy
import json
import random
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

JUNK: list[Any] = [
    None,
    True,
    -1,
    0,
    3.5,
    10**30,
    "",
    "x",
    "9" * 40,
    [],
    {},
    [1, [2]],
    {"a": 1},
    {"__kind__": "tensor", "name": "nothing"},
    {"__kind__": "float", "value": "nan"},
    {"__kind__": "tuple", "items": 3},
    {"__kind__": "dict", "items": [[[1], 2]]},
    {"__kind__": "piece", "name": None, "shape": [1 << 40], "offset": [0]},
    {"__kind__": "new"},
]


def place_in(tree: Any, chance: random.Random) -> tuple[Any, ...]:
    """Return the way to a value in a tree of JSON; each entry on the way is as likely as its neighbours."""
    way: list[Any] = []
    while isinstance(tree, (dict, list)) and tree and (not way or chance.random() < 0.8):
        way.append(chance.choice(sorted(tree) if isinstance(tree, dict) else range(len(tree))))
        tree = tree[way[-1]]
    return tuple(way)


def edited(tree: Any, chance: random.Random) -> tuple[Any, str]:
    """Return a tree of JSON with one change, and what that is."""
    tree = copy.deepcopy(tree)
    *way, key = place_in(tree, chance)
    holder = tree
    for step in way:
        holder = holder[step]
    kind = chance.choice(["drop", "junk", "junk", "swap", "repeat"])
    what = f"{kind} {'.'.join(map(str, (*way, key)))}"
    if kind == "drop":
        del holder[key]
    elif kind == "junk":
        holder[key] = chance.choice(JUNK)
        what += f" = {holder[key]!r}"
    elif kind == "swap" and isinstance(holder, dict):
        other = chance.choice(sorted(holder))
        holder[key], holder[other] = holder[other], holder[key]
        what += f" with {other}"
    else:
        holder.update({f"{key}2": holder[key]}) if isinstance(holder, dict) else holder.append(holder[key])
    return tree, what


def edited_tensors(tensors: dict[str, torch.Tensor], chance: random.Random) -> tuple[dict[str, torch.Tensor], str]:
    """Return tensors of which one is missing, of another form or under another name, and what was done."""
    tensors = dict(tensors)
    name = chance.choice(sorted(tensors))
    tensor = tensors[name]
    kind = chance.choice(["drop", "half", "double", "flat", "scalar", "longer", "rename", "another"])
    if kind == "drop":
        del tensors[name]
    elif kind == "rename":
        tensors[f"{name}x"] = tensors.pop(name)
    elif kind == "another":
        tensors["another"] = torch.zeros(3)
    else:
        tensors[name] = {
            "half": lambda: tensor.to(torch.float16),
            "double": lambda: tensor.to(torch.float64),
            "flat": lambda: tensor.reshape(-1),
            "scalar": lambda: tensor.reshape(-1)[:1].reshape(()).clone() if tensor.numel() else tensor,
            "longer": lambda: torch.cat([tensor.reshape(1, -1)] * 2),
        }[kind]().contiguous()
    return tensors, f"{kind} {name}"


def declare(folder: Path, manifest: dict[str, Any]) -> None:
    """Write a manifest that says of every file that it is as it should be."""
    manifest = {key: value for key, value in manifest.items() if key != "crc32"}
    if isinstance(manifest.get("files"), dict):
        for name, entry in manifest["files"].items():
            if isinstance(entry, dict) and (folder / name).is_file():
                content = (folder / name).read_bytes()
                entry.update(size=len(content), crc32=f"{zlib.crc32(content):08x}")
    seal = zlib.crc32(json.dumps(manifest, sort_keys=True).encode())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "crc32": f"{seal:08x}"}))


def edit(folder: Path, chance: random.Random) -> str:
    """Change one thing in a checkpoint and make its checksums right; return what was changed."""
    manifest = json.loads((folder / "manifest.json").read_text())
    way: Callable[[], str] = chance.choice(
        [lambda: _edit_structure(folder, chance)] * 3 + [lambda: _edit_tensors(folder, chance)] * 2
    )
    if chance.random() < 0.25:
        manifest, what = edited({key: value for key, value in manifest.items() if key != "crc32"}, chance)
        what = f"manifest: {what}"
    else:
        what = way()
    declare(folder, manifest)
    return what


def _edit_structure(folder: Path, chance: random.Random) -> str:
    path = folder / "rank_0.json"
    tree, what = edited(json.loads(path.read_text()), chance)
    path.write_text(json.dumps(tree))
    return f"structure: {what}"


def _edit_tensors(folder: Path, chance: random.Random) -> str:
    path = folder / "rank_0.safetensors"
    tensors, what = edited_tensors(load_file(path), chance)
    save_file(tensors, path)
    return f"tensors: {what}"
