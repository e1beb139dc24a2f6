"""Recommenders in mixed precision that RecBole cannot train so: the metric after the same epochs in fp32, bf16, fp16.

    python -m benchmarks.recsys.precision --out found --jobs 8

Models with products of sparse matrices (NGCF, DMF, GCMC, LightGCN, NCL, SGL, SpectralCF, KGAT) and with large losses
(Caser, CDAE, DIEN), on ml-100k with three seeds each. fp16 needs a GPU; without one only fp32 and bf16 are trained.
Each result is written to `<out>/recsys-precision.json` as it comes, and the same command trains what is missing there.
`--write-results` puts that file into RESULTS.md.
"""

import argparse
import json
import multiprocessing
import statistics
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from benchmarks.recsys.sections import where_from
from benchmarks.results import write_section
from treadle.recsys import Config
from treadle.recsys.quick_start import build

PRECISIONS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {"enable_amp": True},
    "fp16": {"enable_amp": True, "enable_scaler": True},
}
RANKED: dict[str, Any] = {"metrics": ["Recall", "NDCG"], "topk": [10], "valid_metric": "NDCG@10"}
CLICKS: dict[str, Any] = {
    "threshold": {"rating": 4},
    "load_col": {"inter": ["user_id", "item_id", "rating", "timestamp"], "item": ["item_id", "class"]},
    "eval_args": {"split": {"LS": "valid_and_test"}, "order": "TO", "mode": "labeled"},
    "metrics": ["AUC", "LogLoss"],
    "valid_metric": "AUC",
}
MODELS: dict[str, tuple[int, dict[str, Any]]] = {
    "NGCF": (20, RANKED),
    "DMF": (30, RANKED),
    "GCMC": (20, RANKED),
    "LightGCN": (30, RANKED),
    "NCL": (30, RANKED),
    "SGL": (20, RANKED),
    "SpectralCF": (20, RANKED),
    "KGAT": (40, RANKED),
    "Caser": (20, {**RANKED, "MAX_ITEM_LIST_LENGTH": 10}),
    "CDAE": (30, RANKED),
    "DIEN": (2, CLICKS),
}
"""Each model's epochs and settings."""
SEEDS = (2020, 2021, 2022)
BAR = 0.01
PACKAGES = ("torch", "numpy", "pyarrow")


def train(model: str, seed: int, precision: str, given: dict[str, Any]) -> dict[str, Any]:
    """Train a model for its epochs, and return the metrics of the test split."""
    epochs, settings = MODELS[model]
    began = monotonic()
    with tempfile.TemporaryDirectory() as folder:
        fixed = {"seed": seed, "epochs": epochs, "stopping_step": epochs, "eval_step": 0, "show_progress": False}
        chosen = {**settings, **fixed, "checkpoint_dir": folder, **PRECISIONS[precision], **given}
        trainer, _, rows, _, test = build(Config(model, "ml-100k", config_dict=chosen))
        trainer.fit(rows, None, verbose=False, saved=False)
        found = trainer.evaluate(test, load_best_model=False)
    first = settings["valid_metric"].lower()
    return {
        "model": model,
        "seed": seed,
        "precision": precision,
        "metric": first,
        "value": float(found.exact[first]),
        "epochs": len(trainer.train_loss_dict),
        "seconds": round(monotonic() - began, 1),
    }


def wanted(names: Iterable[str], precisions: Iterable[str], done: list[dict[str, Any]]) -> list[tuple[str, int, str]]:
    """Return what is still to be trained."""
    trained = {(one["model"], one["seed"], one["precision"]) for one in done if "value" in one}
    every = [(name, seed, precision) for name in names for seed in SEEDS for precision in precisions]
    return [one for one in every if one not in trained]


