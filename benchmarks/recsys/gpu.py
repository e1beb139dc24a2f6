"""Recommenders on a GPU: parity first, then seconds an epoch, seconds an evaluation, and published results.

Sections, in this order: `parity` (products with the graph against torch's, recorded against ordinary steps), `gfcf`
(deterministic, known to four digits), `lightgcn` and `bpr` (an epoch on gowalla, with trainer, metrics and checkpoints
on), `evaluation` (full ranking of all test users), `ml100k` (BPR with early stopping), `sasrec` (ml-1m in the paper's
protocol) and `quality` (LightGCN as in its paper, 1,000 epochs). Each writes `<out>/recsys-<section>.json` and `.md` as
soon as it knows something. Long ones are kept in `<run-dir>`, where the same command goes on if the time was too short;
a section that is complete in `<out>` is not measured again. After `--total-s` seconds nothing more begins. The data is
looked for in the folder that TREADLE_DATA names. `--write-results` puts such files into RESULTS.md.

python -m benchmarks.recsys.gpu --out found --run-dir runs/recsys
"""

import argparse
import shutil
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

from benchmarks.execution.session import Findings, Options
from benchmarks.recsys import sasrec as recsys_sasrec
from benchmarks.recsys.checks import check_products, check_steps
from benchmarks.recsys.published import ANCHOR, GOWALLA, RESULTS, reach
from benchmarks.recsys.sections import (
    chosen_device,
    complete_section,
    parse_sections,
    read_sections,
    section_parser,
    show_section,
    where_from,
)
from benchmarks.results import write_section
from treadle import Trainer
from treadle.execution import GraphExecution
from treadle.recsys import Config, create_dataset, data_preparation, get_model, get_trainer, init_seed
from treadle.recsys.models.graph import Graph

PACKAGES = ("torch", "triton", "numpy", "pyarrow")
BARS = {"lightgcn": 0.35, "bpr": 0.10, "evaluation": 0.1}
"""The most seconds an epoch, or an evaluation, may take."""
QUALITY = {"recall@20": 0.181, "ndcg@20": 0.153}
PAPER = {"recall@20": 0.1830, "ndcg@20": 0.1554}
SETTINGS: dict[str, Any] = {
    **GOWALLA,
    "train_batch_size": 2048,
    "embedding_size": 64,
    "learning_rate": 1e-3,
    "show_progress": False,
}
LIGHTGCN = {"n_layers": 3, "reg_weight": 1e-4, "require_pow": True}
AS_IN_THE_PAPER = {"train_sampling": "users"}
"""How LightGCN's authors draw what it learns from."""
BUDGETS = {
    "parity": 90.0,
    "gfcf": 60.0,
    "lightgcn": 60.0,
    "bpr": 40.0,
    "evaluation": 40.0,
    "ml100k": 90.0,
    "sasrec": 400.0,
    "quality": 500.0,
}
"""After how many seconds a section ends."""
EVERY = 10
"""Epochs from one evaluation to the next, where epochs are timed."""


