"""Recommenders on gowalla, on a GPU: seconds an epoch, seconds an evaluation, and two published results.

Sections: `lightgcn` and `bpr` (an epoch, with trainer, metrics and checkpoints on), `evaluation` (full ranking of all
test users), `gfcf` (deterministic, known to four digits), `quality` (LightGCN as in its paper, 1,000 epochs; kept in
`<run-dir>`, where the same command goes on if the time was too short). Each writes `<out>/recsys-<section>.json` and
`.md` as soon as it knows something. The data is looked for in the folder that TREADLE_DATA names. `--write-results`
puts such files into RESULTS.md.

python -m benchmarks.recsys_gpu --out found --run-dir runs/gowalla
"""

import argparse
import json
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from benchmarks.execution_session import Findings, Options
from benchmarks.provenance import provenance
from benchmarks.results import write_section
from treadle import Trainer, TrainerCallback
from treadle.recsys import Config, create_dataset, data_preparation, get_model, get_trainer, init_seed

PACKAGES = ("torch", "triton", "numpy", "pyarrow")
BARS = {"lightgcn": 0.35, "bpr": 0.10, "evaluation": 0.1}
"""The most seconds an epoch, or an evaluation, may take."""
ANCHOR = {"recall@20": 0.1849, "ndcg@20": 0.1518}
QUALITY = {"recall@20": 0.181, "ndcg@20": 0.153}
PAPER = {"recall@20": 0.1830, "ndcg@20": 0.1554}
GOWALLA: dict[str, Any] = {
    "inter_layout": "lists",
    "benchmark_filename": ["train", "test"],
    "metrics": ["Recall", "NDCG"],
    "topk": [20],
    "valid_metric": "NDCG@20",
    "train_batch_size": 2048,
    "embedding_size": 64,
    "learning_rate": 1e-3,
    "show_progress": False,
}
LIGHTGCN = {"n_layers": 3, "reg_weight": 1e-4, "require_pow": True}
EVERY = 10
"""Epochs from one evaluation to the next, where epochs are timed."""


