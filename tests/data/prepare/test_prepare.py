"""Text becomes token bins: every kind of file, the same bytes however it was cut short, and nothing done twice."""

import gzip
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.data.prepare.conftest import WORDS, texts, write_lines
from tests.forking.children import server
from treadle.data.prepare import prepare
from treadle.data.prepare.text_files import Reading
from treadle.data.sources import PackedDocuments, TokenBin, TokenBins, write_token_bin
from treadle.errors import ConfigError, DataError

PART = 8000
"""Bytes of a part: each file of the folder `web` makes several."""


def tokens_of(text: str) -> list[int]:
    return [*(WORDS.index(word) + 2 for word in text.split()), 1]


def bins(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("part-*"))}


def run(web: Path, output: Path, tokenizer: Path, **options: Any) -> Any:
    return prepare([web], output, tokenizer=tokenizer, part_size=PART, **{"workers": 1, **options})


def test_every_text_is_a_document_in_its_place(web: Path, tmp_path: Path, tokenizer: Path) -> None:
    done = run(web, tmp_path / "tokens", tokenizer)
    expected = [tokens_of(text) for number in range(3) for text in texts(60, number)]
    found = TokenBins(tmp_path / "tokens")
    assert [document.tolist() for document in found] == expected
    assert (done.documents, done.tokens) == (180, sum(map(len, expected)))
    assert (done.dtype, done.end, done.found, done.skipped) == ("uint16", "<eos>", 0, 0)
    assert done.parts == len(list((tmp_path / "tokens").glob("*.idx"))) > 3
    found.verify()
    rows = PackedDocuments(found, 64)
    assert rows.report.tokens == done.tokens
    assert rows[0]["input_ids"].dtype == torch.int64


@pytest.mark.parametrize("part_size", [1, 17, 100, 5000])
def test_wherever_lines_are_cut_each_is_read_once(part_size: int, tmp_path: Path, tokenizer: Path) -> None:
    lines = ["word1", "word2 word3", "word4 " * 30, "word5"]
    path = write_lines(tmp_path / "a.jsonl", lines)
    prepare([path], tmp_path / "tokens", tokenizer=tokenizer, part_size=part_size, workers=1)
    assert [one.tolist() for one in TokenBins(tmp_path / "tokens")] == [tokens_of(line) for line in lines]


def write_table(path: Path, lines: list[str], rows: int = 25) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"body": lines}), path, row_group_size=rows)