def run(parsed: argparse.Namespace) -> dict[str, Any]:
    """Train all that is missing, some at a time, and return the results."""
    place = parsed.out / "recsys-precision.json"
    parsed.out.mkdir(parents=True, exist_ok=True)
    kept: dict[str, Any] = json.loads(place.read_text("utf-8")) if place.exists() else {"results": []}
    on_gpu = torch.cuda.is_available()
    kept["facts"] = where_from("recsys_precision", PACKAGES, torch.device("cuda" if on_gpu else "cpu"))
    given: dict[str, Any] = {"use_gpu": on_gpu, **({"epochs": parsed.epochs} if parsed.epochs else {})}
    precisions = [one for one in PRECISIONS if on_gpu or one != "fp16"]
    ends = monotonic() + parsed.seconds
    with ProcessPoolExecutor(parsed.jobs, multiprocessing.get_context("spawn")) as pool:
        left = wanted(parsed.models, precisions, kept["results"])
        running = {pool.submit(train, *one, given): one for one in left}
        for future in as_completed(running):
            name, seed, precision = running[future]
            try:
                result = future.result()
            except Exception as error:
                # One model that fails must not cost the others their results.
                problem = f"{type(error).__name__}: {error}"
                result = {"model": name, "seed": seed, "precision": precision, "problem": problem}
            print(result, flush=True)
            kept["results"].append(result)
            place.write_text(json.dumps(kept, indent=1), encoding="utf-8")
            if monotonic() > ends:
                pool.shutdown(wait=False, cancel_futures=True)
                break
    return kept


def row(model: str, results: list[dict[str, Any]]) -> str | None:
    """Return the line of a model, or None while something of it is missing."""
    values = {
        precision: [one["value"] for one in results if one["precision"] == precision and "value" in one]
        for precision in PRECISIONS
    }
    if any(len(found) < len(SEEDS) for found in values.values()):
        return None
    exact = statistics.mean(values["fp32"])
    spread = statistics.stdev(values["fp32"]) / exact
    cells = [f"{exact:.4f} (± {spread:.1%})"]
    away = []
    for precision in ("bf16", "fp16"):
        mean = statistics.mean(values[precision])
        away.append(mean / exact - 1)
        cells.append(f"{mean:.4f} ({away[-1]:+.2%})")
    metric = next(one["metric"] for one in results if "metric" in one)
    verdict = "yes" if min(away) >= -BAR else "**no**"
    return f"| {model} | {metric} | {MODELS[model][0]} | {' | '.join(cells)} | {verdict} |"


def section(kept: dict[str, Any]) -> str:
    """Return the section for RESULTS.md."""
    told = (
        f"ml-100k, the mean of seeds {', '.join(map(str, SEEDS))} on the test split after the same epochs; in brackets "
        "fp32's own spread over the seeds (standard deviation over mean), and how far the others' mean is from fp32's. "
        f"Wanted: not more than {BAR:.0%} below. DIEN: clicks are ratings of 4 and more."
    )
    lines = ["| model | metric | epochs | fp32 | bf16 | fp16 | met |", "|---|---|--:|--:|--:|--:|---|"]
    missing = []
    for model in MODELS:
        found = row(model, [one for one in kept["results"] if one["model"] == model])
        if found:
            lines.append(found)
        else:
            missing.append(model)
    if missing:
        lines += ["", f"Not measured: {', '.join(missing)}."]
    return "\n".join(["## Recommenders in mixed precision", "", kept["facts"], "", told, "", *lines])


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, or write what was found into RESULTS.md."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recsys.precision", description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS), help=f"some of {', '.join(MODELS)}, by commas")
    parser.add_argument("--jobs", type=int, default=8, help="how many trainings at a time")
    parser.add_argument("--seconds", type=float, default=540.0, help="after how many seconds nothing more begins")
    parser.add_argument("--epochs", type=int, help="another number of epochs, to see that it runs")
    parser.add_argument("--out", type=Path, default=Path("found"), help="the folder for results")
    parser.add_argument("--write-results", type=Path, metavar="JSON", help="write this file into RESULTS.md")
    parsed = parser.parse_args(arguments)
    if parsed.write_results:
        write_section("recsys-precision", section(json.loads(parsed.write_results.read_text("utf-8"))))
        return
    parsed.models = parsed.models.split(",")
    unknown = sorted(set(parsed.models) - set(MODELS))
    if unknown:
        parser.error(f"--models: {unknown} are unknown; use some of {list(MODELS)}")
    print(section(run(parsed)))


if __name__ == "__main__":
    main()