class Watch(TrainerCallback):
    """Times epochs, and asks the run to end when the time of the section is over.

    Attributes:
        seconds: How long the training of each epoch took.
        whole: How long each epoch took with all that follows it: metrics, evaluation, checkpoints.
    """

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._began = 0.0
        self.seconds: list[float] = []
        self.whole: list[float] = []

    def on_train_epoch_start(self, trainer: Trainer, **kwargs: Any) -> None:
        """Take the time, which is also the end of the epoch before."""
        now = perf_counter()
        if self._began:
            self.whole.append(now - self._began)
        self._began = now

    def on_train_epoch_end(self, trainer: Trainer, **kwargs: Any) -> None:
        """Take the time again, when the device is done."""
        if trainer.device.type == "cuda":
            torch.cuda.synchronize(trainer.device)
        self.seconds.append(perf_counter() - self._began)
        if not self._findings.has_time(self.seconds[-1]):
            trainer.request_stop("the time of the section is over; the same command goes on")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the sections that were asked for, or write what was found into RESULTS.md."""
    parsed = parse_arguments(arguments)
    if parsed.write_results:
        write_results(parsed.write_results)
        return
    device = torch.device("cuda" if torch.cuda.is_available() and not parsed.smoke else "cpu")
    options = Options(device, parsed.smoke, parsed.seed, parsed.out)
    for name in parsed.sections:
        findings = Findings(f"recsys-{name}", options, parsed.budget_s, where_from(device))
        try:
            SECTIONS[name](name, findings, parsed)
            findings.data["complete"] = findings.data.get("complete") or "bar" in findings.data
        except Exception as error:
            # One section that fails must not cost the others their time.
            findings.skip(name, f"{type(error).__name__}: {error}")
        findings.save()
        section = as_markdown(name, findings.data)
        if options.out is not None:
            (options.out / f"{findings.name}.md").write_text(section + "\n", encoding="utf-8")
        print(f"\n{section}\n", flush=True)


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recsys_gpu", description=__doc__.split("\n")[0])
    known = ", ".join(SECTIONS)
    parser.add_argument("--sections", default="gfcf,lightgcn,bpr,evaluation", help=f"some of {known}, by commas")
    parser.add_argument("--budget-s", type=float, default=120.0, help="after how many seconds a section ends")
    parser.add_argument("--out", type=Path, help="the folder for results")
    parser.add_argument("--run-dir", type=Path, default=Path("runs/gowalla"), help="where runs are kept")
    parser.add_argument("--seed", type=int, default=2020, help="of weights, batches and negatives")
    parser.add_argument("--epochs", type=int, help="another number of epochs")
    parser.add_argument("--precision", default="fp32", help="fp32, bf16 or fp16")
    parser.add_argument(
        "--messages", default="fp32", help="fp32 or bf16: what LightGCN's neighbours tell each other in"
    )
    parser.add_argument("--execution", default="auto", help="auto, eager, compile or graph")
    parser.add_argument("--smoke", action="store_true", help="made-up data on the CPU, to see that it runs")
    parser.add_argument("--write-results", type=Path, nargs="+", metavar="JSON", help="write these into RESULTS.md")
    parsed = parser.parse_args(arguments)
    parsed.sections = parsed.sections.split(",")
    unknown = sorted(set(parsed.sections) - set(SECTIONS))
    if unknown:
        parser.error(f"--sections: {unknown} are unknown; use some of {list(SECTIONS)}")
    return parsed


# Sections -----------------------------------------------------------------------------------------------------


def built(model: str, parsed: argparse.Namespace, **given: Any) -> tuple[Any, Any, Any]:
    """Return a trainer, and the loaders for training and test."""
    own: dict[str, Any] = {**LIGHTGCN, "message_precision": parsed.messages} if model == "LightGCN" else {}
    run = {"seed": parsed.seed, "precision": parsed.precision, "execution": parsed.execution}
    chosen = {**GOWALLA, **own, **run, "use_gpu": not parsed.smoke, **given}
    if parsed.smoke:
        chosen |= {"benchmark_filename": None, "inter_layout": None, "embedding_size": 8, "train_batch_size": 256}
        chosen["eval_args"] = {"split": {"RS": [0.8, 0.0, 0.2]}}
    if model == "GFCF":
        chosen.pop("embedding_size")
    config = Config(model, "gowalla", config_dict=chosen)
    dataset = create_dataset(config, **({"inter": made_up()} if parsed.smoke else {}))
    train, _, test = data_preparation(config, dataset)
    init_seed(parsed.seed, True)
    return get_trainer(config, get_model(model)(config, train.dataset)), train, test


def time_epochs(name: str, findings: Findings, parsed: argparse.Namespace) -> None:
    """Time epochs of LightGCN or BPR, in a run that is evaluated and saved."""
    model = {"lightgcn": "LightGCN", "bpr": "BPR"}[name]
    epochs = parsed.epochs or (4 if parsed.smoke else 60)
    folder = parsed.run_dir / f"{name}-timed"
    trainer, train, test = built(model, parsed, epochs=epochs, run_dir=str(folder), save_every=f"{EVERY} epochs")
    watch = Watch(findings)
    trainer.callbacks.append(watch)
    scores: list[dict[str, float]] = []

    def evaluated(epoch: int, score: Any) -> None:
        if (epoch + 1) % EVERY == 0 or epoch + 1 == epochs:
            found = trainer.evaluate(test, load_best_model=False)
            scores.append({"epoch": epoch + 1, **{key: round(value, 4) for key, value in found.exact.items()}})
            findings.say(f"epoch {epoch + 1}: {scores[-1]}")

    began = perf_counter()
    trainer.fit(train, verbose=False, callback_fn=evaluated)
    total = perf_counter() - began
    skipped = 3 if len(watch.seconds) > 6 else 1  # recording, compiling
    timed, whole = watch.seconds[skipped:], watch.whole[skipped:]
    graphs = trainer._core._graphs
    findings.data |= {
        "epochs": len(watch.seconds),
        "steps": len(train),
        "train_s": statistics.median(timed),
        "epoch_s": statistics.mean(whole) if whole else None,
        "all": [round(value, 4) for value in watch.seconds],
        "fit_s": round(total, 2),
        "scores": scores,
        "recorded": None if graphs is None else graphs.reason or "recorded",
        "bar": BARS[name],
        "value": statistics.mean(whole) if whole else statistics.median(timed),
        "settings": {key: trainer.config[key] for key in ("precision", "execution", "message_precision", "seed")},
    }


def time_evaluation(name: str, findings: Findings, parsed: argparse.Namespace) -> None:
    """Time the full ranking of all test users, metrics included, with weights that are not trained."""
    trainer, train, test = built("LightGCN", parsed, epochs=1)
    trainer.eval_collector.data_collect(train)
    seconds = []
    for _ in range(3 if parsed.smoke else 12):
        began = perf_counter()
        found = trainer.evaluate(test, load_best_model=False)  # it reads its result, so the device is done
        seconds.append(perf_counter() - began)
    findings.data |= {
        "users": trainer.eval_result.users,
        "value": statistics.median(seconds[1:]),
        "all": [round(value, 4) for value in seconds],
        "bar": BARS[name],
        "metrics": dict(found),
    }


def check_anchor(name: str, findings: Findings, parsed: argparse.Namespace) -> None:
    """Fit GF-CF, whose result on these very files is known to four digits."""
    trainer, train, test = built("GFCF", parsed)
    began = perf_counter()
    trainer.fit(train, verbose=False, saved=False)
    seconds = perf_counter() - began
    found = trainer.evaluate(test, load_best_model=False)
    findings.data |= {"test": dict(found), "fit_s": round(seconds, 2), "anchor": ANCHOR, "bar": None, "complete": True}
    if not parsed.smoke:
        for key, value in ANCHOR.items():
            findings.check(f"GF-CF {key}", abs(found[key] - value), 0.5e-4)


def train_well(name: str, findings: Findings, parsed: argparse.Namespace) -> None:
    """Train LightGCN as its paper does, as long as there is time, and test it."""
    epochs = parsed.epochs or (2 if parsed.smoke else 1000)
    folder = parsed.run_dir / "quality"
    trainer, train, test = built("LightGCN", parsed, epochs=epochs, run_dir=str(folder))
    watch = Watch(findings)
    trainer.callbacks.append(watch)

    def evaluated(epoch: int, score: Any) -> None:
        if (epoch + 1) % 50 == 0:
            found = trainer.evaluate(test, load_best_model=False)
            findings.data.setdefault("curve", []).append({"epoch": epoch + 1, **dict(found)})
            findings.say(f"epoch {epoch + 1}: {dict(found)}")
            findings.save()

    trainer.fit(train, verbose=False, callback_fn=evaluated)
    found = trainer.evaluate(test, load_best_model=False)
    done = len(trainer.train_loss_dict)
    findings.data |= {
        "test": dict(found),
        "epochs": done,
        "complete": done >= epochs,
        "train_s": statistics.median(watch.seconds) if watch.seconds else None,
        "settings": {key: trainer.config[key] for key in (*LIGHTGCN, "precision", "message_precision", "seed")},
    }


SECTIONS: dict[str, Callable[[str, Findings, argparse.Namespace], None]] = {
    "gfcf": check_anchor,
    "lightgcn": time_epochs,
    "bpr": time_epochs,
    "evaluation": time_evaluation,
    "quality": train_well,
}


def made_up() -> dict[str, Any]:
    """Return interactions of users who like what is near."""
    rows = [(user, (user * 3 + step * step) % 90) for user in range(120) for step in range(20)]
    unique = sorted(set(rows))
    return {"user_id": [str(user) for user, _ in unique], "item_id": [str(item) for _, item in unique]}


# Reports ------------------------------------------------------------------------------------------------------


def where_from(device: torch.device) -> str:
    """Return the facts of this run in Markdown."""
    facts = {"device": torch.cuda.get_device_name(), "CUDA": torch.version.cuda} if device.type == "cuda" else {}
    # Folders are of this machine, and of no use to whoever measures again.
    return re.sub(r" --(out|run-dir)[ =][^\s`]+", "", provenance("recsys_gpu", PACKAGES, **facts))


def as_markdown(name: str, data: dict[str, Any]) -> str:
    """Return the section for RESULTS.md."""
    titles = {"gfcf": "GF-CF", "lightgcn": "LightGCN, seconds an epoch", "bpr": "BPR, seconds an epoch"}
    title = {**titles, "evaluation": "full ranking of all test users", "quality": "LightGCN, 1,000 epochs"}[name]
    lines = [f"## gowalla: {title}", "", data["facts"], ""]
    if data["smoke"]:
        lines += ["A smoke test: its figures mean nothing.", ""]
    lines += [f"Missing: {one}: {reason}" for one, reason in data["missing"].items()]
    if "value" in data:
        met = "met" if data["value"] <= data["bar"] else "NOT met"
        lines += [f"**{data['value']:.4f} s**; bar {data['bar']} s: {met}.", ""]
    if "train_s" in data and data.get("train_s") is not None:
        lines.append(f"Training alone: median {data['train_s']:.4f} s an epoch over {data['epochs']} epochs.")
    if "epoch_s" in data:
        lines.append(
            f"With metrics, an evaluation and a checkpoint every {EVERY} epochs. {data['steps']} steps an epoch, "
            f"{data['recorded'] or 'line by line'}; {data['settings']}. Evaluations: {data['scores']}."
        )
    if "test" in data:
        expected = data.get("anchor") or {**QUALITY, "paper": PAPER}
        lines.append(f"Test: {data['test']}; wanted: {expected}. Settings: {data.get('settings', 'the defaults')}.")
    lines += [f"{'pass' if one['passed'] else 'FAIL'}: {one['name']}" for one in data["checks"]]
    return "\n".join(lines)


def write_results(files: Sequence[Path]) -> None:
    """Put what was found into RESULTS.md, each section into its own."""
    for file in files:
        name = file.stem.removeprefix("recsys-")
        if name not in SECTIONS:
            sys.exit(f"{file}: a section's results are called one of {[f'recsys-{one}.json' for one in SECTIONS]}")
        data = json.loads(file.read_text(encoding="utf-8"))
        if data["smoke"]:
            sys.exit(f"{file} is of a smoke test; its figures mean nothing")
        write_section(f"recsys-gowalla-{name}", as_markdown(name, data))


if __name__ == "__main__":
    main()
