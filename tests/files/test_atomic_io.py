"""Writing that survives a crash."""

import os
import stat
import zlib
from pathlib import Path

import pytest

from treadle.files.atomic_io import CHUNK, checksum, replace_file, replace_text, sync_file


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_text_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    for text in ("one", "zwölf\n"):
        replace_text(tmp_path / "a" / "b.txt", text)
        assert (tmp_path / "a" / "b.txt").read_text(encoding="utf-8") == text
    assert names(tmp_path / "a") == {"b.txt"}


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path, error: BaseException) -> None:
    replace_text(tmp_path / "file", "old")

    def fail(temporary: Path) -> None:
        temporary.write_text("half")
        raise error

    with pytest.raises(type(error)):
        replace_file(tmp_path / "file", fail)
    assert (tmp_path / "file").read_text() == "old"
    assert names(tmp_path) == {"file"}


def test_a_reader_sees_the_old_file_until_the_new_one_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_text(tmp_path / "file", "old")
    seen: list[tuple[str, str]] = []
    fsync, replace = os.fsync, os.replace

    def watching_fsync(descriptor: int) -> None:
        seen.append(("fsync", (tmp_path / "file").read_text()))
        fsync(descriptor)

    def watching_replace(source: Path, target: Path) -> None:
        seen.append(("replace", (tmp_path / "file").read_text()))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", watching_fsync)
    monkeypatch.setattr(os, "replace", watching_replace)
    replace_text(tmp_path / "file", "new")
    # The data first, then the name, then the folder that holds the name.
    assert seen == [("fsync", "old"), ("replace", "old"), ("fsync", "new")]


def test_a_file_has_the_rights_that_others_in_its_folder_have(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    replace_text(tmp_path / "file", "text")
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o644


def test_files_and_folders_can_be_synced(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    sync_file(tmp_path / "file")
    sync_file(tmp_path)
    with pytest.raises(FileNotFoundError):
        sync_file(tmp_path / "missing")


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK])
def test_a_checksum_is_the_crc_of_the_whole_file(tmp_path: Path, size: int) -> None:
    content = bytes(range(256)) * (size // 256 + 1)
    (tmp_path / "file").write_bytes(content[:size])
    assert checksum(tmp_path / "file") == f"{zlib.crc32(content[:size]):08x}"


def test_a_checksum_by_hand(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"123456789")
    assert checksum(tmp_path / "file") == "cbf43926"
