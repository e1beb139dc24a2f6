"""How fast sources are from files to ready batches, against those who read the same files, on one thread of the CPU.

Run by `python -m benchmarks.loop.sources`, with the packages of `make peers`. Every contender draws shuffled epochs of
the same samples, collated into batches, with no workers, and must give each sample exactly once. Contenders take
turns in a new random order each round, and a ratio is to the best of the others in its own round.
"""

import argparse
import gc
import io
import os
import random
import sys
import tarfile
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from benchmarks.provenance import provenance
from benchmarks.results import write_section
from treadle.data import Stream, make_loader
from treadle.data.sources import Parquet, TarShards, TokenBins, write_token_bin
from treadle.data.sources.orders import PermutedOrder

BATCH = 64
WINDOW = 1024
"""Tokens of a sample."""
TOKENS_BAR, RATIO_BAR, SEEK_BAR = 5e6, 0.9, 100.0
FEATURES = 16
GROUP = 5_000
"""Rows of a row group."""
NOTES = """\
Work: draw one shuffled epoch, batch after batch, and do nothing with it; 1 torch thread, no workers, files that were
read before and so lie in the page cache. Time: CPU time of the process. Ratio: samples per second to those of the best
of the others in the same round. Treadle's batches come through its `Stream`, as a trainer draws them: counted, in an
order that can be entered at any place. The others shuffle as they do by themselves: by row group or shard, and through
a buffer of 1000."""

Draw = Callable[[int], Iterable[Any]]


