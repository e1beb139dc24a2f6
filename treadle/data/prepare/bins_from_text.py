"""Text files made into a folder of token bins: by parts, on all cores, and begun again where it was killed."""

import json
import multiprocessing
import os
import shutil
import signal
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from treadle.data.prepare.text_files import Part, Reading, cut_files, find_files, read_texts
from treadle.data.prepare.tokenizer import AUTO, Tokenizer
from treadle.data.sources.token_bins import TokenBin, TokenBinWriter, bin_paths
from treadle.errors import ConfigError, DataError, TreadleError, check_choice, require_positive
from treadle.files.atomic_io import clear_parts, replace_text
from treadle.files.file_lock import lock_file

PLAN = "prepare.json"
"""The file that says what the bins of a folder are made of."""
SCRATCH = ".parts"
TOGETHER = 256
"""How many texts are given to the tokenizer at a time."""
PART_SIZE = 64 << 20


@dataclass(frozen=True)
class Prepared:
    """What came of preparing text.

    Attributes:
        folder: The folder of the bins.
        parts: How many bins there are.
        found: How many of them an earlier call had made.
        documents: The documents in all bins.
        tokens: Their tokens, with those that end documents.
        skipped: Records without text that were left out.
        empty: Texts without a character, which were left out.
        dtype: How tokens are stored.
        end: The token behind each document; None for none.
    """

    folder: Path
    parts: int
    found: int
    documents: int
    tokens: int
    skipped: int
    empty: int
    dtype: str
    end: str | None


Told = Callable[[int, int], object]
"""Is called with how many bytes were read since the last call, and how many in all."""


def prepare(
    inputs: Sequence[str | Path],
    output: str | Path,
    *,
    tokenizer: str | Path,
    reading: Reading | None = None,
    end: str = AUTO,
    workers: int | None = None,
    part_size: int = PART_SIZE,
    progress: Told | None = None,
) -> Prepared:
    """Make token bins of text files.

    The input is cut into parts, each of which makes one bin, which has its name only when it is complete. Started again
    with the same arguments after it was killed, only bins that are not there are made; the bytes are the same.

    Args:
        inputs: Files, folders and patterns.
        output: The folder of the bins.
        tokenizer: `tokenizer.json`, or a folder with the files of a tokenizer.
        reading: How text is read; None reads the field `text`, and takes a plain text as one document.
        end: The token behind each document; "auto" is the tokenizer's own, "none" puts none.
        workers: Processes; None takes one for each core.
        part_size: The bytes of input of a bin, about.
        progress: Is told how many bytes were read, and how many there are.

    Raises:
        ConfigError: The folder holds bins of something else, or an argument cannot be meant.
        DataError: There is a record without text, or a file cannot be read.
    """
    reading, folder = reading or Reading(), Path(output)
    check_choice("document", reading.document, ("file", "line"))
    require_positive("part_size", part_size)
    require_positive("workers", 1 if workers is None else workers)
    tool = Tokenizer(tokenizer, end)
    parts = cut_files(find_files(inputs), reading, part_size)
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        clear_parts(folder)
        shutil.rmtree(folder / SCRATCH, ignore_errors=True)
        _settle_plan(folder, _plan(parts, reading, tool))
        tasks = [Task(number, part, reading, str(folder), str(tokenizer), end) for number, part in enumerate(parts)]
        left = [task for task in tasks if not _is_complete(task)]
        tell, total = progress or _tell_nobody, sum(part.size for part in parts)
        tell(total - sum(task.part.size for task in left), total)
        for read in _made(left, workers or _cores(), tool):
            tell(read, total)
        shutil.rmtree(folder / SCRATCH, ignore_errors=True)
        return _summary(folder, tasks, len(tasks) - len(left), tool)


