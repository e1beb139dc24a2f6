"""A single file that is not as it was written is never loaded, and never ends in another error than our own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint.faults.damaged_runs import flips, train, truncations, wide_trainer
from tests.interrupting import assert_same_bits
from treadle.checkpoint import read_file
from treadle.errors import CheckpointError


@pytest.fixture(scope="module")
def trained() -> Any:
    """A trainer with something to save."""
    return train(None)


def save_best(trainer: Any, folder: Path) -> Path:
    trainer.save_checkpoint(folder / "best_model.pt")
    return folder / "best_model.pt"


def save_state(trainer: Any, folder: Path) -> Path:
    trainer.save_training_state(folder)
    return folder / "state.safetensors"


WRITERS = pytest.mark.parametrize("save", [save_best, save_state])


@WRITERS
def test_a_file_cut_off_at_any_page_is_refused(trained: Any, tmp_path: Path, save: Callable[[Any, Path], Path]) -> None:
    file = save(trained, tmp_path)
    for content in truncations(file.read_bytes()):
        file.write_bytes(content)
        with pytest.raises(CheckpointError, match=file.name):
            read_file(file)


@WRITERS
def test_a_flipped_bit_is_noticed_unless_it_is_in_nothing_that_counts(
    trained: Any, tmp_path: Path, save: Callable[[Any, Path], Path]
) -> None:
    file = save(trained, tmp_path)
    original = read_file(file)
    refused = tried = 0
    for content in flips(file.read_bytes(), most=500):
        file.write_bytes(content)
        tried += 1
        try:
            loaded = read_file(file)
        except CheckpointError:
            refused += 1
        else:
            # A bit of the word "crc32" itself: the file is not checked, and is right.
            assert_same_bits(loaded, original)
    assert refused > 0.98 * tried


def test_a_weight_that_changed_on_disk_is_not_loaded(trained: Any, tmp_path: Path) -> None:
    file = save_best(trained, tmp_path)
    content = bytearray(file.read_bytes())
    content[-100] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"best_model\.pt is damaged: its checksum differs"):
        wide_trainer(None).load_checkpoint(file, load_scheduler=False)


def test_a_file_that_may_not_be_read_is_named(trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = save_best(trained, tmp_path)

    def refuse(path: Path, *args: Any, **kwargs: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(CheckpointError, match=r"best_model\.pt .*Permission denied"):
        read_file(file)


def test_others_may_read_a_file_if_the_user_lets_them_read_any(trained: Any, tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    file = save_best(trained, tmp_path)
    assert file.stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_state_nested_too_deep_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors.torch import save_file

    for depth in (900, 100_000):
        metadata = {"format": "treadle-state-1", "state": '{"__kind__":"tuple","items":[' * depth + "]}" * depth}
        save_file({}, tmp_path / "deep", metadata=metadata)
        with pytest.raises(CheckpointError, match="deep is damaged"):
            read_file(tmp_path / "deep")