def main() -> None:
    """Measure, print the tables, write the section."""
    options = parse_options()
    os.environ.update(CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with suppress(ImportError):
        import pyarrow

        pyarrow.set_cpu_count(1)
    with tempfile.TemporaryDirectory() as folder:
        tables = [*tables_of(Path(folder), options), seeks()]
    facts = provenance(
        "loop.sources",
        ("torch", "treadle", "numpy", "pyarrow", "datasets", "webdataset", "litdata"),
        rounds=f"{options.rounds}, after one",
        samples=f"{options.tokens:,} tokens in windows of {WINDOW:,}; {options.rows:,} rows and {options.rows // 4:,} "
        f"samples in tar files; batches of {BATCH}",
    )
    section = "\n\n".join(["## Sources", facts, NOTES, *tables])
    print(section)
    if options.no_write:
        print("RESULTS.md left as it is (--no-write).")
    else:
        write_section("sources", section)


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loop.sources", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="timed epochs, after one that is discarded")
    parser.add_argument("--tokens", type=int, default=50_000_000, help="tokens of the bins")
    parser.add_argument("--rows", type=int, default=100_000, help="rows of the Parquet files")
    parser.add_argument("--seed", type=int, default=0, help="of the order of turns")
    parser.add_argument("--no-write", action="store_true", help="print, but leave RESULTS.md as it is")
    options = parser.parse_args()
    if options.rounds < 2 or options.rows < 4 * GROUP:
        parser.error(f"--rounds {options.rounds} --rows {options.rows}: needs 2 rounds and {4 * GROUP} rows at least")
    return options


# Files ------------------------------------------------------------------------------------------------------


def write_tokens(folder: Path, count: int) -> None:
    """Write bins of random tokens."""
    generator = np.random.default_rng(0)
    for part in range(4):
        documents = (generator.integers(0, 50_000, 1_000) for _ in range(count // 4_000))
        write_token_bin(folder / f"part-{part}", documents)


def write_parquet(folder: Path, rows: int) -> None:
    """Write four files of numbers and vectors."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    for part in range(4):
        numbers = np.arange(part * rows // 4, (part + 1) * rows // 4)
        features = np.random.default_rng(part).normal(size=(len(numbers), FEATURES)).astype(np.float32)
        listed = pa.FixedSizeListArray.from_arrays(pa.array(features.ravel()), FEATURES)
        table = pa.table({"number": numbers, "weight": numbers / 7, "features": listed})
        pq.write_table(table, folder / f"part-{part}.parquet", row_group_size=GROUP)


def write_tar(folder: Path, samples: int) -> None:
    """Write four shards of vectors and their numbers."""
    folder.mkdir()
    for part in range(4):
        with tarfile.open(folder / f"part-{part}.tar", "w") as shard:
            for number in range(part * samples // 4, (part + 1) * samples // 4):
                file = io.BytesIO()
                np.save(file, np.full(256, number, dtype=np.float32))
                for ending, data in (("cls", str(number).encode()), ("npy", file.getvalue())):
                    member = tarfile.TarInfo(f"{number:08}.{ending}")
                    member.size = len(data)
                    shard.addfile(member, io.BytesIO(data))


# Contenders -------------------------------------------------------------------------------------------------


def by_treadle(source: Any) -> Draw:
    """Draw from a stream, as a trainer does."""
    stream = Stream(make_loader(source, shuffle=True, batch_size=BATCH), device=torch.device("cpu"), seed=1)

    def draw(epoch: int) -> Iterator[Any]:
        stream.begin(epoch)
        while stream.has_next():
            yield from stream.window(1)

    return draw


def by_memmap(folder: Path) -> Draw:
    """Draw windows of mapped files as hand-written programs do: one tensor for each, stacked."""
    maps = [np.memmap(path, dtype=np.uint16, mode="r") for path in sorted(folder.glob("*.bin"))]
    places = [(data, start) for data in maps for start in range(0, len(data) - WINDOW, WINDOW)]

    def draw(epoch: int) -> Iterator[Any]:
        order = torch.randperm(len(places), generator=torch.Generator().manual_seed(epoch)).tolist()
        for first in range(0, len(order), BATCH):
            rows = [places[place] for place in order[first : first + BATCH]]
            yield [
                torch.stack([torch.from_numpy(data[at + i : at + i + WINDOW].astype(np.int64)) for data, at in rows])
                for i in (0, 1)
            ]

    return draw


class RowGroups(IterableDataset[Any]):
    """What a hand-written program with pyarrow does: shuffled row groups, their rows shuffled, cut into batches."""

    def __init__(self, folder: Path) -> None:
        import pyarrow.parquet as pq

        self.files = [pq.ParquetFile(path) for path in sorted(folder.glob("*.parquet"))]
        self.epoch = 0

    def __iter__(self) -> Iterator[Any]:
        chance = np.random.default_rng(self.epoch)
        groups = [(file, group) for file in self.files for group in range(file.metadata.num_row_groups)]
        left: dict[str, torch.Tensor] | None = None
        for place in chance.permutation(len(groups)):
            file, group = groups[place]
            table = file.read_row_group(group, use_threads=False)
            order = torch.from_numpy(chance.permutation(table.num_rows))
            features = table.column("features").combine_chunks().flatten().to_numpy().reshape(-1, FEATURES)
            columns = {
                "number": torch.from_numpy(table.column("number").to_numpy())[order],
                "weight": torch.from_numpy(table.column("weight").to_numpy())[order],
                "features": torch.from_numpy(features)[order],
            }
            if left is not None:
                columns = {name: torch.cat([left[name], values]) for name, values in columns.items()}
            whole = len(order) + (0 if left is None else len(left["number"]))
            whole -= whole % BATCH
            for first in range(0, whole, BATCH):
                yield {name: values[first : first + BATCH] for name, values in columns.items()}
            left = {name: values[whole:] for name, values in columns.items()}
        if left is not None and len(left["number"]):
            yield left


def by_row_groups(folder: Path) -> Draw:
    """Draw from torch's loader over row groups."""
    data = RowGroups(folder)
    loader = DataLoader(data, batch_size=None)

    def draw(epoch: int) -> Iterable[Any]:
        data.epoch = epoch
        return loader

    return draw


class Rows(torch.utils.data.Dataset[Any]):
    """A table that is read whole, row by row."""

    def __init__(self, folder: Path) -> None:
        import pyarrow.parquet as pq

        self.table = pq.read_table(folder)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return list(self.table.take(indices).to_pylist())


def by_table(folder: Path) -> Draw:
    """Draw from torch's shuffling loader over a table in memory."""

    def collate(rows: list[Any]) -> Any:
        return {name: torch.tensor([row[name] for row in rows]) for name in rows[0]}

    loader = DataLoader(Rows(folder), batch_size=BATCH, shuffle=True, collate_fn=collate)  # type: ignore[arg-type]
    return lambda epoch: loader


def by_datasets(folder: Path) -> Draw:
    """Draw from a stream of Hugging Face's `datasets`, shuffled through a buffer."""
    import datasets

    files = sorted(map(str, folder.glob("*.parquet")))
    stream = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
    shuffled = stream.shuffle(seed=1, buffer_size=1000).with_format("torch")
    loader: Any = DataLoader(shuffled, batch_size=BATCH)

    def draw(epoch: int) -> Iterable[Any]:
        shuffled.set_epoch(epoch)
        return loader

    return draw


def by_litdata(folder: Path) -> Draw:
    """Draw from litdata's own format, into which the table was written before."""
    import litdata
    import pyarrow.parquet as pq
    from litdata.streaming.writer import BinaryWriter

    made = folder.parent / "litdata"
    if not made.exists():
        made.mkdir()
        writer = BinaryWriter(str(made), chunk_bytes="4MB")
        table = pq.read_table(folder)
        columns = [table.column("number").to_numpy(), table.column("weight").to_numpy()]
        features = table.column("features").combine_chunks().flatten().to_numpy().reshape(-1, FEATURES)
        for number, (one, other) in enumerate(zip(*columns, strict=True)):
            sample = {"number": int(one), "weight": float(other), "features": torch.from_numpy(features[number].copy())}
            writer[number] = sample
        writer.done()
        writer.merge()
    data = litdata.StreamingDataset(str(made), shuffle=True, seed=1)
    loader = litdata.StreamingDataLoader(data, batch_size=BATCH, num_workers=0)
    return lambda epoch: loader


def by_webdataset(folder: Path) -> Draw:
    """Draw from webdataset, shuffled by shard and through a buffer."""
    import webdataset

    shards = sorted(map(str, folder.glob("*.tar")))

    def draw(epoch: int) -> Iterable[Any]:
        data = webdataset.WebDataset(shards, shardshuffle=len(shards), seed=epoch)
        return data.shuffle(1000).decode().to_tuple("npy", "cls").batched(BATCH)

    return draw


def by_tarfile(folder: Path) -> Draw:
    """Draw from torch's loader over tar files that are read from their start, as hand-written programs do."""
    data = TarFiles(folder)
    loader = DataLoader(data, batch_size=BATCH)

    def draw(epoch: int) -> Iterable[Any]:
        data.epoch = epoch
        return loader

    return draw


class TarFiles(IterableDataset[Any]):
    """Samples of tar files, shuffled through a buffer."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.glob("*.tar"))
        self.epoch = 0

    def __iter__(self) -> Iterator[Any]:
        chance = random.Random(self.epoch)
        buffer: list[Any] = []
        for path in chance.sample(self.paths, len(self.paths)):
            with tarfile.open(path, "r|") as shard:
                data: dict[str, bytes] = {}
                for member in shard:
                    file = shard.extractfile(member)
                    assert file is not None
                    data[member.name.rpartition(".")[2]] = file.read()
                    if len(data) < 2:
                        continue
                    buffer.append((np.load(io.BytesIO(data["npy"])), int(data["cls"])))
                    data = {}
                    if len(buffer) > 1000:
                        place = chance.randrange(len(buffer))
                        buffer[place], buffer[-1] = buffer[-1], buffer[place]
                        yield buffer.pop()
        chance.shuffle(buffer)
        yield from buffer


# Measuring --------------------------------------------------------------------------------------------------


def numbers_of(batch: Any) -> list[int]:
    """Return what the samples of a batch are known by."""
    if isinstance(batch, dict):
        return torch.as_tensor(batch["number" if "number" in batch else "cls"]).tolist()  # type: ignore[no-any-return]
    last = batch[1]
    return torch.as_tensor(np.asarray(last)).tolist()  # type: ignore[no-any-return]


def tables_of(folder: Path, options: argparse.Namespace) -> Iterator[str]:
    """Write the files, and measure each kind of them."""
    tokens, tables, shards = folder / "tokens", folder / "tables", folder / "shards"
    tokens.mkdir()
    write_tokens(tokens, options.tokens)
    bins = TokenBins(tokens, WINDOW)
    sides = {"Treadle, `TokenBins`": by_treadle(bins), "hand-written, `np.memmap`": by_memmap(tokens)}
    yield table_of("Token bins", sides, len(bins), options, unit=WINDOW)
    write_parquet(tables, options.rows)
    made = {"DataLoader + pyarrow, row groups": by_row_groups, "DataLoader + pyarrow, a table in memory": by_table}
    made |= {"`datasets`, streamed": by_datasets, "litdata, its own format": by_litdata}
    sides = {"Treadle, `Parquet`": by_treadle(Parquet(tables)), **opened(made, tables)}
    yield table_of("Parquet", sides, options.rows, options)
    write_tar(shards, options.rows // 4)
    made = {"webdataset": by_webdataset, "DataLoader + tarfile": by_tarfile}
    sides = {"Treadle, `TarShards`": by_treadle(TarShards(shards)), **opened(made, shards)}
    yield table_of("Tar shards", sides, options.rows // 4, options)


def opened(made: dict[str, Callable[[Path], Draw]], folder: Path) -> dict[str, Draw]:
    """Return the contenders whose packages are installed."""
    found = {}
    for name, make in made.items():
        try:
            found[name] = make(folder)
        except ImportError as error:
            print(f"{name}: left out, {error}", file=sys.stderr)
    return found


def table_of(title: str, sides: dict[str, Draw], samples: int, options: argparse.Namespace, unit: int = 1) -> str:
    """Let the sides take their turns, and return their table."""
    for name, draw in sides.items():
        require_every_sample(title, name, draw(0), samples, known=unit == 1)
    order = random.Random(options.seed)
    rounds = []
    for number in range(1, options.rounds + 1):
        turns = order.sample(list(sides), len(sides))
        rounds.append({name: measure(sides[name], number) for name in turns})
        print(f"{title}: round {number} of {options.rounds}", file=sys.stderr)
    ours = next(iter(sides))
    lines = [
        f"### {title}\n",
        f"| contender | {'million tokens' if unit > 1 else 'samples'} a second | ratio to the best other | IQR | bar |",
        "|---|--:|--:|--:|---|",
    ]
    for name in sides:
        rate = median(samples * unit / times[name] for times in rounds)
        shown = f"{rate / 1e6:.1f}" if unit > 1 else f"{rate:,.0f}"
        against = compared(ours, rounds, rate if unit > 1 else None) if name == ours else " |  | "
        lines.append(f"| {name} | {shown} | {against} |")
    return "\n".join(lines)


def compared(ours: str, rounds: list[dict[str, float]], tokens: float | None) -> str:
    """Return the ratio to the best of the others, its spread and whether the bar is met."""
    ratios = [min(taken for name, taken in times.items() if name != ours) / times[ours] for times in rounds]
    low, _, high = quantiles(ratios, n=4, method="inclusive")
    met = median(ratios) >= RATIO_BAR if tokens is None else tokens >= TOKENS_BAR
    bar = f"{RATIO_BAR}" if tokens is None else f"{TOKENS_BAR / 1e6:.0f} million tokens/s"
    return f"{median(ratios):.2f} | {low:.2f}-{high:.2f} | {bar} {'met' if met else '**missed**'}"


def require_every_sample(title: str, name: str, batches: Iterable[Any], samples: int, *, known: bool) -> None:
    """End the benchmark if a side leaves samples out: its time would mean nothing."""
    if known:
        seen = sorted(number for batch in batches for number in numbers_of(batch))
        whole = seen == list(range(samples))
    else:
        whole = sum(len(batch[0]) for batch in batches) == samples
    if not whole:
        sys.exit(f"{title}, {name}: an epoch is not every sample once; nothing was written")


def measure(draw: Draw, epoch: int) -> float:
    """Return the CPU seconds of one epoch."""
    gc.collect()
    began_at = process_time()
    for _ in draw(epoch):
        pass
    return process_time() - began_at


class Billions:
    """A source of three billion samples, which are their indices."""

    def __init__(self) -> None:
        from treadle.data.sources import IndexedSource

        class Counting(IndexedSource):
            def __len__(self) -> int:
                return 3 * 10**9

            def read_one(self, index: int) -> int:
                return index

        self.source = Counting()


def seeks() -> str:
    """Measure how long the first batch takes from sample 10^9 on."""
    times = []
    for _ in range(5):
        source = Billions().source
        began_at = perf_counter()
        stream = Stream(make_loader(source, shuffle=True, batch_size=BATCH), device=torch.device("cpu"), seed=1)
        stream.begin(0, drawn=10**9 // BATCH)
        batch = stream.window(1)[0]
        times.append(1000 * (perf_counter() - began_at))
        order = PermutedOrder(3 * 10**9, stream.sampler.order.seed)  # type: ignore[union-attr]
        order.begin(0)
        first = 10**9 // BATCH * BATCH
        assert batch.tolist() == order.slice(first, first + BATCH)
    low, _, high = quantiles(times, n=4, method="inclusive")
    met = "met" if median(times) < SEEK_BAR else "**missed**"
    return (
        "### Seeking\n\nFrom making the stream to the first batch, shuffled, at sample 1,000,000,000 of 3,000,000,000: "
        f"{median(times):.0f} ms (IQR {low:.0f}-{high:.0f}); bar: {SEEK_BAR:.0f} ms, {met}."
    )


if __name__ == "__main__":
    main()
