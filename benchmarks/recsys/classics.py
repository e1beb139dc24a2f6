"""Strong classics on the LightGCN split of gowalla: recall@20 beside what is published, and the time of iALS.

    python -m benchmarks.recsys.classics --out classics.json --implicit PYTHON --write

Each row is written into the file of `--out` as it comes: the same command resumes with the rows that are missing, and
`--rows IALS,RP3beta` takes some. Rows that were not run are marked in RESULTS.md. The interpreter of `--implicit` has
the package of that name: an iteration of its alternating least squares, and one of iALS, take turns on one thread.
The data is looked for in the folder that TREADLE_DATA names.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from time import process_time
from typing import Any

import torch

from benchmarks.contenders.implicit_timed import ANSWER
from benchmarks.provenance import provenance
from benchmarks.recsys.published import GOWALLA, Published, reach
from benchmarks.results import write_section
from treadle.data import data_folder
from treadle.recsys import Config, create_dataset
from treadle.recsys.models.general_recommender import IALS

FACTORS, ITERATIONS, TURNS = 64, 5, 3
WITHIN = 0.99
"""What part of a published recall is enough."""
LARGE = "not tried: it inverts a matrix of 41,000 x 41,000, which needs about 20 GB"
SLOW = "not tried: an estimate of many hours on a CPU; for a GPU"


@dataclass(frozen=True)
class Row:
    """A model with its settings.

    Attributes:
        model: The model.
        settings: Settings besides the defaults.
        published: The recall@20 that was published, if any.
        note: Why it is left out unless it is asked for by its name.
    """

    model: str
    settings: dict[str, Any] = field(default_factory=dict)
    published: float | None = None
    note: str = ""

    @property
    def name(self) -> str:
        """What it is called in tables and files."""
        size = self.settings.get("embedding_size")
        return f"{self.model} ({size} factors)" if self.model == "IALS" else self.model


ULTRAGCN = {"train_neg_sample_args": {"distribution": "uniform", "sample_num": 1500}, "train_batch_size": 768_000}
SIMPLEX = {"train_neg_sample_args": {"distribution": "uniform", "sample_num": 1000}, "train_batch_size": 1_024_000}
ROWS = [
    Row("GFCF", {}, 0.1849),
    Row("ItemKNN", {"k": 100, "shrink": 20.0}),
    Row("UserKNN", {"k": 100}),
    Row("RP3beta", {"k": 100, "alpha": 0.6, "beta": 0.2}),
    Row("IALS", {"embedding_size": 64, "unobserved_weight": 0.01, "reg_weight": 0.003}),
    Row("IALS", {"embedding_size": 256, "unobserved_weight": 0.01, "reg_weight": 0.003}),
    Row("EASE", {}, 0.1765, LARGE),
    Row("LightGCN", {"n_layers": 3}, 0.1820, SLOW),
    Row("UltraGCN", ULTRAGCN | {"learning_rate": 1e-4}, 0.1862, SLOW),
    Row("SimpleX", SIMPLEX | {"learning_rate": 1e-4}, 0.1872, SLOW),
]


def least_squares_seconds() -> list[float]:
    """Return the seconds of iterations of iALS, those with the first left out, by the difference of two fits."""
    torch.set_num_threads(1)
    fixed = {**GOWALLA, "use_gpu": False, "embedding_size": FACTORS, "iterations": 1}
    config = Config("IALS", "gowalla", config_dict=fixed)
    dataset = create_dataset(config).build()[0]
    assert dataset is not None
    model = IALS(config, dataset)
    seconds = []
    for iterations in (1, 1 + ITERATIONS):
        model.iterations = iterations
        began = process_time()
        model.fit(dataset)
        seconds.append(process_time() - began)
    return [(seconds[1] - seconds[0]) / ITERATIONS]


def implicit_seconds(interpreter: Path) -> tuple[list[float], str]:
    """Return the seconds of iterations of `implicit`, and its version."""
    task = {"file": str(data_folder("gowalla") / "train.txt.gz"), "factors": FACTORS, "iterations": ITERATIONS + 1}
    program = Path(__file__).parents[1] / "contenders" / "implicit_timed.py"
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    command = [str(interpreter), str(program), json.dumps(task)]
    done = subprocess.run(command, env={**os.environ, **one_thread}, capture_output=True, text=True)
    found = [line for line in done.stdout.splitlines() if line.startswith(ANSWER)]
    if done.returncode or not found:
        raise RuntimeError(f"{interpreter} failed:\n{done.stdout[-1000:]}{done.stderr[-3000:]}")
    answer = json.loads(found[-1].removeprefix(ANSWER))
    return answer["seconds"], answer["version"]


def against_implicit(interpreter: Path) -> dict[str, Any]:
    """Let both take turns, and return the seconds of an iteration of each."""
    ours: list[float] = []
    theirs: list[float] = []
    version = ""
    for turn in range(TURNS):
        ours += least_squares_seconds()
        found, version = implicit_seconds(interpreter)
        theirs.append(statistics.median(found))
        print(f"turn {turn + 1}: iALS {ours[-1]:.3f} s, implicit {theirs[-1]:.3f} s", flush=True)
    return {"treadle": ours, "implicit": theirs, "version": version}


def table(results: dict[str, Any]) -> str:
    """Return the rows as a Markdown table."""
    lines = [
        "| model | settings | recall@20 | ndcg@20 | published | within 1% | CPU s |",
        "|---|---|--:|--:|--:|---|--:|",
    ]
    for row in ROWS:
        known = f"{row.published:.4f}" if row.published else ""
        shown = ", ".join(f"{key}: {value}" for key, value in row.settings.items() if not isinstance(value, dict))
        if row.name not in results:
            lines.append(f"| {row.name} | {shown} | not run | | {known} | {row.note or 'not run yet'} | |")
            continue
        found = results[row.name]["found"]
        recall = found["recall@20"]
        met = "" if row.published is None else "yes" if recall >= WITHIN * row.published else "**no**"
        figures = f"{recall:.4f} | {found['ndcg@20']:.4f} | {known} | {met} | {results[row.name]['seconds']:g}"
        lines.append(f"| {row.name} | {shown} | {figures} |")
    return "\n".join(lines)


def timing(found: dict[str, Any] | None) -> str:
    """Return what an iteration takes, beside `implicit`."""
    if found is None:
        return "The time of an iteration beside `implicit` was not measured."
    ours, theirs = statistics.median(found["treadle"]), statistics.median(found["implicit"])
    ratios = [one / other for one, other in zip(found["treadle"], found["implicit"], strict=True)]
    return (
        f"An iteration of iALS with {FACTORS} factors, both sides solved for by three steps of conjugate gradients, on "
        f"one thread: {ours:.3f} CPU s; of `implicit` {found['version']}, by three steps too: {theirs:.3f} CPU s. "
        f"Ratio in single turns: {min(ratios):.2f} to {max(ratios):.2f} (wanted: at most 1: "
        f"{'met' if ours <= theirs else '**not met**'})."
    )


def section(results: dict[str, Any]) -> str:
    """Return the section for RESULTS.md."""
    facts = provenance("recsys.classics", ["torch", "treadle"], turns=TURNS, load_average=f"{os.getloadavg()[0]:.0f}")
    # Folders are of this machine, and of no use to whoever measures again.
    facts = re.sub(r" --out[ =][^\s`]+", "", re.sub(r"(--implicit[ =])[^\s`]+", r"\1PYTHON", facts))
    told = (
        "The split of the LightGCN paper; all items are ranked, those of the training part left out. Settings were "
        "chosen by recall@20 on a tenth of the training part, held out at random, and the whole of it is fitted then; "
        "iALS with 256 factors has the settings of 64, GFCF its paper's. CPU s: of one thread, for fitting. "
        "Published: LightGCN, UltraGCN, SimpleX, EASE and GF-CF as collected by BARS."
    )
    head = ["## Classics on gowalla", "", facts, "", told, ""]
    return "\n".join([*head, table(results), "", timing(results.get("implicit"))])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="a JSON file that rows are added to, and taken from")
    parser.add_argument(
        "--rows", default="", help="names of models, with commas; by default all that a CPU has time for"
    )
    parser.add_argument("--implicit", type=Path, help="an interpreter that has the package implicit")
    parser.add_argument("--write", action="store_true", help="write the section in RESULTS.md")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, Any] = json.loads(arguments.out.read_text("utf-8")) if arguments.out.exists() else {}
    asked = [name for name in arguments.rows.split(",") if name]
    unknown = set(asked) - {row.model for row in ROWS}
    if unknown:
        parser.error(f"there is no row {sorted(unknown)[0]!r}; there are {sorted({row.model for row in ROWS})}")
    for row in ROWS:
        if row.name in results or (row.model not in asked if asked else row.note):
            continue
        one = Published(row.model, "gowalla", "test", {}, {}, settings={**GOWALLA, **row.settings})
        results[row.name] = reach(one, use_gpu=bool(row.note and torch.cuda.is_available()))
        arguments.out.write_text(json.dumps(results, indent=1), encoding="utf-8")
        print(row.name, results[row.name], flush=True)
    if arguments.implicit is not None and "implicit" not in results:
        results["implicit"] = against_implicit(arguments.implicit)
        arguments.out.write_text(json.dumps(results, indent=1), encoding="utf-8")
    print(table(results))
    if arguments.write:
        write_section("recsys-classics", section(results))


if __name__ == "__main__":
    main()
