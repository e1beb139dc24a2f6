"""A server of recommendations under load: `python -m benchmarks.recsys.serving`.

A million items with vectors of 64 numbers around some centres, as those of trained models are. Measured are the queries
of the index (seconds, and the share of the exact best items that it finds), requests over HTTP at a rate that does not
wait for answers, memory, and how soon a server that was killed under load answers again. Server and client have a core
each, where there are two. Bars: index p99 at most 5 ms with recall at least 0.99; HTTP p99 at most 20 ms at 500
requests a second for 60 seconds, nothing lost; ready again in 10 seconds.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from treadle.recsys.data.sampling.user_items import UserItems
from treadle.recsys.data.tables.id_map import PADDING, Vocabulary
from treadle.recsys.serve.answers import Answers, Similarities
from treadle.recsys.serve.fold_in import FoldedVectors
from treadle.recsys.serve.index import IndexedRecommender, VectorIndex
from treadle.recsys.serve.queries import Catalogue
from treadle.recsys.serve.server.process import serve

SIZE, CENTRES, USERS, K = 64, 2000, 10_000, 10
VECTORS = "vectors.pth"


def clustered(number: int, seed: int) -> Tensor:
    """Return vectors around some centres, whose lengths differ as those of popular and other items do."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(CENTRES, SIZE, generator=generator)
    generator.manual_seed(seed)
    owner = torch.randint(CENTRES, (number,), generator=generator)
    vectors = centres[owner] + 0.5 * torch.randn(number, SIZE, generator=generator)
    return vectors * (0.5 + torch.rand(number, 1, generator=generator))


class Vectors(Answers):
    """A recommender that is nothing but vectors."""

    def __init__(self, items: Tensor, users: Tensor) -> None:
        cpu = torch.device("cpu")
        tokens = [
            Vocabulary(name, pa.array([PADDING, *(f"{name[0]}{one}" for one in range(1, len(of)))]))
            for name, of in (("user_id", users), ("item_id", items))
        ]
        super().__init__(*tokens, Catalogue(tokens[1], None, {}, {}, {}, cpu), repeatable=True, device=cpu)
        self.folded = FoldedVectors(items, "dot", 1e-3, 1.0, 1.0)
        self._users = users
        none = torch.empty(0, dtype=torch.int64)
        self._known = UserItems(none, none, num_users=len(users), num_items=len(items))

    def user_vectors(self) -> Tensor:
        return self._users

    @property
    def known(self) -> UserItems:
        return self._known

    @property
    def popularity(self) -> Tensor:
        return torch.zeros(len(self.items))

    def looking(self) -> AbstractContextManager[None]:
        return torch.no_grad()

    def can_score(self, users: Tensor) -> Tensor:
        return users > 0

    def score_users(self, users: Tensor) -> Tensor:
        return self._users[users] @ self.folded.items.T

    def score_histories(self, histories: Sequence[Tensor], users: Tensor) -> Tensor:
        return self.folded.scores(histories, users)

    def similarities(self) -> Similarities:
        return lambda ids: self.folded.items[ids] @ self.folded.items.T


def load(place: Path) -> IndexedRecommender:
    """Return the recommender of a folder, with the index that is kept there."""
    saved = torch.load(place, weights_only=True)
    vectors = Vectors(saved["items"], saved["users"])
    kept = place.with_suffix(".index")
    if kept.is_file():
        return IndexedRecommender(vectors, VectorIndex.load(kept, vectors.folded.items, float(saved["recall"])))
    return IndexedRecommender(vectors)


def prepare(folder: Path, number: int) -> dict[str, float]:
    """Write vectors and their index; return what the index does."""
    items, users = clustered(number + 1, 1), clustered(USERS + 1, 2)
    began = time.perf_counter()
    made = VectorIndex.build(items, users[1:])
    built = time.perf_counter() - began
    made.save(folder / "vectors.index")
    torch.save({"items": items, "users": users, "recall": torch.tensor(made.recall)}, folder / VECTORS)
    torch.set_num_threads(1)
    fresh = clustered(1000, 3)
    seconds, found = [], 0
    for query in fresh:
        began = time.perf_counter()
        ids = made.search(query.unsqueeze(0), K)
        seconds.append(time.perf_counter() - began)
        best = (items[1:] @ query).topk(K).indices + 1
        found += len(set(ids[0].tolist()) & set(best.tolist()))
    return {
        "items": number,
        "seconds to build": round(built, 1),
        "lists looked into": made.probes,
        f"recall of {K}": found / (K * len(fresh)),
        "index p50 ms": 1000 * float(np.quantile(seconds, 0.5)),
        "index p99 ms": 1000 * float(np.quantile(seconds, 0.99)),
    }


