"""Sources of the files of others: what a sample is, what an index is good for, and what is told of a bad record."""

import io
import multiprocessing
import os
import pickle
import signal
import tarfile
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from torch.utils.data import default_collate

from tests.data.sources.files import write_lines, write_parquet, write_tar
from treadle.data import Stream, make_loader
from treadle.data.collate import batch_reader
from treadle.data.sources import CorruptRecordError, HuggingFace, ImageFolder, JsonLines, Mixture, Parquet, TarShards
from treadle.data.sources import json_lines as module
from treadle.errors import ConfigError, DataError, MissingDependencyError


def spoil(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    assert data.count(old) == 1, data.count(old)
    path.write_bytes(data.replace(old, new))


# JSON lines -----------------------------------------------------------------------------------------------------


def test_a_line_is_a_sample_whether_it_ends_or_not_and_empty_ones_are_none(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"a": 1}\n\n{"a": 2}\r\n[3]')
    (tmp_path / "b.jsonl").write_bytes('"é"\n'.encode())
    (tmp_path / "c.jsonl").write_bytes(b"")
    source = JsonLines(tmp_path)
    assert [source[place] for place in range(len(source))] == [{"a": 1}, {"a": 2}, [3], "é"]
    assert source.__getitems__ is not None
    assert source.__getitems__([3, 0]) == ["é", {"a": 1}]


def test_lines_are_found_across_the_blocks_in_which_a_file_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK", 7)
    source = JsonLines(write_lines(tmp_path / "a.jsonl", range(40)))
    assert [source[place]["number"] for place in range(len(source))] == list(range(40))


def test_an_index_is_built_once_and_again_when_the_file_or_the_index_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_lines(tmp_path / "a.jsonl", range(20))
    built = []

    def line_index(path: Path) -> Any:
        built.append(path.name)
        return original(path)

    original = module.line_index
    monkeypatch.setattr(module, "line_index", line_index)
    before = JsonLines(path).fingerprint()
    assert len(JsonLines(path)) == 20
    assert built == ["a.jsonl"]
    index = tmp_path / ".a.jsonl.index"
    index.write_bytes(index.read_bytes()[:-3] + b"\0\1\2")
    assert JsonLines(path)[19]["number"] == 19
    index.write_bytes(b"")
    assert JsonLines(path)[19]["number"] == 19
    assert built == ["a.jsonl"] * 3
    spoil(path, b'"number": 3,', b'"number": 8,')
    os.utime(path, ns=(1, 1))
    after = JsonLines(path)
    assert after[3]["number"] == 8
    assert len(built) == 4
    assert after.fingerprint() != before


def test_an_index_that_cannot_be_kept_is_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_lines(tmp_path / "a.jsonl", range(3))
    (tmp_path / "no folder").write_text("")
    with caplog.at_level("INFO"):
        assert len(JsonLines(path, index_dir=tmp_path / "no folder")) == 3
    assert "cannot be kept as" in caplog.text
    assert "is built at every start" in caplog.text


def test_a_source_is_sent_to_another_process_without_its_index(tmp_path: Path) -> None:
    source = JsonLines(write_lines(tmp_path / "a.jsonl", range(5_000)))
    pickled = pickle.dumps(source)
    assert len(pickled) < 5_000
    assert pickle.loads(pickled)[4_321] == source[4_321]  # noqa: S301


def _killed_while_indexing(path: Path) -> None:
    from treadle.data.sources import records

    def die(place: Path, columns: Any, facts: Any) -> None:
        place.write_bytes(b"TRDLRECS half of an index")
        os.kill(os.getpid(), signal.SIGKILL)

    records._write_index = die
    JsonLines(path)


def test_a_process_that_is_killed_while_it_indexes_leaves_no_index(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", range(5))
    process = multiprocessing.get_context("fork").Process(target=_killed_while_indexing, args=(path,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert not (tmp_path / ".a.jsonl.index").exists()
    assert len(JsonLines(path)) == 5
    assert (tmp_path / ".a.jsonl.index").is_file()


def test_a_corrupt_line_is_named_or_left_out_and_counted(tmp_path: Path) -> None:
    first = write_lines(tmp_path / "a.jsonl", range(5))
    second = write_lines(tmp_path / "b.jsonl", range(5, 10))
    spoil(second, b'{"number": 7,', b'["number": 7,')
    with pytest.raises(CorruptRecordError, match=r"b\.jsonl, line 3: no JSON .*; mend the line, or pass on_corrupt"):
        JsonLines([first, second])[7]
    source = JsonLines([first, second], on_corrupt="skip")
    assert [source[place]["number"] for place in range(10)] == [0, 1, 2, 3, 4, 5, 6, 8, 8, 9]
    assert [source[7]["number"], source.skipped] == [8, 1]
    (tmp_path / "c.jsonl").write_text("{\n{\n")
    with pytest.raises(CorruptRecordError, match=r"2 records in a row are corrupt; the last: .*c\.jsonl, line 2"):
        JsonLines(tmp_path / "c.jsonl", on_corrupt="skip")[0]
    with pytest.raises(ConfigError, match="JsonLines: on_corrupt='ignore' does not exist"):
        JsonLines(first, on_corrupt="ignore")


def test_records_that_workers_skip_are_counted_once_each(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", range(24))
    for number in (3, 17):
        spoil(path, b'{"number": %d,' % number, b'["number": %d,' % number)
    source = JsonLines(path, on_corrupt="skip", transform=lambda record: record["number"])
    loader = make_loader(source, shuffle=True, batch_size=4, num_workers=2)
    stream = Stream(loader, device=torch.device("cpu"), seed=1)
    seen: list[int] = []
    for epoch in (0, 1):
        stream.begin(epoch)
        seen += [number for batch in stream.rest() for number in batch.tolist()]
    stream.close()
    expected = [number for number in range(24) if number not in (3, 17)] + [4, 18]
    assert sorted(seen) == sorted(expected * 2)
    assert source.skipped == 2


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"JsonLines: .*/nothing is not there; check the path"):
        JsonLines(tmp_path / "nothing")
    with pytest.raises(DataError, match=r"has no file that ends in \.jsonl or \.ndjson or \.json"):
        JsonLines(tmp_path)
    with pytest.raises(DataError, match=r"no file was named"):
        JsonLines([])
    (tmp_path / "a.jsonl").write_text("\n\n")
    with pytest.raises(DataError, match=r"a\.jsonl has no line; give at least one"):
        JsonLines(tmp_path / "*.jsonl")


# Parquet --------------------------------------------------------------------------------------------------------


@pytest.fixture
def table(tmp_path: Path) -> Path:
    columns = {
        "whole": pa.array(range(25), pa.int32()),
        "real": pa.array([value / 2 for value in range(25)], pa.float32()),
        "flag": pa.array([value % 2 == 0 for value in range(25)]),
        "word": pa.array([f"word {value}" for value in range(25)]),
        "fixed": pa.array([[value, value + 1] for value in range(25)], pa.list_(pa.int64(), 2)),
        "row": pa.array([[value] * 3 for value in range(25)], pa.list_(pa.float64())),
    }
    pq.write_table(pa.table(columns), tmp_path / "table.parquet", row_group_size=10)
    return tmp_path / "table.parquet"


def test_a_row_is_a_dict_of_tensors_and_words(table: Path) -> None:
    row = Parquet(table)[13]
    assert {name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in row.items()} == {
        "whole": 13,
        "real": 6.5,
        "flag": False,
        "word": "word 13",
        "fixed": [13, 14],
        "row": [13.0] * 3,
    }
    assert (row["whole"].dtype, row["real"].dtype) == (torch.int32, torch.float32)


@pytest.mark.parametrize("window", [1, 2, None])
def test_a_batch_of_a_table_is_what_collating_its_rows_gives(table: Path, window: int | None) -> None:
    source = Parquet(table, window=window)
    index = torch.tensor([24, 0, 13, 1, 24, 12, 7])
    batch = source.rows()(index)
    expected = default_collate([Parquet(table)[int(one)] for one in index])
    assert batch.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(batch[name], value) if isinstance(value, torch.Tensor) else batch[name] == value, name


def test_rows_of_unequal_lengths_and_missing_values_stay_lists(tmp_path: Path) -> None:
    values = {"ids": [[1], [2, 3], []], "maybe": [1, None, 3], "words": [["a"], [], ["b"]]}
    pq.write_table(pa.table(values), tmp_path / "a.parquet")
    source = Parquet(tmp_path / "a.parquet")
    assert [row["ids"].tolist() for row in source.read(range(3))] == values["ids"]
    assert [row["maybe"] for row in source.read(range(3))] == values["maybe"]
    assert [row["words"] for row in source.read(range(3))] == values["words"]


def test_only_the_row_groups_of_a_window_are_decoded_and_each_once_an_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Parquet(write_parquet(tmp_path / "a.parquet", range(100)), window=3)
    decoded: list[int] = []
    decode = source._decode
    monkeypatch.setattr(source, "_decode", lambda group: decoded.append(group) or decode(group))
    stream = Stream(make_loader(source, shuffle=True, batch_size=7), device=torch.device("cpu"), seed=1)
    stream.begin(0)
    assert sorted(number for batch in stream.rest() for number in batch["number"].tolist()) == list(range(100))
    assert sorted(decoded) == list(range(10))


def test_columns_are_chosen_and_must_be_there(table: Path, tmp_path: Path) -> None:
    assert list(Parquet(table, columns=["word", "whole"])[0]) == ["word", "whole"]
    with pytest.raises(ConfigError, match=r"table\.parquet has no column 'hole'; did you mean 'whole'\?; it has"):
        Parquet(table, columns=["hole"])
    write_parquet(tmp_path / "z.parquet", range(3))
    with pytest.raises(DataError, match=r"z\.parquet has the columns \['number', 'square'\], and .*table\.parquet has"):
        Parquet(tmp_path)
    (tmp_path / "no.parquet").write_bytes(b"no such thing")
    with pytest.raises(DataError, match=r"no\.parquet is no Parquet file that can be read"):
        Parquet(tmp_path / "no.parquet")
    pq.write_table(pa.table({"a": pa.array([], pa.int64())}), tmp_path / "empty.parquet")
    with pytest.raises(DataError, match=r"empty\.parquet has no row"):
        Parquet(tmp_path / "empty.parquet")


def test_a_corrupt_row_group_is_named_or_left_out_and_counted(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", range(30))
    middle = pq.ParquetFile(path).metadata.row_group(1).column(0)
    data = bytearray(path.read_bytes())
    first = middle.dictionary_page_offset or middle.data_page_offset
    data[first : first + middle.total_compressed_size] = b"\xff" * middle.total_compressed_size
    path.write_bytes(bytes(data))
    with pytest.raises(CorruptRecordError, match=r"a\.parquet, row group 1 of rows 10 to 19: cannot be read"):
        Parquet(path)[12]
    source = Parquet(path, on_corrupt="skip")
    assert batch_reader(source) is None
    assert [int(row["number"]) for row in source.read([9, 12, 15])] == [9, 20, 20]
    assert source.skipped == 2


def test_without_pyarrow_the_extra_is_named(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingDependencyError, match=r"Parquet needs pyarrow; pip install 'treadle\[data\]'"):
        Parquet(table)


# Tar shards -----------------------------------------------------------------------------------------------------


def test_members_of_a_sample_are_decoded_by_their_endings(tmp_path: Path) -> None:
    members = {"a/1.txt": b"one", "a/1.cls": b"7", "a/1.json": b"[1]", "a/1.bin": b"\1", "a/2.txt": b"two"}
    picture = io.BytesIO()
    Image.new("RGB", (4, 2), (10, 20, 30)).save(picture, "PNG")
    members["a/2.seg.png"] = picture.getvalue()
    with tarfile.open(tmp_path / "a.tar", "w") as shard:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            shard.addfile(info, io.BytesIO(data))
    source = TarShards(tmp_path / "a.tar")
    assert source[0] == {"txt": "one", "cls": 7, "json": [1], "bin": b"\1"}
    assert source[1]["seg.png"].shape == (3, 2, 4)
    assert source[1]["seg.png"][:, 0, 0].tolist() == [10, 20, 30]
    assert TarShards(tmp_path, members=["txt"])[1] == {"txt": "two"}
    assert TarShards(tmp_path, decode=False)[0]["cls"] == b"7"
    assert TarShards(tmp_path, members=["cls"], decode={"cls": lambda data: data * 2})[0] == {"cls": b"77"}
    assert TarShards(tmp_path, members=["txt"], transform=lambda sample: sample["__key__"])[1] == "a/2"


def test_a_corrupt_member_is_named_or_left_out_and_counted(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", range(1000, 1006))
    spoil(path, b"1003" + b"\0" * 60, b"what" + b"\0" * 60)
    with pytest.raises(CorruptRecordError, match=r"a\.tar, member some/01003\.cls: cannot be decoded \(ValueError"):
        TarShards(path)[3]
    source = TarShards(path, on_corrupt="skip")
    assert [source[place]["cls"] for place in range(6)] == [1000, 1001, 1002, 1004, 1004, 1005]
    assert source.skipped == 1
    with pytest.raises(CorruptRecordError, match=r"a\.tar, member some/01000: has no jpg"):
        TarShards(path, members=["cls", "jpg"])[0]
    whole = path.read_bytes()
    cut = TarShards(path)
    path.write_bytes(whole[: 512 * 3 + 40])
    with pytest.raises(CorruptRecordError, match=r"member some/01000\.npy: is cut off after 40 of 140 bytes"):
        cut[0]
    (tmp_path / "b.tar").write_bytes(b"\x1f\x8b compressed" * 100)
    with pytest.raises(DataError, match=r"b\.tar is no tar file that can be entered anywhere: .*unpacked first"):
        TarShards(tmp_path / "b.tar")


# Images, data sets of Hugging Face, mixtures ----------------------------------------------------------------------


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    for name, colour in (("cats/1.png", 10), ("cats/2.png", 20), ("dogs/more/1.png", 30)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (3, 3), colour).save(tmp_path / name)
    (tmp_path / "cats" / "notes.txt").write_text("")
    return tmp_path


def test_images_have_the_number_of_the_folder_they_are_in(pictures: Path) -> None:
    source = ImageFolder(pictures)
    assert source.classes == ["cats", "dogs"]
    assert [(image.shape, int(image[0, 0, 0]), label) for image, label in source.read(range(3))] == [
        ((3, 3, 3), 10, 0),
        ((3, 3, 3), 20, 0),
        ((3, 3, 3), 30, 1),
    ]
    assert ImageFolder(pictures, decode=len)[0][0] == (pictures / "cats" / "1.png").stat().st_size
    before = source.fingerprint()
    (pictures / "cats" / "2.png").write_bytes(b"no image")
    assert ImageFolder(pictures).fingerprint() != before
    with pytest.raises(CorruptRecordError, match=r"cats/2\.png: cannot be decoded"):
        ImageFolder(pictures)[1]
    skipping = ImageFolder(pictures, on_corrupt="skip")
    assert (int(skipping[1][0][0, 0, 0]), skipping.skipped) == (30, 1)
    with pytest.raises(DataError, match="is no folder; give the one that has a folder for each class"):
        ImageFolder(pictures / "cats" / "1.png")
    with pytest.raises(DataError, match="has no image in its folders"):
        ImageFolder(pictures, endings=[".gif"])


def test_without_pillow_the_extra_is_named(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(MissingDependencyError, match=r"decoding images needs PIL; pip install 'treadle\[images\]'"):
        ImageFolder(pictures, on_corrupt="skip")[0]


def test_a_data_set_of_hugging_face_is_drawn_by_index() -> None:
    data = datasets.Dataset.from_dict({"x": list(range(6))}).with_format("torch")
    source = HuggingFace(data)
    assert [int(row["x"]) for row in source.read([4, 2])] == [4, 2]
    assert source.fingerprint() == {"fingerprint": data._fingerprint}
    assert HuggingFace(data, transform=lambda row: int(row["x"]) + 1)[2] == 3
    with pytest.raises(DataError, match=r"is no datasets\.Dataset; it is streamed: use HuggingFaceStream"):
        HuggingFace(data.to_iterable_dataset())
    with pytest.raises(DataError, match="it is a dict of them: choose one"):
        HuggingFace(datasets.DatasetDict({"train": data}))
    with pytest.raises(DataError, match="the data set is empty"):
        HuggingFace(data.select([]))


def test_what_cannot_be_mixed_is_refused(tmp_path: Path) -> None:
    lines = JsonLines(write_lines(tmp_path / "a.jsonl", range(5)))
    for sources, weights, text in (
        ({}, None, "Mixture: no sources; give them by name"),
        ({"a": [1, 2]}, None, "Mixture: 'a' is a list, and no indexed source"),
        ({"a": lines}, {"b": 1}, r"Mixture: weights for \['b'\], and the sources are \['a'\]"),
        ({"a": lines, "b": lines}, {"a": 1, "b": 0}, "the weight of 'b'=0 must be a number above 0"),
        ({"a": lines, "b": lines}, {"a": 1, "b": 1e-9}, "'b' has 1e-09 of the weight, and a mixture is drawn in parts"),
    ):
        with pytest.raises(ConfigError, match=text):
            Mixture(sources, weights)
    with pytest.raises(ConfigError, match="Mixture: length=0 must be a whole number above 0"):
        Mixture({"a": lines}, length=0)


def test_a_mixture_in_sequence_gives_each_sample_once_and_says_that_weights_do_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sources = {name: JsonLines(write_lines(tmp_path / f"{name}.jsonl", range(3))) for name in "ab"}
    with caplog.at_level("INFO"):
        stream = Stream(make_loader(Mixture(sources), shuffle=False, batch_size=6), device=torch.device("cpu"))
        assert not caplog.text
        weighted = Mixture(sources, {"a": 1, "b": 2})
        stream = Stream(make_loader(weighted, shuffle=False, batch_size=6), device=torch.device("cpu"))
    assert "gives each sample once, source by source, whatever the weights" in caplog.text
    stream.begin(0)
    assert stream.window(1)[0]["number"].tolist() == [0, 1, 2, 0, 1, 2]


def test_a_mixture_in_a_mixture_is_a_source_like_any(tmp_path: Path) -> None:
    lines = JsonLines(write_lines(tmp_path / "a.jsonl", range(40)))
    more = JsonLines(write_lines(tmp_path / "b.jsonl", range(100, 140)))
    inner = Mixture({"a": lines, "b": more}, {"a": 1, "b": 3})
    outer = Mixture({"inner": inner, "a": lines}, {"inner": 1, "a": 1}, length=20)
    order = outer.order(1)
    order.begin(0)
    drawn = [sample["number"] for sample in outer.read(order.slice(0, 20))]
    assert len(drawn) == 20
    assert {number >= 100 for number in drawn} == {True, False}
    assert np.mean([number >= 100 for number in drawn]) < 0.75
