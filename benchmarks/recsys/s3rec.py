"""S3-Rec on Beauty in its repository's protocol: the last item of each user among all that the user has not chosen.

Sections: `paper` (both stages, rows, sizes, weights and batches of the authors' program; its loss), `softmax` (the
second stage with the loss over all items) and `sasrec` (as `paper`, without the first stage). Each writes
`<out>/s3rec-<section>.json` and `.md`, and is kept in `<run-dir>/<section>`, where the same command goes on if the time
was too short; a section that is complete in `<out>` is not run again. The data is looked for in the folder that
TREADLE_DATA names, which has to hold `s3rec-seq`. `--write-results` puts such files into RESULTS.md.

python -m benchmarks.recsys.s3rec --out found --seconds 540
"""

import argparse
import gzip
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from benchmarks.execution.session import Findings, Options
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
from treadle.data import data_folder
from treadle.recsys import Config, create_dataset, data_preparation, get_model, get_trainer, init_seed
from treadle.recsys.data.tables.text_files import read_interactions

BAR = 0.060
"""The least Hit@10 that S3-Rec has to have on the test part."""
PUBLISHED = {
    "paper": {"hit@5": 0.0387, "ndcg@5": 0.0244, "hit@10": 0.0647, "ndcg@10": 0.0327},
    "sasrec": {"hit@5": 0.0387, "ndcg@5": 0.0249, "hit@10": 0.0605, "ndcg@10": 0.0318},
}
"""The table of the authors' repository."""
LENGTH, ROWS = 50, 256
PACKAGES = ("torch", "triton", "numpy", "pyarrow")
PROTOCOL: dict[str, Any] = {
    "MAX_ITEM_LIST_LENGTH": LENGTH,
    "train_batch_size": LENGTH * ROWS,
    "repeatable": False,
    "metrics": ["Hit", "NDCG"],
    "topk": [5, 10],
    "valid_metric": "NDCG@10",
    "n_layers": 2,
    "n_heads": 2,
    "hidden_size": 64,
    "inner_size": 256,
    "hidden_dropout_prob": 0.5,
    "attn_dropout_prob": 0.5,
    "learning_rate": 1e-3,
    "epochs": 300,
    "stopping_step": 20,
    # The authors' sequences are padded in front, and of the longest only their ends are trained on.
    "positions_from_end": True,
    "train_last_stretch_only": True,
}
STAGES: dict[str, Any] = {
    "item_attribute": "attributes",
    "pretrain_epochs": 80,
    "pretrain_prefixes": True,
    "pretrain_batch_size": ROWS,
    "save_step": 50,
    "mask_ratio": 0.2,
    "aap_weight": 0.2,
    "mip_weight": 1.0,
    "map_weight": 1.0,
    "sp_weight": 0.5,
}
SECTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "paper": ("S3Rec", {"loss_type": "BCE", **STAGES}),
    "softmax": ("S3Rec", {"loss_type": "CE", **STAGES}),
    "sasrec": ("SASRec", {"loss_type": "BCE"}),
}
"""Models, and their settings beside the protocol's."""
SMOKE = {"MAX_ITEM_LIST_LENGTH": 8, "train_batch_size": 160, "hidden_size": 8, "inner_size": 8, "epochs": 2}


def main(arguments: Sequence[str] | None = None) -> None:
    """Train the sections that were asked for, or write what was found into RESULTS.md."""
    parsed = parse_arguments(arguments)
    if parsed.write_results:
        write_results(parsed.write_results)
        return
    device = chosen_device(parsed)
    options = Options(device, parsed.smoke, parsed.seed, parsed.out)
    ends = monotonic() + parsed.seconds
    for name in parsed.sections:
        left = ends - monotonic()
        known = complete_section(parsed.out, f"s3rec-{name}")
        if known or left < 10:
            print(f"--- {name}: {'complete already' if left >= 10 else 'no time left; run the same command again'}")
            continue
        findings = Findings(f"s3rec-{name}", options, left, where_from("recsys_s3rec", PACKAGES, device))
        try:
            run_section(name, findings, parsed)
        finally:
            findings.save()
        show_section(options.out, findings.name, as_markdown(name, findings.data))


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = section_parser("recsys_s3rec", __doc__, SECTIONS)
    parser.add_argument("--seconds", type=float, default=540.0, help="after how many seconds all ends")
    parser.add_argument("--run-dir", type=Path, default=Path("runs/s3rec"), help="where runs are kept")
    parser.add_argument("--pretrain-epochs", type=int, help="another number of epochs of the first stage")
    return parse_sections(parser, SECTIONS, arguments)