def _tell_nobody(read: int, total: int) -> None:
    """Say nothing."""


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other calls out of a folder; a process that dies gives it back.

    Raises:
        ConfigError: Another process is at work in it.
    """
    descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            lock_file(descriptor)
        except BlockingIOError as error:
            raise ConfigError(f"another process prepares {folder}; wait for it, or end it") from error
        yield
    finally:
        os.close(descriptor)


# What is to be done


def _plan(parts: Sequence[Part], reading: Reading, tool: Tokenizer) -> dict[str, Any]:
    """Return all that the bytes of the bins follow from, in plain data."""
    names = sorted({name for part in parts for name in part.files})
    return {
        "tokenizer": {"name": tool.name, "checksum": tool.checksum, "end": tool.end, "size": tool.size},
        # Not whether errors are skipped: where there was one, no bin was made.
        "reading": {"key": reading.key, "document": reading.document},
        "files": {name: _mark(Path(name)) for name in names},
        "parts": [[*part.files[:1], len(part.files), part.begin, part.end] for part in parts],
    }


def _mark(path: Path) -> str:
    """Return what a file is known by: its size, and the checksum of its beginning and its end."""
    size, block = path.stat().st_size, 1 << 16
    with path.open("rb") as file:
        value = zlib.crc32(file.read(block))
        file.seek(max(0, size - block))
        value = zlib.crc32(file.read(block), value)
    return f"{size} bytes, {value:08x}"


def _settle_plan(folder: Path, plan: dict[str, Any]) -> None:
    """Write the plan, or compare it with the one that is there.

    Raises:
        ConfigError: They differ, or there are bins without a plan.
    """
    path = folder / PLAN
    if not path.exists():
        if any(folder.glob("*.idx")):
            raise ConfigError(f"{folder} holds token bins that something else made; name another folder")
        replace_text(path, json.dumps(plan, indent=1) + "\n")
        return
    try:
        there = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} is damaged: {error}; remove the folder, or name another one") from error
    if there == plan:
        return
    raise ConfigError(
        f"{folder} holds bins of something else: {_difference(there, plan)}; name another folder, or remove this one"
    )


def _difference(there: dict[str, Any], plan: dict[str, Any]) -> str:
    """Return the first thing in which two plans differ."""
    for section in ("tokenizer", "reading", "files"):
        one, other = there.get(section, {}), plan[section]
        for name in sorted({*one, *other}):
            if one.get(name) != other.get(name):
                return f"{name} of {section} was {one.get(name, 'not there')}, and is {other.get(name, 'not there')}"
    return "the input is cut into other parts, by another part size"


@dataclass(frozen=True)
class Task:
    """What a worker is told: one part, and how it becomes a bin.

    Attributes:
        number: The number of the part.
        part: The part.
        reading: How text is read.
        folder: The folder of the bins.
        tokenizer: Where the tokenizer is.
        end: The token behind documents, as it was asked for.
    """

    number: int
    part: Part
    reading: Reading
    folder: str
    tokenizer: str
    end: str

    @property
    def name(self) -> str:
        """What the bin is called; names sort as parts do."""
        return f"part-{self.number:06d}"


def _is_complete(task: Task) -> bool:
    tokens, index = bin_paths(Path(task.folder) / task.name)
    if not index.exists():
        return False
    try:
        TokenBin(tokens)
    except DataError:
        # Cut short by something else than this program: it is made again.
        return False
    return True


# Doing it


def make_bin(task: Task, tool: Tokenizer) -> Iterator[int]:
    """Make the bin of a part, and yield how many bytes were read since the last time."""
    # A place of its own: a worker that outlives its parent by a moment is in nobody's way.
    scratch = Path(task.folder) / SCRATCH / f"{task.name}-{os.getpid()}"
    counts = {"skipped": 0, "empty": 0}
    meta: dict[str, Any] = {"tokenizer": tool.name, "tokenizer_checksum": tool.checksum, "end": tool.end}
    meta |= {"files": len(task.part.files), "first_file": task.part.files[0]}
    meta |= {"begin": task.part.begin, "size": tool.size, "counts": counts}
    writer = TokenBinWriter(scratch / task.name, dtype=tool.dtype, meta=meta)
    # The header is written when the block ends, with what was counted till then.
    with writer:
        texts = read_texts(task.part, task.reading)
        while block := list(islice(texts, TOGETHER)):
            counts["skipped"] += sum(text is None for text, _ in block)
            counts["empty"] += sum(text == "" for text, _ in block)
            for tokens in tool.encode([text for text, _ in block if text]):
                writer.add(tokens)
            yield sum(size for _, size in block)
    for made, place in zip(bin_paths(scratch / task.name), bin_paths(Path(task.folder) / task.name), strict=True):
        # The tokens first: with its index a bin is complete.
        os.replace(made, place)


def _made(tasks: Sequence[Task], workers: int, tool: Tokenizer) -> Iterator[int]:
    """Make all bins, and yield how many bytes were read."""
    if workers == 1 or len(tasks) < 2:
        for task in tasks:
            yield from make_bin(task, tool)
        return
    with ExitStack() as stack:
        pool = [Worker(stack) for _ in range(min(workers, len(tasks)))]
        waiting = list(reversed(tasks))
        for worker in pool:
            worker.connection.send(waiting.pop())
        busy = {worker.connection: worker for worker in pool}
        while busy:
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                yield from _hear(ready, busy, waiting)


def _hear(ready: Connection, busy: dict[Any, "Worker"], waiting: list[Task]) -> Iterator[int]:
    """Take what a worker says: how much it read, that its bin is there, or what went wrong."""
    try:
        said = ready.recv()
    except EOFError:
        raise DataError(
            f"a worker ended with status {busy[ready].status()}, perhaps for want of memory; start the same command "
            "again, with fewer --workers: what is there is kept"
        ) from None
    if isinstance(said, int):
        yield said
    elif said is not None:
        kind, text = said
        raise {"ConfigError": ConfigError, "DataError": DataError}.get(kind, TreadleError)(text)
    elif waiting:
        ready.send(waiting.pop())
    else:
        del busy[ready]


class Worker:
    """A process that makes bins, one after the other; it ends with the block, and with its parent.

    Args:
        stack: Has it ended.
    """

    def __init__(self, stack: ExitStack) -> None:
        methods = multiprocessing.get_all_start_methods()
        context: Any = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
        if context.get_start_method() == "forkserver":
            context.set_forkserver_preload([__name__])
        self.connection, other = context.Pipe()
        self._process = context.Process(target=work, args=(other,), daemon=True)
        self._process.start()
        other.close()
        stack.callback(self.close)

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.join()
        self.connection.close()

    def status(self) -> int | None:
        """Return what it ended with."""
        self._process.join(5)
        code: int | None = self._process.exitcode
        return code


def work(connection: Any) -> None:
    """Make the bins that the parent asks for, in a process of their own."""
    # A terminal sends Ctrl-C to all; the parent ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_leave_with, args=(parent.sentinel,), daemon=True).start()
    # Every process has a core of its own.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tools: dict[tuple[str, str], Tokenizer] = {}
    while True:
        task = connection.recv()
        try:
            tool = tools.setdefault((task.tokenizer, task.end), _tool(tools, task))
            for read in make_bin(task, tool):
                connection.send(read)
        except TreadleError as error:
            connection.send((type(error).__name__, str(error)))
        else:
            connection.send(None)


def _tool(tools: dict[tuple[str, str], Tokenizer], task: Task) -> Tokenizer:
    return tools.get((task.tokenizer, task.end)) or Tokenizer(task.tokenizer, task.end)


def _leave_with(sentinel: Any) -> None:
    wait([sentinel])
    os._exit(0)


def _summary(folder: Path, tasks: Sequence[Task], found: int, tool: Tokenizer) -> Prepared:
    headers = [TokenBin(folder / task.name).header for task in tasks]
    documents, tokens = (sum(getattr(one, name) for one in headers) for name in ("documents", "tokens"))
    if not tokens:
        raise DataError(f"no text was found in {tasks[0].part.files[0]} and the other files; check --key and the files")
    skipped, empty = (sum(one.meta["counts"][name] for one in headers) for name in ("skipped", "empty"))
    return Prepared(folder, len(tasks), found, documents, tokens, skipped, empty, tool.dtype, tool.end)
