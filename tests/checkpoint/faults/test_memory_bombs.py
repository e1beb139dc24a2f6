"""A file that says it holds more than its bytes can hold is refused before memory is taken for it."""

import io
import pickle
import random
import resource
import struct
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.interrupting import make_trainer
from treadle.checkpoint import CheckpointStore, Policy, import_torch, read_file
from treadle.checkpoint.format.safe_unpickler import read_torch_file
from treadle.checkpoint.importers.systems import read_foreign
from treadle.errors import CheckpointError

LARGE = 2**40
READERS: list[Callable[[Path], Any]] = [
    import_torch,
    read_foreign,
    read_torch_file,
    read_file,
    lambda path: make_trainer(None).import_checkpoint(path),
    lambda path: make_trainer(None).load_checkpoint(path),
]


@contextmanager
def little_memory(more: int = 2**30) -> Iterator[None]:
    """Let the system refuse more memory than a little."""
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def expanded(path: Path) -> None:
    torch.save({"weight": torch.zeros(1).expand(2**17, 2**17)}, path)


def expanded_long_ago(path: Path) -> None:
    torch.save({"weight": torch.zeros(1).expand(2**17, 2**17)}, path, _use_new_zipfile_serialization=False)


def many_views(path: Path) -> None:
    base = torch.zeros(2**16)
    torch.save({f"weight{number}": base[1:].expand(64, -1) for number in range(2**9)}, path)


def larger_storage(path: Path) -> None:
    """The form of before 1.6, which says before its tensors how large they are."""
    torch.save({"weight": torch.zeros(77_777)}, path, _use_new_zipfile_serialization=False)
    content = path.read_bytes()
    count = struct.pack("<i", 77_777)
    assert content.count(b"J" + count) >= 2
    path.write_bytes(content.replace(b"J" + count, b"J" + struct.pack("<i", 2**31 - 1))[:500])


def deflated(path: Path) -> None:
    whole = io.BytesIO()
    torch.save({"weight": torch.zeros(2**25)}, whole)
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as target:
        for name in source.namelist():
            target.writestr(name, source.read(name))


def lying(path: Path) -> None:
    """The end of the archive says that an entry is much larger than it is."""
    torch.save({"weight": torch.zeros(4)}, path)
    content = path.read_bytes()
    place = content.rindex(b"/data/0")
    start = content.rindex(b"PK\x01\x02", 0, place)
    path.write_bytes(content[: start + 24] + struct.pack("<I", 2**32 - 2) + content[start + 28 :])


def overlapping(path: Path) -> None:
    """Thousands of entries that are one and the same."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({}, protocol=2))
        archive.writestr("archive/data/0", bytes(2**20))
        info = archive.getinfo("archive/data/0")
        archive.filelist += [info] * 4000


BOMBS = [expanded, expanded_long_ago, many_views, larger_storage, deflated, lying, overlapping]


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_file_that_says_it_holds_more_than_it_can_is_refused_and_takes_no_memory(
    tmp_path: Path, bomb: Callable[[Path], None]
) -> None:
    path = tmp_path / "weights.pt"
    bomb(path)
    for reader in READERS:
        with little_memory(), pytest.raises(CheckpointError) as caught:
            reader(path)
        assert str(path) in str(caught.value)


def test_the_same_over_and_over_is_not_written_out(tmp_path: Path) -> None:
    nested: list[Any] = []
    for _ in range(60):
        nested = [nested, nested]
    torch.save({"weight": torch.zeros(2), "hyperparameters": nested}, tmp_path / "weights.pt")
    with pytest.raises(CheckpointError, match="or the same over and over: written out it would be more than a file of"):
        read_foreign(tmp_path / "weights.pt")


def test_what_people_do_save_is_read_all_the_same(tmp_path: Path) -> None:
    base = torch.arange(12.0)
    weights = {"part": base[2:5], "turned": base.view(3, 4).t(), "wide": torch.ones(1).expand(1000, 100)}
    for number, form in enumerate((True, False)):
        torch.save(weights, tmp_path / f"{number}.pt", _use_new_zipfile_serialization=form)
        found = read_foreign(tmp_path / f"{number}.pt").weights
        for name, value in weights.items():
            assert torch.equal(found[name], value)


def test_pieces_that_are_said_to_be_of_something_huge_are_refused(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, Policy())
    piece = {"__kind__": "piece", "name": "a", "shape": [LARGE, 2], "offset": [0, 0]}
    structure = {"a": piece, "sharded": True, "processes": 1}
    store.write(1, structure, {"a": torch.zeros(2, 2)}, {}, "attempt")
    with little_memory(), pytest.raises(CheckpointError, match="lacks a part of a, at"):
        store.read(1, rank=0)


@pytest.mark.parametrize("form", [True, False], ids=["now", "before 1.6"])
def test_a_file_of_torch_that_was_cut_or_changed_is_an_error_of_ours(tmp_path: Path, form: bool) -> None:
    path, chance = tmp_path / "weights.pt", random.Random(0)
    state = {"model_state_dict": {"weight": torch.arange(64.0)}, "epoch": 3, "names": ["a", "b"], "rate": 0.1}
    torch.save(state, path, _use_new_zipfile_serialization=form)
    content = path.read_bytes()
    damaged = [content[: chance.randrange(len(content))] for _ in range(40)]
    for _ in range(120):
        other = bytearray(content)
        other[chance.randrange(len(content))] = chance.randrange(256)
        damaged.append(bytes(other))
    refused = 0
    for data in damaged:
        path.write_bytes(data)
        for reader in (import_torch, read_foreign, read_torch_file):
            try:
                reader(path)
            except CheckpointError as error:
                refused += str(path) in str(error)
    assert refused > 100


@pytest.mark.parametrize("reader", [import_torch, read_foreign, read_torch_file])
def test_numbers_that_changed_in_a_file_of_torch_are_not_imported(
    tmp_path: Path, reader: Callable[[Path], Any]
) -> None:
    path, weight = tmp_path / "weights.pt", torch.arange(1.0, 65.0)
    torch.save({"weight": weight}, path)
    content = path.read_bytes()
    place = content.index(weight.numpy().tobytes())
    path.write_bytes(content[: place + 7] + bytes([content[place + 7] ^ 1]) + content[place + 8 :])
    with pytest.raises(CheckpointError, match=r"damaged.*Bad CRC-32"):
        reader(path)


def test_a_file_of_torch_without_checksums_is_imported(tmp_path: Path) -> None:
    path, computes = tmp_path / "weights.pt", torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"weight": torch.arange(4.0)}, path)
    finally:
        torch.serialization.set_crc32_options(computes)
    assert torch.equal(import_torch(path)["weight"], torch.arange(4.0))