class Watch(recsys_sasrec.Watch):
    """Times epochs with all that follows them too.

    Attributes:
        whole: How long each epoch took with all that follows it: metrics, evaluation, checkpoints.
    """

    def __init__(self, findings: Findings) -> None:
        super().__init__(findings)
        self.whole: list[float] = []

    def on_train_epoch_start(self, trainer: Trainer, **kwargs: Any) -> None:
        """Take the time, which is also the end of the epoch before."""
        before = self._began
        super().on_train_epoch_start(trainer, **kwargs)
        if before:
            self.whole.append(self._began - before)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the sections that were asked for, or write what was found into RESULTS.md."""
    parsed = parse_arguments(arguments)
    if parsed.write_results:
        write_results(parsed.write_results)
        return
    device = chosen_device(parsed)
    options = Options(device, parsed.smoke, parsed.seed, parsed.out)
    ends = monotonic() + parsed.total_s
    for name in parsed.sections:
        left = ends - monotonic()
        if left < 10 or is_complete(parsed.out, name):
            print(f"--- {name}: {'complete already' if left >= 10 else 'no time left; run the same command again'}")
            continue
        findings = Findings(
            f"recsys-{name}", options, min(left, BUDGETS[name]), where_from("recsys_gpu", PACKAGES, device)
        )
        try:
            SECTIONS[name](name, findings, parsed)
            findings.data["complete"] = findings.data.get("complete") or "bar" in findings.data
        except Exception as error:
            # One section that fails must not cost the others their time.
            findings.skip(name, f"{type(error).__name__}: {error}")
        findings.save()
        show_section(options.out, findings.name, as_markdown(name, findings.data))


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = section_parser("recsys_gpu", __doc__, SECTIONS)
    parser.add_argument("--total-s", type=float, default=540.0, help="after how many seconds nothing more begins")
    parser.add_argument("--run-dir", type=Path, default=Path("runs/recsys"), help="where runs are kept")
    parser.add_argument(
        "--messages", default="fp32", help="fp32 or bf16: what LightGCN's neighbours tell each other in"
    )
    return parse_sections(parser, SECTIONS, arguments)


# Sections -----------------------------------------------------------------------------------------------------


def built(model: str, parsed: argparse.Namespace, **given: Any) -> tuple[Any, Any, Any]:
    """Return a trainer, and the loaders for training and test."""
    own: dict[str, Any] = {**LIGHTGCN, "message_precision": parsed.messages} if model == "LightGCN" else {}
    run = {"seed": parsed.seed, "precision": parsed.precision, "execution": parsed.execution}
    chosen = {**SETTINGS, **own, **run, "use_gpu": not parsed.smoke, **given}
    if parsed.smoke:
        chosen |= {"benchmark_filename": None, "inter_layout": "atomic", "embedding_size": 8, "train_batch_size": 256}
        chosen["eval_args"] = {"split": {"RS": [0.8, 0.0, 0.2]}}
    if model == "GFCF":
        chosen.pop("embedding_size")
    config = Config(model, "gowalla", config_dict=chosen)
    dataset = create_dataset(config, **({"inter": made_up()} if parsed.smoke else {}))
    train, _, test = data_preparation(config, dataset)
    init_seed(parsed.seed, True)
    return get_trainer(config, get_model(model)(config, train.dataset)), train, test


def check_parity(name: str, findings: Findings, parsed: argparse.Namespace) -> None:
    """See that all ways of calculating come to the same end."""
    trainer, train, _ = built("LightGCN", parsed, epochs=1)
    check_products(Graph.of(train.dataset), findings, trainer.device)
    check_steps(findings, parsed, made_up(), trainer.device)
    findings.data["complete"] = True


def time_epochs(name: str, findings: Findings, parsed: argparse.Namespace) -> None:
    """Time epochs of LightGCN or BPR, in a run that is evaluated and saved."""
    model = {"lightgcn": "LightGCN", "bpr": "BPR"}[name]
    epochs = parsed.epochs or (4 if parsed.smoke else 60)
    folder = parsed.run_dir / f"{name}-timed"
    shutil.rmtree(folder, ignore_errors=True)  # a run that is over would not be timed again
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
    graphs = trainer._core.this_run.execution
    findings.data |= {
        "epochs": len(watch.seconds),
        "steps": len(train),
        "train_s": statistics.median(timed),
        "epoch_s": statistics.mean(whole) if whole else None,
        "all": [round(value, 4) for value in watch.seconds],
        "fit_s": round(total, 2),
        "scores": scores,
        "recorded": graphs.reason or "recorded" if isinstance(graphs, GraphExecution) else None,
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
    trainer, train, test = built("LightGCN", parsed, epochs=epochs, run_dir=str(folder), **AS_IN_THE_PAPER)
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
        "settings": {key: trainer.config[key] for key in (*LIGHTGCN, *AS_IN_THE_PAPER, "precision", "seed")},
    }


def stop_early(name: str, findings: Findings, parsed: argparse.Namespace) -> None:
    """Train BPR on ml-100k with the defaults until it gets no better, and test it."""
    (bpr,) = (one for one in RESULTS if one.model == "BPR")
    given: dict[str, Any] = {"use_gpu": not parsed.smoke, "execution": parsed.execution}
    found = reach(bpr, seed=parsed.seed, **given, **({"epochs": 1} if parsed.smoke else {}))
    findings.data |= {"test": found["found"], "epochs": found["epochs"], "fit_s": found["seconds"], "complete": True}
    findings.data |= {"wanted": bpr.least, "published": bpr.known}
    if not parsed.smoke:
        for key, least in bpr.least.items():
            findings.check(f"BPR on ml-100k, how far {key} is below {least}", max(0.0, least - found["found"][key]), 0)


def rank_sequences(name: str, findings: Findings, parsed: argparse.Namespace) -> None:
    """Train SASRec on ml-1m in its paper's protocol, as long as there is time, and test it."""
    wanted = argparse.Namespace(**{**vars(parsed), "eval_step": None, "run_dir": parsed.run_dir / "sasrec"})
    recsys_sasrec.run_section("paper", findings, wanted)
    if not parsed.smoke:
        short = max(0.0, recsys_sasrec.BAR - findings.data["test"]["hit@10"])
        findings.check(f"SASRec on ml-1m, how far Hit@10 is below {recsys_sasrec.BAR}", short, 0)