def start(folder: Path) -> tuple["subprocess.Popen[str]", int]:
    """Start a server in a process of its own; return it when it listens, and its port."""
    command = [sys.executable, "-m", "benchmarks.recsys.serving", "--server", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, int(process.stdout.readline().split(":")[2].split()[0])


def resident(process: "subprocess.Popen[str]") -> float:
    """Return the memory of a process, in MiB."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


class Load:
    """Requests at a rate, over connections that are kept; each is sent when it is due, whatever came of the others."""

    def __init__(self, port: int, rate: float, seconds: float) -> None:
        self._port, self._rate, self._seconds = port, rate, seconds
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self.latencies: list[float] = []
        self.lost = 0

    async def run(self) -> None:
        began, number = time.perf_counter(), int(self._rate * self._seconds)
        tasks = []
        for place in range(number):
            due = began + place / self._rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.append(asyncio.create_task(self._ask(due)))
        await asyncio.gather(*tasks)

    async def _ask(self, due: float) -> None:
        try:
            if not self._free:
                self._free.append(await asyncio.open_connection("127.0.0.1", self._port))
            reader, writer = self._free.pop()
            if random.random() < 0.5:
                body = json.dumps({"user": f"u{random.randint(1, USERS)}", "k": K})
            else:
                body = json.dumps({"history": [f"i{random.randint(1, 1000)}" for _ in range(10)], "k": K})
            head = f"POST /recommend HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
            writer.write(f"{head}Content-Type: application/json\r\n\r\n{body}".encode())
            answer = await reader.readuntil(b"\r\n\r\n")
            length = int(answer.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            if not answer.startswith(b"HTTP/1.1 200"):
                self.lost += 1
                return
            self.latencies.append(time.perf_counter() - due)
            self._free.append((reader, writer))
        except (OSError, asyncio.IncompleteReadError):
            self.lost += 1


def measure(folder: Path, rate: float, seconds: float) -> dict[str, float]:
    """Put a server under load, kill it, and start it again."""
    process, port = start(folder)
    try:
        asyncio.run(Load(port, rate, 3).run())  # what the first requests allocate is no leak
        before = resident(process)
        load_ = Load(port, rate, seconds)
        asyncio.run(load_.run())
        after = resident(process)
        process.kill()
        process.wait()
        began = time.perf_counter()
        process, port = start(folder)
        asyncio.run(Load(port, 1, 1).run())
        ready = time.perf_counter() - began
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
    return {
        "requests a second": rate,
        "requests": len(load_.latencies),
        "lost": load_.lost,
        "HTTP p50 ms": 1000 * float(np.quantile(load_.latencies, 0.5)),
        "HTTP p99 ms": 1000 * float(np.quantile(load_.latencies, 0.99)),
        "memory before MiB": before,
        "memory after MiB": after,
        "seconds to be ready again": ready,
    }


def main() -> None:
    """Measure, or be the server that is measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--rate", type=float, default=500.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--server", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if given.server is not None:
        # The client that started it has the last core, and has passed that on.
        os.sched_setaffinity(0, [0])
        torch.set_num_threads(1)
        serve(given.server / VECTORS, load=load, announce=lambda line: print(line, flush=True))
        return
    with tempfile.TemporaryDirectory() as folder:
        found: dict[str, Any] = prepare(Path(folder), given.items)
        os.sched_setaffinity(0, cores[-1:])
        found |= measure(Path(folder), given.rate, given.seconds)
    for name, value in found.items():
        print(f"{name:28} {value:,.3f}" if isinstance(value, float) else f"{name:28} {value:,}")


if __name__ == "__main__":
    main()