def test_files_of_every_kind_give_the_same_documents(tmp_path: Path, tokenizer: Path) -> None:
    lines = texts(80)
    (tmp_path / "lines.txt").write_text("\n".join(lines) + "\n\n")
    write_table(tmp_path / "table.parquet", lines)
    plain = write_lines(tmp_path / "plain.jsonl", lines, key="body")
    (tmp_path / "packed.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes()))
    (tmp_path / "folder").mkdir()
    for number, line in enumerate(lines):
        (tmp_path / "folder" / f"{number:03}.md").write_text(line)
    reading = Reading("body", "line")
    for name in ("lines.txt", "table.parquet", "plain.jsonl", "packed.jsonl.gz", "folder", "fol*/**/*.md"):
        output = tmp_path / "tokens" / name.replace("*", "x").replace("/", "-")
        whole = Reading("body") if name.startswith("fol") else reading
        done = prepare([tmp_path / name], output, tokenizer=tokenizer, part_size=900, workers=1, reading=whole)
        assert [one.tolist() for one in TokenBins(output)] == [tokens_of(line) for line in lines], name
        assert (done.parts > 1) == (not name.endswith(".gz")), name


@pytest.mark.slow
def test_two_processes_make_the_same_bins_as_one(web: Path, tmp_path: Path, tokenizer: Path) -> None:
    told: list[tuple[int, int]] = []
    alone = run(web, tmp_path / "one", tokenizer)
    done = run(web, tmp_path / "two", tokenizer, workers=2, progress=lambda *numbers: told.append(numbers))
    assert bins(tmp_path / "one") == bins(tmp_path / "two")
    assert (done.parts, done.tokens) == (alone.parts, alone.tokens)
    size = sum(path.stat().st_size for path in web.iterdir())
    assert (told[0], sum(step for step, _ in told)) == ((0, size), size)
    assert not (tmp_path / "two" / ".parts").exists()


# Killed ------------------------------------------------------------------------------------------------------


def run_and_die(web: Path, output: Path, tokenizer: Path, operation: int) -> None:
    """Prepare, and be killed at one of the operations on the folder."""
    count = 0

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        if event in ("open", "os.rename", "os.mkdir", "os.remove") and str(arguments[0]).startswith(str(output)):
            count += 1
            if count == operation:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    run(web, output, tokenizer)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no SIGKILL")
def test_killed_at_any_operation_it_ends_with_the_same_bytes_and_does_nothing_twice(
    web: Path, tmp_path: Path, tokenizer: Path
) -> None:
    whole = run(web, tmp_path / "whole", tokenizer)
    expected = bins(tmp_path / "whole")
    output = tmp_path / "killed"
    kept: dict[Path, int] = {}
    # Each start comes a few operations further than the one before.
    for start in range(100):
        process = server.Process(target=run_and_die, args=(web, output, tokenizer, 13 + 5 * (start % 4)))
        process.start()
        process.join(60)
        complete = {path: path.stat().st_mtime_ns for path in output.glob("*.idx")}
        assert kept.items() <= complete.items(), "a bin that was complete was made again"
        kept = complete
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
    assert start > 3
    assert bins(output) == expected
    done = run(web, output, tokenizer)
    assert (done.found, done.parts, done.tokens) == (whole.parts, whole.parts, whole.tokens)


def run_with_workers(web: Path, output: Path, tokenizer: Path) -> None:
    os.setpgrp()
    run(web, output, tokenizer, workers=2)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no SIGKILL")
def test_workers_end_with_a_parent_that_is_killed(web: Path, tmp_path: Path, tokenizer: Path) -> None:
    run(web, tmp_path / "whole", tokenizer)
    output = tmp_path / "killed"
    process = server.Process(target=run_with_workers, args=(web, output, tokenizer))
    process.start()
    deadline = time.monotonic() + 60
    while not list(output.glob("*.idx")) and time.monotonic() < deadline:
        time.sleep(0.001)
    process.kill()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    kept = {path: path.stat().st_mtime_ns for path in output.glob("*.idx")}
    assert kept
    done = run(web, output, tokenizer)
    assert done.found >= len(kept)
    assert kept.items() <= {path: path.stat().st_mtime_ns for path in output.glob("*.idx")}.items()
    assert bins(output) == bins(tmp_path / "whole")


# What cannot be done -----------------------------------------------------------------------------------------


def test_a_folder_of_other_bins_is_left_alone(web: Path, tmp_path: Path, tokenizer: Path) -> None:
    output = tmp_path / "tokens"
    run(web, output, tokenizer)
    before = bins(output)
    write_lines(web / "1.jsonl", texts(60, seed=9))
    with pytest.raises(ConfigError, match=r"bins of something else: .*1.jsonl of files was \d+ bytes, .*name another"):
        run(web, output, tokenizer)
    write_lines(web / "1.jsonl", texts(60, seed=1))
    with pytest.raises(ConfigError, match="end of tokenizer was <eos>, and is None"):
        run(web, output, tokenizer, end="none")
    with pytest.raises(ConfigError, match="key of reading was text, and is body"):
        run(web, output, tokenizer, reading=Reading("body"))
    with pytest.raises(ConfigError, match="cut into other parts, by another part size"):
        prepare([web], output, tokenizer=tokenizer, part_size=PART // 2, workers=1)
    assert bins(output) == before
    (tmp_path / "foreign").mkdir()
    write_token_bin(tmp_path / "foreign" / "books", [[1, 2]])
    with pytest.raises(ConfigError, match="holds token bins that something else made"):
        run(web, tmp_path / "foreign", tokenizer)


def test_two_at_once_in_a_folder_are_refused(web: Path, tmp_path: Path, tokenizer: Path) -> None:
    output = tmp_path / "tokens"

    def again(*_: int) -> None:
        run(web, output, tokenizer)

    with pytest.raises(ConfigError, match=r"another process prepares .*tokens; wait for it, or end it"):
        run(web, output, tokenizer, progress=again)


BAD = [
    ('{"text": 5}', r"a.jsonl, line 3: it has no text under 'text', but the fields \['text'\]"),
    ('{"body": "a"}', r"line 3: it has no text under 'text', but the fields \['body'\]"),
    ("[1]", "line 3: it has no text under 'text', but a list"),
    ('{"text": "a', "line 3: it is no JSON: Unterminated string starting at, character 10; .*--skip-errors"),
]


@pytest.mark.parametrize(("line", "said"), BAD)
def test_a_record_without_text_is_told_of_by_its_line_or_skipped(
    line: str, said: str, tmp_path: Path, tokenizer: Path
) -> None:
    good = json.dumps({"text": "word1"})
    (tmp_path / "a.jsonl").write_text(f"{good}\n\n{line}\n{good}\n" + '{"text": ""}\n')
    options: dict[str, Any] = {"tokenizer": tokenizer, "part_size": 18, "workers": 1}
    with pytest.raises(DataError, match=said):
        prepare([tmp_path / "a.jsonl"], tmp_path / "tokens", **options)
    # In the same folder: what was made before the error is kept.
    done = prepare([tmp_path / "a.jsonl"], tmp_path / "tokens", reading=Reading(skip=True), **options)
    assert (done.documents, done.skipped, done.empty) == (2, 1, 1)
    assert done.found > 0


def test_an_error_in_a_worker_is_the_error_of_the_call(tmp_path: Path, tokenizer: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "word1"}\n' * 20 + "{\n")
    with pytest.raises(DataError, match=r"a.jsonl, line 21: it is no JSON"):
        prepare([tmp_path / "a.jsonl"], tmp_path / "tokens", tokenizer=tokenizer, part_size=100, workers=2)


def test_a_table_without_the_column_or_a_damaged_file_is_refused(tmp_path: Path, tokenizer: Path) -> None:
    write_table(tmp_path / "a.parquet", ["word1"])
    (tmp_path / "b.parquet").write_bytes(b"PAR1 and nothing else")
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(b'{"text": "word1"}\n' * 99)[:-20])
    (tmp_path / "d.txt").write_bytes(b"\xff\xfe")
    for name, said in (
        ("a.parquet", r"has no column 'text', but \['body'\]"),
        ("b.parquet", "is no Parquet file"),
        ("c.jsonl.gz", "is damaged"),
        ("d.txt", "d.txt, line 1: it is no UTF-8"),
    ):
        with pytest.raises(DataError, match=said):
            prepare([tmp_path / name], tmp_path / f"tokens-{name}", tokenizer=tokenizer, workers=1)


@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        ("none.jsonl", ConfigError, "there is no file, folder or match of"),
        ("a.bmp", DataError, r"a.bmp: what it holds is not known; files end in .jsonl"),
        ("empty", DataError, "the folder .*empty has no file that ends in"),
        ("blank.jsonl", DataError, "no text was found in .*blank.jsonl"),
    ],
)
def test_input_that_is_none_is_refused(name: str, error: Any, said: str, tmp_path: Path, tokenizer: Path) -> None:
    (tmp_path / "a.bmp").write_bytes(b"BM")
    (tmp_path / "empty").mkdir()
    (tmp_path / "blank.jsonl").write_text("\n\n")
    with pytest.raises(error, match=said):
        prepare([tmp_path / name], tmp_path / "tokens", tokenizer=tokenizer, workers=1)