def run_section(name: str, findings: Findings, parsed: argparse.Namespace) -> None:
    """Train, as long as there is time, and test the best model so far."""
    model = SECTIONS[name][0]
    config = Config(model, "Beauty", config_dict=settings(name, parsed))
    tables = made_up() if parsed.smoke else published("Beauty")
    dataset = create_dataset(config, **(tables if model == "S3Rec" else {"inter": tables["inter"]}))
    train, valid, test = data_preparation(config, dataset)
    init_seed(parsed.seed, True)
    trainer = get_trainer(config, get_model(model)(config, train.dataset))
    watch = Watch(findings)
    trainer.callbacks.append(watch)
    first = config["pretrain_epochs"] or 0
    wanted = first + config["epochs"]
    steps = [_first_steps(train, config) if first else 0, len(train)]
    findings.say(f"{first} epochs of {steps[0]} steps, and then {config['epochs']} of {steps[1]}")

    def evaluated(epoch: int, score: float) -> None:
        findings.data.setdefault("valid", []).append({"epoch": epoch + 1 - first, "ndcg@10": round(score, 4)})
        findings.say(f"epoch {epoch + 1} of {wanted}: NDCG@10 {score:.4f} on validation")
        findings.save()

    trainer.fit(train, valid, verbose=False, callback_fn=evaluated)
    found = trainer.evaluate(test, load_best_model=trainer.best_valid_result is not None)
    epochs = len(trainer.train_loss_dict)
    # The first of the epochs that were timed need not be the run's first: it may have gone on.
    ended = max(first - (epochs - len(watch.seconds)), 0)
    seconds = [watch.seconds[:ended], watch.seconds[ended:]]
    findings.data |= {
        "test": {key: float(value) for key, value in found.exact.items()},
        "valid_best": trainer.best_valid_score,
        "epochs": [min(epochs, first), max(epochs - first, 0)],
        "complete": epochs >= wanted or trainer.cur_step > trainer.stopping_step,
        "steps": steps,
        "epoch_s": [statistics.median(one) if one else None for one in seconds],
        "users": dataset.user_num - 1,
        "items": dataset.item_num - 1,
        "settings": {key: config[key] for key in ("loss_type", "precision", "execution", "seed")},
    }
    if name == "paper" and not parsed.smoke:
        short = max(0.0, BAR - findings.data["test"]["hit@10"])
        findings.check(f"S3-Rec on Beauty, how far Hit@10 is below {BAR}", short, 0)


def _first_steps(train: Any, config: Config) -> int:
    loader = train.prefixes()
    loader.set_batch_size(config["pretrain_batch_size"])
    return len(loader)


def settings(name: str, parsed: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of a section."""
    given = {**PROTOCOL, **SECTIONS[name][1], **(SMOKE if parsed.smoke else {})}
    staged = "pretrain_epochs" in given
    given |= {"pretrain_epochs": 2} if staged and parsed.smoke else {}
    given |= {"pretrain_epochs": parsed.pretrain_epochs} if staged and parsed.pretrain_epochs is not None else {}
    given |= {"seed": parsed.seed, "precision": parsed.precision, "execution": parsed.execution}
    given |= {} if parsed.epochs is None else {"epochs": parsed.epochs}
    given |= {"run_dir": str(parsed.run_dir / name), "use_gpu": not parsed.smoke, "show_progress": False}
    return {**given, "load_col": None}


def published(name: str) -> dict[str, Any]:
    """Return the sequences and the attributes of items of a set that the authors published."""
    folder = data_folder("s3rec-seq")
    (sequences,) = folder.glob(f"{name}.txt*")
    (listed,) = folder.glob(f"{name}_item2attributes.json*")
    raw = listed.read_bytes()
    attributes = json.loads(gzip.decompress(raw) if listed.suffix == ".gz" else raw)
    return {
        "inter": read_interactions(sequences, "lists", user="user_id", item="item_id", time="timestamp"),
        "item": {
            "item_id": list(attributes),
            "attributes": [[str(attribute) for attribute in own] for own in attributes.values()],
        },
    }


def made_up() -> dict[str, Any]:
    """Return sequences in which the next item follows from the last, and attributes that say which do."""
    steps = np.arange(60 * 9)
    users, times = steps // 9, steps % 9
    inter = {"user_id": users.astype(str), "item_id": ((users + 3 * times) % 40).astype(str), "timestamp": times * 1.0}
    items = {"item_id": [str(item) for item in range(40)], "attributes": [[str(item % 3), "x"] for item in range(40)]}
    return {"inter": inter, "item": items}


def as_markdown(name: str, data: dict[str, Any]) -> str:
    """Return the section for RESULTS.md."""
    lines = [f"## {SECTIONS[name][0]} on Beauty, {name}", "", data["facts"], ""]
    if data["smoke"]:
        lines += ["A smoke test: its figures mean nothing.", ""]
    if "test" not in data:
        return "\n".join([*lines, "Nothing was found."])
    keys = ("hit@5", "ndcg@5", "hit@10", "ndcg@10")
    own = ", ".join(f"{key} {value}" for key, value in data["settings"].items())
    first, second = data["epochs"]
    lines += [
        f"Work: {data['users']:,} users, the last item of each among {data['items']:,} less those chosen before; "
        f"{own}; {first} epochs on what is hidden, {second} on what comes next, the best of these on validation.",
        "",
        "| | Hit@5 | NDCG@5 | Hit@10 | NDCG@10 |",
        "|---|--:|--:|--:|--:|",
        f"| Treadle, test | {' | '.join(format(data['test'][key], '.4f') for key in keys)} |",
    ]
    if name in PUBLISHED:
        lines.append(f"| the authors | {' | '.join(format(PUBLISHED[name][key], '.4f') for key in keys)} |")
    if name == "paper":
        met = "met" if data["test"]["hit@10"] >= BAR else "NOT met"
        lines += ["", f"Bar: Hit@10 of at least {BAR}: {met}."]
    timed = zip(("first", "second"), data["steps"], data["epoch_s"], strict=True)
    told = [f"of the {stage} stage, {steps} steps, {took:.2f} s" for stage, steps, took in timed if took is not None]
    if told:
        lines += ["", f"An epoch takes, evaluation not counted: {'; '.join(told)}."]
    return "\n".join(lines if data["complete"] else [*lines, "The time was over before the last epoch."])


def write_results(files: Sequence[Path]) -> None:
    """Put what was found into RESULTS.md, each section into its own."""
    for name, data in read_sections(files, "s3rec", SECTIONS):
        write_section(f"recsys-s3rec-{name}", as_markdown(name, data))


if __name__ == "__main__":
    main()
