"""RecBole against Treadle on the CPU: seconds of one thread for a training epoch, and for a full-ranking evaluation.

    make bench-recsys        # or, once .venv-recbole is there: python -m benchmarks.recsys.recbole --write

Both train the same model on the same data with the same batch size, each with its own defaults, in processes of their
own that take turns. ml-100k comes with RecBole; it and ml-1m are looked for in the folder that TREADLE_DATA names.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.contenders.recbole_timed import ANSWER
from benchmarks.provenance import provenance
from benchmarks.results import write_section

ROOT = Path(__file__).parents[2]
RECBOLE = ROOT / ".venv-recbole" / "bin" / "python"
CONTENDERS = ("recbole", "treadle")
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


@dataclass(frozen=True)
class Case:
    """A model on a data set, and by how much Treadle has to be faster.

    Attributes:
        model: The model.
        dataset: The data set.
        epochs: How many epochs each turn of RecBole's has, and of Treadle's.
        least: The least ratio of RecBole's seconds to Treadle's, for an epoch and for an evaluation; None for none.
        settings: Settings of both.
        recbole: Further settings of RecBole's, which it cannot do without.
        batches: After how many batches an epoch of RecBole's ends, its seconds scaled up to all; None for all of them.
        note: What a reader must know.
    """

    model: str
    dataset: str
    epochs: tuple[int, int]
    least: dict[str, float]
    settings: dict[str, Any] = field(default_factory=dict)
    recbole: dict[str, Any] = field(default_factory=dict)
    batches: int | None = None
    note: str = ""

    @property
    def name(self) -> str:
        """What it is called in tables."""
        return f"{self.model}, {self.dataset}"


PAIRS = {"load_col": {"inter": ["user_id", "item_id"]}}
SASREC_NOTE = (
    "RecBole trains the last position of every prefix (97,171 rows of 50 an epoch), Treadle, by default and as the "
    "paper does, all positions of 2,363 stretches: both learn from every interaction once an epoch. RecBole's epoch is "
    "timed over 4 of its 48 equal batches and scaled up; all of them take minutes"
)
CASES = [
    Case("BPR", "ml-100k", (10, 10), {"train": 3, "evaluate": 5}),
    Case("LightGCN", "ml-100k", (5, 5), {"train": 2, "evaluate": 5}),
    Case(
        "SASRec",
        "ml-100k",
        (1, 3),
        {"train": 10},
        recbole={"train_neg_sample_args": None},
        batches=4,
        note=SASREC_NOTE,
    ),
    Case("BPR", "ml-1m", (2, 4), {"train": 5, "evaluate": 10}, settings=PAIRS),
]


def run(command: list[str], task: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Run a contender in a process of its own, in an empty folder, and return its answer."""
    environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([*command, json.dumps(task)], cwd=folder, env=environment, capture_output=True, text=True)
    found = [line for line in done.stdout.splitlines() if line.startswith(ANSWER)]
    if done.returncode or not found:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    answer: dict[str, Any] = json.loads(found[-1].removeprefix(ANSWER))
    return answer


@contextmanager
def data_for(case: Case) -> Iterator[dict[str, Any]]:
    """Yield the settings that lead to the data of a case; ml-1m is written as an atomic file first."""
    if case.dataset != "ml-1m":
        yield {}
        return
    import pyarrow.parquet as parquet

    from treadle.data import data_folder

    pairs = parquet.read_table(data_folder("ml-1m") / "ratings_user_movie_pairs.parquet")
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "ml-1m"
        folder.mkdir()
        rows = zip(pairs.column(0).to_pylist(), pairs.column(1).to_pylist(), strict=True)
        lines = ["user_id:token\titem_id:token", *(f"{user}\t{item}" for user, item in rows)]
        (folder / "ml-1m.inter").write_text("\n".join(lines) + "\n", encoding="utf-8")
        yield {"data_path": root}


def measure(case: Case, rounds: int, recbole: Path, *, say: Any = print) -> dict[str, Any]:
    """Let both contenders take turns, and return the seconds of each."""
    seconds: dict[str, dict[str, list[float]]] = {name: {"train": [], "evaluate": []} for name in CONTENDERS}
    turns: dict[str, dict[str, list[float]]] = {name: {"train": [], "evaluate": []} for name in CONTENDERS}
    losses: dict[str, list[float]] = {}
    with data_for(case) as place, tempfile.TemporaryDirectory() as folder:
        programs = {
            "recbole": ([str(recbole), str(ROOT / "benchmarks" / "contenders" / "recbole_timed.py")], case.recbole),
            "treadle": ([sys.executable, "-m", "benchmarks.contenders.treadle_recsys"], {}),
        }
        for turn in range(rounds):
            for (name, (command, more)), epochs in zip(programs.items(), case.epochs, strict=True):
                settings = {**place, **case.settings, **more}
                task = {"model": case.model, "dataset": case.dataset, "epochs": epochs, "settings": settings}
                task |= {"batches": case.batches} if name == "recbole" else {}
                answer = run(command, task, Path(folder))
                for kind, values in answer["times"].items():
                    seconds[name][kind] += values
                    turns[name][kind].append(statistics.median(values))
                losses[name] = answer["losses"]
                middle = {kind: round(statistics.median(values), 4) for kind, values in answer["times"].items()}
                say(f"{case.name}, turn {turn + 1}: {name} {middle}", flush=True)
    return {"seconds": seconds, "turns": turns, "losses": losses}