def test_a_tokenizer_comes_from_a_local_file_or_folder(web: Path, tmp_path: Path, tokenizer: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes(tokenizer.read_bytes())
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<unk>"}}))
    assert run(web, tmp_path / "a", folder).end == "<unk>"
    assert run(web, tmp_path / "b", tokenizer, end="word3").end == "word3"
    none = run(web, tmp_path / "c", tokenizer, end="none")
    assert (none.end, none.tokens) == (None, run(web, tmp_path / "d", tokenizer).tokens - 180)
    header = TokenBin(tmp_path / "a" / "part-000000").header
    assert (header.meta["tokenizer"], header.meta["end"], header.meta["size"]) == ("model", "<unk>", 42)
    with pytest.raises(ConfigError, match=r"there is no tokenizer at gpt2; .*nothing is downloaded"):
        run(web, tmp_path / "e", Path("gpt2"))
    with pytest.raises(ConfigError, match="the tokenizer words has no token '</s>'"):
        run(web, tmp_path / "e", tokenizer, end="</s>")
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"bad.json is no tokenizer that tokenizers can read"):
        run(web, tmp_path / "e", tmp_path / "bad.json")
    endless = json.loads(tokenizer.read_text())
    del endless["model"]["vocab"]["<eos>"]
    (tmp_path / "endless.json").write_text(json.dumps(endless))
    with pytest.raises(ConfigError, match="does not say which token ends a document; name one with --end"):
        run(web, tmp_path / "e", tmp_path / "endless.json")


@pytest.mark.slow
def test_a_tokenizer_of_transformers_without_a_file_of_tokenizers_is_taken(web: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="the extra hf is not installed")
    from treadle.data.prepare.tokenizer import Tokenizer

    folder = tmp_path / "bert"
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]))
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"}))
    tool = Tokenizer(folder, "[SEP]")
    assert tool.encode(["word0 word2", "word39"]) == [[5, 7, 3], [44, 3]]
    assert (tool.size, tool.dtype, tool.decode([5, 7, 3])) == (45, "uint16", "word0 word2 [SEP]")
