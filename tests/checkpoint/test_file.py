"""A whole state in one file, which runs no code when it is read."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

from treadle.checkpoint import read_file, write_file
from treadle.errors import CheckpointError

NUMBERS = torch.arange(16.0)


@pytest.mark.parametrize("name", ["best.pt", "model.safetensors", "no_suffix", "a.b.c", "with space.bin", ".hidden"])
def test_a_state_comes_back_from_a_file_of_any_name(tmp_path: Path, name: str) -> None:
    write_file(tmp_path / name, {"weights": NUMBERS, "epoch": 3, "scores": (0.5, None)})
    tree = read_file(tmp_path / name)
    assert torch.equal(tree["weights"], NUMBERS)
    assert (tree["epoch"], tree["scores"]) == (3, (0.5, None))
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


def test_a_path_may_be_a_string_and_its_folders_are_made(tmp_path: Path) -> None:
    write_file(str(tmp_path / "deep" / "er" / "state"), [1])
    assert read_file(str(tmp_path / "deep" / "er" / "state")) == [1]


@pytest.mark.parametrize("tree", [None, 3, "text", [], {}, (), torch.zeros(())])
def test_a_state_may_be_a_single_thing(tmp_path: Path, tree: Any) -> None:
    write_file(tmp_path / "state", tree)
    got = read_file(tmp_path / "state")
    assert type(got) is type(tree)
    assert got == tree


@settings(deadline=None, derandomize=True, database=None, max_examples=20)
@given(names=st.lists(st.text(max_size=12), unique=True, max_size=5))
def test_tensors_may_have_any_name(tmp_path_factory: pytest.TempPathFactory, names: list[str]) -> None:
    path = tmp_path_factory.getbasetemp() / "names"
    tree = {name: torch.full((2,), float(place)) for place, name in enumerate(names)}
    write_file(path, tree)
    got = read_file(path)
    assert {name: value.tolist() for name, value in got.items()} == {
        name: value.tolist() for name, value in tree.items()
    }


def test_a_tensor_may_have_the_name_that_the_format_keeps_for_itself(tmp_path: Path) -> None:
    write_file(tmp_path / "state", {"__metadata__": NUMBERS})
    assert torch.equal(read_file(tmp_path / "state")["__metadata__"], NUMBERS)


@pytest.mark.parametrize(
    "dtype",
    [torch.bfloat16, torch.float16, torch.float64, torch.int8, torch.bool, torch.complex64, torch.float8_e4m3fn],
)
def test_every_type_of_number_comes_back(tmp_path: Path, dtype: torch.dtype) -> None:
    tensor = torch.tensor([0.0, 1.0, 2.0]).to(dtype)
    write_file(tmp_path / "state", {"t": tensor})
    got = read_file(tmp_path / "state")["t"]
    assert got.dtype == dtype
    assert torch.equal(got.view(torch.uint8), tensor.view(torch.uint8))


def test_tied_tensors_are_written_once_and_stay_tied(tmp_path: Path) -> None:
    model = nn.ModuleDict({"embedding": nn.Embedding(64, 64), "head": nn.Linear(64, 64, bias=False)})
    model["head"].weight = model["embedding"].weight
    write_file(tmp_path / "state", model.state_dict())
    assert (tmp_path / "state").stat().st_size < 64 * 64 * 4 * 1.5
    tree = read_file(tmp_path / "state")
    assert tree["embedding.weight"] is tree["head.weight"]


@pytest.mark.parametrize(
    "views",
    [
        {"first": NUMBERS[:4], "second": NUMBERS[4:]},
        {"first": NUMBERS[:8], "second": NUMBERS[4:12]},
        {"whole": NUMBERS, "square": NUMBERS.view(4, 4)},
        {"whole": NUMBERS, "transposed": NUMBERS.view(4, 4).T},
        {"whole": NUMBERS, "bits": NUMBERS.view(torch.int32)},
        {"strided": NUMBERS[::2], "reversed": NUMBERS.flip(0)},
        {"expanded": torch.ones(1).expand(1000)},
        {"column": NUMBERS.view(4, 4)[:, 1]},
    ],
)
def test_views_that_share_memory_are_each_written_whole(tmp_path: Path, views: dict[str, torch.Tensor]) -> None:
    write_file(tmp_path / "state", views)
    got = read_file(tmp_path / "state")
    assert all(torch.equal(got[name], view) for name, view in views.items())


def test_a_small_view_of_a_large_tensor_makes_a_small_file(tmp_path: Path) -> None:
    write_file(tmp_path / "state", {"view": torch.zeros(1_000_000)[:10]})
    assert (tmp_path / "state").stat().st_size < 1000


def test_a_conjugate_is_written_as_what_it_is(tmp_path: Path) -> None:
    tensor = torch.tensor([1 + 2j])
    write_file(tmp_path / "state", {"tensor": tensor, "conjugate": tensor.conj()})
    got = read_file(tmp_path / "state")
    assert got["conjugate"].tolist() == [1 - 2j]


def test_what_was_read_does_not_change_with_what_was_written(tmp_path: Path) -> None:
    tensor = torch.zeros(3)
    write_file(tmp_path / "state", {"t": tensor})
    got = read_file(tmp_path / "state")["t"]
    tensor.fill_(1.0)
    write_file(tmp_path / "state", {"t": tensor})
    assert got.tolist() == [0.0, 0.0, 0.0]


# Errors -------------------------------------------------------------------------------------------------------


def test_a_state_that_cannot_be_held_leaves_the_old_file_as_it_was(tmp_path: Path) -> None:
    write_file(tmp_path / "state", {"a": 1})
    with pytest.raises(CheckpointError, match="b is a set, which a checkpoint cannot hold"):
        write_file(tmp_path / "state", {"b": {1}})
    assert read_file(tmp_path / "state") == {"a": 1}
    assert len(list(tmp_path.iterdir())) == 1


def test_a_file_that_cannot_be_written_says_where_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(CheckpointError, match=r"cannot write .*folder"):
        write_file(tmp_path / "folder", {"a": torch.zeros(2)})
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match=r"cannot write .*file/state"):
        write_file(tmp_path / "file" / "state", {"a": 1})
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file", "folder"]


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none.pt", tmp_path):
        with pytest.raises(CheckpointError, match=f"there is no checkpoint file {path}"):
            read_file(path)


@pytest.mark.parametrize("content", [b"", b"short", b"\x00" * 100, b"\xff" * 100, b"\x32" + b"\x00" * 7 + b"{" * 50])
def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"bad (is damaged or no checkpoint|was written by torch\.save)"):
        read_file(tmp_path / "bad")


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.99])
def test_a_file_that_was_cut_off_is_refused(tmp_path: Path, kept: float) -> None:
    write_file(tmp_path / "state", {"t": torch.zeros(1000)})
    content = (tmp_path / "state").read_bytes()
    (tmp_path / "state").write_bytes(content[: int(len(content) * kept)])
    with pytest.raises(CheckpointError, match="state is damaged or no checkpoint"):
        read_file(tmp_path / "state")


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (None, "is a safetensors file, but holds no state of a trainer"),
        ({"format": "pt"}, "is a safetensors file, but holds no state of a trainer"),
        ({"format": "treadle-state-1"}, "is damaged: its header is no JSON"),
        ({"format": "treadle-state-1", "state": "{"}, "is damaged: its header is no JSON"),
        (
            {"format": "treadle-state-1", "state": json.dumps({"__kind__": "tensor", "name": "b"})},
            "the checkpoint is damaged: a 'tensor' entry lacks 'b'",
        ),
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, metadata: Any, message: str) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "other", metadata=metadata)
    with pytest.raises(CheckpointError, match=message):
        read_file(tmp_path / "other")


# No code is run -----------------------------------------------------------------------------------------------


class Malicious:
    """Creates a file when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return Path.touch, (self.target,)