def ratios(found: dict[str, Any], kind: str) -> tuple[float, float, float]:
    """Return how many times as long RecBole takes: by medians over all turns, and the least and most of one turn."""
    whole = [statistics.median(found["seconds"][name][kind]) for name in CONTENDERS]
    turns = zip(*(found["turns"][name][kind] for name in CONTENDERS), strict=True)
    single = [recbole / treadle for recbole, treadle in turns]
    return whole[0] / whole[1], min(single), max(single)


def table(results: dict[str, dict[str, Any]], cases: list[Case]) -> str:
    """Return the figures as a Markdown table."""
    rows = [
        "| case | what | RecBole, s | Treadle, s | times as fast | in single turns | wanted |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for case in cases:
        if case.name not in results:
            continue
        found = results[case.name]
        for kind, what in (("train", "training epoch"), ("evaluate", "evaluation")):
            own = [statistics.median(found["seconds"][name][kind]) for name in CONTENDERS]
            ratio, least, most = ratios(found, kind)
            wanted = f"{case.least[kind]:g}" if kind in case.least else ""
            figures = f"{own[0]:.3f} | {own[1]:.4f} | {ratio:.1f} | {least:.1f}-{most:.1f}"
            rows.append(f"| {case.name} | {what} | {figures} | {wanted} |")
    return "\n".join(rows)


def section(results: dict[str, dict[str, Any]], cases: list[Case], rounds: int) -> str:
    """Return the section for RESULTS.md."""
    facts = provenance("recsys", ["torch", "treadle"], rounds=rounds, RecBole="1.2.1 with the versions it needs")
    # Folders are of this machine, and of no use to whoever measures again.
    facts = re.sub(r" --(recbole|out|found)[ =][^`]*?(?=`| --)", "", facts)
    notes = [f"{case.name}: {case.note}." for case in cases if case.note and case.name in results]
    losses = [
        f"{case.name}: first loss {results[case.name]['losses']['recbole'][0]:.3f} in RecBole, "
        f"{results[case.name]['losses']['treadle'][0]:.3f} in Treadle."
        for case in cases
        if case.name in results and not case.note
    ]
    return "\n".join(
        [
            "## Recommenders on the CPU, against RecBole",
            "",
            facts,
            "",
            "Time: CPU seconds of a process with one thread, median over all epochs of all turns; in single turns: the",
            "least and the largest ratio of two processes that ran one after the other, by their medians. A training",
            "epoch has its data loading and negative sampling in it, an evaluation its metrics. Each has its default",
            "settings; checkpoints are on.",
            "",
            table(results, cases),
            "",
            *notes,
            *losses,
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="turns of each contender")
    parser.add_argument("--only", default="", help="run the cases whose name holds this text")
    parser.add_argument("--recbole", type=Path, default=RECBOLE, help="the interpreter that has RecBole")
    parser.add_argument("--out", type=Path, help="a JSON file that results are added to as they come")
    parser.add_argument("--write", action="store_true", help="write the section in RESULTS.md")
    parser.add_argument(
        "--found", type=Path, nargs="*", default=[], help="results of `--out` that need not be measured"
    )
    arguments = parser.parse_args()
    if not arguments.recbole.exists():
        parser.error(f"there is no {arguments.recbole}; run `make recbole` first")
    chosen = [case for case in CASES if arguments.only in case.name]
    results: dict[str, dict[str, Any]] = {}
    for file in arguments.found:
        results |= json.loads(file.read_text(encoding="utf-8"))
    for case in chosen:
        if case.name in results:
            continue
        results[case.name] = measure(case, arguments.rounds, arguments.recbole)
        if arguments.out is not None:
            arguments.out.write_text(json.dumps(results, indent=1), encoding="utf-8")
        print(table(results, [case]), flush=True)
    if arguments.write:
        write_section("recsys", section(results, chosen, arguments.rounds))


if __name__ == "__main__":
    main()