SECTIONS: dict[str, Callable[[str, Findings, argparse.Namespace], None]] = {
    "parity": check_parity,
    "gfcf": check_anchor,
    "lightgcn": time_epochs,
    "bpr": time_epochs,
    "evaluation": time_evaluation,
    "ml100k": stop_early,
    "sasrec": rank_sequences,
    "quality": train_well,
}


def is_complete(out: Path | None, name: str) -> bool:
    """Whether a section was measured to its end before, with all checks passed."""
    data = complete_section(out, f"recsys-{name}")
    return data is not None and not data["missing"] and all(one["passed"] for one in data["checks"])


def made_up() -> dict[str, Any]:
    """Return interactions of users who like what is near."""
    rows = [(user, (user * 3 + step * step) % 90) for user in range(120) for step in range(20)]
    unique = sorted(set(rows))
    return {"user_id": [str(user) for user, _ in unique], "item_id": [str(item) for _, item in unique]}


# Reports ------------------------------------------------------------------------------------------------------


TITLES = {
    "parity": "Recommenders: parity",
    "gfcf": "GF-CF on gowalla",
    "lightgcn": "LightGCN on gowalla, seconds an epoch",
    "bpr": "BPR on gowalla, seconds an epoch",
    "evaluation": "Full ranking of all test users of gowalla",
    "ml100k": "BPR on ml-100k",
    "sasrec": "SASRec on ml-1m",
    "quality": "LightGCN on gowalla, 1,000 epochs",
}


def as_markdown(name: str, data: dict[str, Any]) -> str:
    """Return the section for RESULTS.md."""
    if name == "sasrec":
        return recsys_sasrec.as_markdown("paper", data)
    lines = [f"## {TITLES[name]}, on a GPU", "", data["facts"], ""]
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
        known = {"wanted": data.get("wanted", QUALITY), "published": data.get("published", PAPER)}
        expected = data.get("anchor") or known
        lines.append(f"Test: {data['test']}; wanted: {expected}. Settings: {data.get('settings', 'the defaults')}.")
    lines += [f"{'pass' if one['passed'] else 'FAIL'}: {one['name']}" for one in data["checks"]]
    return "\n".join(lines)


def write_results(files: Sequence[Path]) -> None:
    """Put what was found into RESULTS.md, each section into its own."""
    for name, data in read_sections(files, "recsys", SECTIONS):
        write_section(f"recsys-gpu-{name}", as_markdown(name, data))


if __name__ == "__main__":
    main()
