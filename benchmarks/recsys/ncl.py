"""NCL beside LightGCN on gowalla, after the same number of epochs, with the same sizes, batches and learning rate.

Sections: `ncl` and `lightgcn`. Each writes `<out>/ncl-<section>.json`, and is kept in `<run-dir>/<section>`, where the
same command goes on if the time was too short; a section that is complete in `<out>` is not run again. What both come
to is written to `<out>/ncl.md`. The data is looked for in the folder that TREADLE_DATA names, which has to hold
`gowalla`. `--write-results` puts the files of both into RESULTS.md.

python -m benchmarks.recsys.ncl --out found --seconds 540
"""

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from benchmarks.execution.session import Findings, Options
from benchmarks.recsys.gpu import made_up
from benchmarks.recsys.published import GOWALLA
from benchmarks.recsys.sasrec import Watch
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
from treadle.recsys import Config, create_dataset, data_preparation, get_model, get_trainer, init_seed

METRICS = ("recall@20", "ndcg@20")
PACKAGES = ("torch", "triton", "numpy", "pyarrow")
EPOCHS, EVERY = 120, 20
"""How many epochs each has, and how many lie between two evaluations."""
BOTH: dict[str, Any] = {
    **GOWALLA,
    "train_batch_size": 4096,
    "embedding_size": 64,
    "learning_rate": 2e-3,
    "n_layers": 3,
    "reg_weight": 1e-4,
    "require_pow": True,
    "show_progress": False,
}
"""Batch and learning rate are those of NCL's authors for this set."""
SECTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "ncl": (
        "NCL",
        {
            "ssl_temp": 0.05,
            "ssl_reg": 1e-6,
            "alpha": 0.5,
            "proto_reg": 5e-8,
            "num_clusters": 10,
            "warm_up_step": 20,
        },
    ),
    "lightgcn": ("LightGCN", {}),
}
"""Models, and the settings that NCL's authors have for this set."""
SMOKE = {
    "benchmark_filename": None,
    "inter_layout": "atomic",
    "embedding_size": 8,
    "train_batch_size": 256,
    "eval_args": {"split": {"RS": [0.8, 0.0, 0.2]}},
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Train what was asked for, or write what was found into RESULTS.md."""
    parsed = parse_arguments(arguments)
    if parsed.write_results:
        write_results(parsed.write_results)
        return
    device = chosen_device(parsed)
    options = Options(device, parsed.smoke, parsed.seed, parsed.out)
    ends = monotonic() + parsed.seconds
    found: dict[str, dict[str, Any]] = {}
    for name in parsed.sections:
        left = ends - monotonic()
        known = complete_section(parsed.out, f"ncl-{name}")
        if known is not None or left < 10:
            print(f"--- {name}: {'complete already' if known else 'no time left; run the same command again'}")
            found |= {} if known is None else {name: known}
            continue
        findings = Findings(f"ncl-{name}", options, left, where_from("recsys_ncl", PACKAGES, device))
        try:
            run_section(name, findings, parsed)
        finally:
            findings.save()
        found[name] = findings.data
    show_section(parsed.out, "ncl", as_markdown(found))


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = section_parser("recsys_ncl", __doc__, SECTIONS)
    parser.add_argument("--seconds", type=float, default=540.0, help="after how many seconds all ends")
    parser.add_argument("--run-dir", type=Path, default=Path("runs/ncl"), help="where runs are kept")
    return parse_sections(parser, SECTIONS, arguments)


def run_section(name: str, findings: Findings, parsed: argparse.Namespace) -> None:
    """Train a model, as long as there is time, and test it on the way and at the end."""
    model, own = SECTIONS[name]
    epochs = parsed.epochs or (4 if parsed.smoke else EPOCHS)
    given = {**BOTH, **own, **(SMOKE if parsed.smoke else {}), "epochs": epochs, "seed": parsed.seed}
    given |= {"warm_up_step": 1} if parsed.smoke and model == "NCL" else {}
    given |= {"precision": parsed.precision, "execution": parsed.execution, "use_gpu": not parsed.smoke}
    config = Config(model, "gowalla", config_dict={**given, "run_dir": str(parsed.run_dir / name)})
    train, _, test = data_preparation(config, create_dataset(config, **({"inter": made_up()} if parsed.smoke else {})))
    init_seed(parsed.seed, True)
    trainer = get_trainer(config, get_model(model)(config, train.dataset))
    watch = Watch(findings)
    trainer.callbacks.append(watch)

    def evaluated(epoch: int, score: Any) -> None:
        if (epoch + 1) % EVERY == 0:
            measured = trainer.evaluate(test, load_best_model=False).exact
            findings.data.setdefault("curve", []).append({"epoch": epoch + 1, **measured})
            findings.say(f"epoch {epoch + 1}: {', '.join(f'{key} {measured[key]:.4f}' for key in METRICS)}")
            findings.save()

    trainer.fit(train, verbose=False, callback_fn=evaluated)
    done = len(trainer.train_loss_dict)
    findings.data |= {
        "test": {key: float(value) for key, value in trainer.evaluate(test, load_best_model=False).exact.items()},
        "epochs": done,
        "complete": done >= epochs,
        "steps": len(train),
        "epoch_s": statistics.median(watch.seconds) if watch.seconds else None,
        "settings": {key: config[key] for key in ("train_batch_size", "learning_rate", "n_layers", *own, "seed")},
    }


def as_markdown(found: dict[str, dict[str, Any]]) -> str:
    """Return the section for RESULTS.md."""
    known = {name: data for name, data in found.items() if "test" in data}
    if not known:
        return "## NCL beside LightGCN on gowalla\n\nNothing was found."
    first = next(iter(known.values()))
    lines = ["## NCL beside LightGCN on gowalla", "", first["facts"], ""]
    if first["smoke"]:
        lines += ["A smoke test: its figures mean nothing.", ""]
    lines += ["| model | epochs | Recall@20 | NDCG@20 | s an epoch |", "|---|--:|--:|--:|--:|"]
    for name, data in known.items():
        values = " | ".join(f"{data['test'][key]:.4f}" for key in METRICS)
        seconds = "" if data["epoch_s"] is None else f"{data['epoch_s']:.2f}"
        lines.append(f"| {SECTIONS[name][0]} | {data['epochs']} | {values} | {seconds} |")
    lines += [""] + [f"{SECTIONS[name][0]}: {data['settings']}." for name, data in known.items()]
    if len(known) == len(SECTIONS):
        ours, base = known["ncl"], known["lightgcn"]
        fair = ours["epochs"] == base["epochs"]
        above = all(ours["test"][key] > base["test"][key] for key in METRICS)
        verdict = ("met" if above else "NOT met") if fair else "not comparable: the epochs differ"
        lines += ["", f"Bar: NCL above LightGCN at equal epochs: {verdict}."]
    return "\n".join(lines)


def write_results(files: Sequence[Path]) -> None:
    """Put what was found into RESULTS.md."""
    write_section("recsys-ncl", as_markdown(dict(read_sections(files, "ncl", SECTIONS))))


if __name__ == "__main__":
    main()