def test_the_trap_of_the_next_test_works(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Malicious(tmp_path / "owned")))  # noqa: S301 - that is the point
    assert (tmp_path / "owned").exists()


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_a_pickle_is_never_executed(tmp_path: Path, protocol: int) -> None:
    (tmp_path / "evil.pt").write_bytes(pickle.dumps(Malicious(tmp_path / "owned"), protocol))
    with pytest.raises(CheckpointError, match=r"evil\.pt"):
        read_file(tmp_path / "evil.pt")
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_of_torch_save_is_refused_with_what_to_do_and_never_executed(tmp_path: Path, zipped: bool) -> None:
    torch.save({"a": Malicious(tmp_path / "owned")}, tmp_path / "evil.pt", _use_new_zipfile_serialization=zipped)
    with pytest.raises(CheckpointError, match=r"written by torch\.save .* could run code; .*checkpoint\.import_torch"):
        read_file(tmp_path / "evil.pt")
    assert not (tmp_path / "owned").exists()


def test_the_remedy_that_the_message_names_exists() -> None:
    import treadle
    from treadle import checkpoint

    assert callable(checkpoint.import_torch)
    assert callable(treadle.Trainer.import_checkpoint)


def test_a_pickle_inside_a_header_is_only_text(tmp_path: Path) -> None:
    text = pickle.dumps(Malicious(tmp_path / "owned"), 0).decode("latin-1")
    write_file(tmp_path / "state", {"note": text, "kind": {"__kind__": text}})
    assert read_file(tmp_path / "state") == {"note": text, "kind": {"__kind__": text}}
    assert not (tmp_path / "owned").exists()


def test_a_checkpoint_whose_first_byte_is_that_of_a_pickle_is_still_read(tmp_path: Path) -> None:
    """The file begins with the length of its header, which may have any low byte."""
    for length in range(300):
        write_file(tmp_path / "state", {"note": "x" * length})
        assert read_file(tmp_path / "state") == {"note": "x" * length}
        if (tmp_path / "state").read_bytes()[0] == 0x80:
            return
    pytest.fail("no length of header gave the byte")
