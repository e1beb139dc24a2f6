"""SASRec on ml-1m in its paper's protocol: the last item of each user among 100 others that the user never chose.

Sections: `paper` (the loss, sizes, batches, layers, positions and rows of the paper's program), `behind` (as RecBole:
layers normalised behind each part, positions from the beginning, all stretches of a sequence) and `softmax` (the loss
over all items). Each writes `<out>/sasrec-<section>.json` and `.md`, and is kept in `<run-dir>/<section>`, where the
same command goes on if the time was too short. The data is looked for in the folder that TREADLE_DATA names.
`--write-results` puts such files into RESULTS.md.

python -m benchmarks.recsys.sasrec --out found --run-dir runs/sasrec
"""

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from benchmarks.execution.session import Findings, Options
from benchmarks.recsys.sections import (
    chosen_device,
    parse_sections,
    read_sections,
    section_parser,
    show_section,
    where_from,
)
from benchmarks.results import write_section
from treadle import Trainer, TrainerCallback
from treadle.data import data_folder
from treadle.recsys import Config, create_dataset, data_preparation, get_model, get_trainer, init_seed
from treadle.recsys.data.tables.text_files import read_interactions

BAR, PUBLISHED = 0.82, (0.8245, 0.5905)
LENGTH, ROWS = 200, 128
PACKAGES = ("torch", "triton", "numpy", "pyarrow")
PROTOCOL: dict[str, Any] = {
    "MAX_ITEM_LIST_LENGTH": LENGTH,
    "train_batch_size": LENGTH * ROWS,
    "repeatable": False,
    "eval_args": {"mode": "uni100"},
    "metrics": ["Hit", "NDCG"],
    "topk": [10],
    "valid_metric": "Hit@10",
    "n_layers": 2,
    "hidden_dropout_prob": 0.2,
    "attn_dropout_prob": 0.2,
    "learning_rate": 1e-3,
    "stopping_step": 1000,
}
PAPER: dict[str, Any] = {
    "loss_type": "BCE",
    "hidden_size": 50,
    "inner_size": 50,
    "n_heads": 1,
    "hidden_act": "relu",
    "epochs": 400,
    "eval_step": 20,
}
SECTIONS: dict[str, dict[str, Any]] = {
    "paper": {**PAPER, "norm_first": True, "positions_from_end": True, "train_last_stretch_only": True},
    "behind": PAPER,
    "softmax": {"loss_type": "CE", "hidden_size": 64, "inner_size": 256, "n_heads": 2, "epochs": 120, "eval_step": 5},
}
SMOKE = {"MAX_ITEM_LIST_LENGTH": 8, "train_batch_size": 64, "epochs": 2, "eval_step": 1, "eval_args": {"mode": "uni20"}}


class Watch(TrainerCallback):
    """Times epochs, and asks the run to end when the time of the section is over.

    Attributes:
        seconds: How long each epoch took, without evaluation.
    """

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._began = 0.0
        self.seconds: list[float] = []

    def on_train_epoch_start(self, trainer: Trainer, **kwargs: Any) -> None:
        """Take the time."""
        self._began = perf_counter()

    def on_train_epoch_end(self, trainer: Trainer, **kwargs: Any) -> None:
        """Take the time again, when the device is done."""
        if trainer.device.type == "cuda":
            torch.cuda.synchronize(trainer.device)
        self.seconds.append(perf_counter() - self._began)
        if not self._findings.has_time(self.seconds[-1]):
            trainer.request_stop("the time of the section is over; the same command goes on")


def main(arguments: Sequence[str] | None = None) -> None:
    """Train the sections that were asked for, or write what was found into RESULTS.md."""
    parsed = parse_arguments(arguments)
    if parsed.write_results:
        write_results(parsed.write_results)
        return
    device = chosen_device(parsed)
    options = Options(device, parsed.smoke, parsed.seed, parsed.out)
    for name in parsed.sections:
        findings = Findings(f"sasrec-{name}", options, parsed.budget_s, where_from("recsys_sasrec", PACKAGES, device))
        try:
            run_section(name, findings, parsed)
        finally:
            findings.save()
        show_section(options.out, findings.name, as_markdown(name, findings.data))


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = section_parser("recsys_sasrec", __doc__, SECTIONS)
    parser.add_argument("--budget-s", type=float, default=240.0, help="after how many seconds a section ends")
    parser.add_argument("--run-dir", type=Path, help="keep runs in this folder; the same folder again goes on")
    parser.add_argument("--eval-step", type=int, help="epochs from one evaluation to the next")
    return parse_sections(parser, SECTIONS, arguments)


def run_section(name: str, findings: Findings, parsed: argparse.Namespace) -> None:
    """Train, as long as there is time, and test the best model so far."""
    config = Config("SASRec", "ml-1m", config_dict=settings(name, parsed))
    dataset = create_dataset(config, inter=made_up() if parsed.smoke else published())
    train, valid, test = data_preparation(config, dataset)
    init_seed(parsed.seed, True)
    model = get_model("SASRec")(config, train.dataset)
    trainer, watch = get_trainer(config, model), Watch(findings)
    trainer.callbacks.append(watch)
    saved = parsed.run_dir is not None
    findings.say(f"{len(train)} steps an epoch, {sum(one.numel() for one in model.parameters()):,} parameters")

    def evaluated(epoch: int, score: float) -> None:
        findings.data.setdefault("valid", []).append({"epoch": epoch + 1, "hit@10": round(score, 4)})
        findings.say(f"epoch {epoch + 1}: Hit@10 {score:.4f} on validation")
        findings.save()

    trainer.fit(train, valid, verbose=False, saved=saved, callback_fn=evaluated)
    found = trainer.evaluate(test, load_best_model=trainer.best_valid_result is not None)
    epochs = len(trainer.train_loss_dict)
    findings.data |= {
        "test": {key: float(value) for key, value in found.items()},
        "epochs": epochs,
        "complete": epochs >= config["epochs"],
        "steps": len(train),
        "epoch_s": statistics.median(watch.seconds) if watch.seconds else None,
        "users": dataset.user_num - 1,
        "settings": {key: config[key] for key in (*SECTIONS[name], "precision", "execution", "seed")},
    }


def settings(name: str, parsed: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of a section."""
    given = {**PROTOCOL, **SECTIONS[name], **(SMOKE if parsed.smoke else {})}
    given |= {"seed": parsed.seed, "precision": parsed.precision, "execution": parsed.execution}
    given |= {} if parsed.epochs is None else {"epochs": parsed.epochs}
    given |= {} if parsed.eval_step is None else {"eval_step": parsed.eval_step}
    given |= {} if parsed.run_dir is None else {"run_dir": str(parsed.run_dir / name)}
    return {**given, "use_gpu": not parsed.smoke, "show_progress": False, "inter_layout": "pairs"}


def published() -> Any:
    """Return the interactions that the authors of SASRec published, in the order of time."""
    folder = data_folder("ml-1m") / "sasrec"
    (path,) = folder.glob("ml-1m.txt*")
    return read_interactions(path, "pairs", user="user_id", item="item_id", time="timestamp")


def made_up() -> dict[str, Any]:
    """Return interactions in which the next item follows from the last."""
    steps = np.arange(60 * 12)
    users, times = steps // 12, steps % 12
    return {"user_id": users.astype(str), "item_id": ((users + 3 * times) % 40).astype(str), "timestamp": times * 1.0}


def as_markdown(name: str, data: dict[str, Any]) -> str:
    """Return the section for RESULTS.md."""
    lines = [f"## SASRec on ml-1m, {name}", "", data["facts"], ""]
    if data["smoke"]:
        lines += ["A smoke test: its figures mean nothing.", ""]
    if "test" not in data:
        return "\n".join([*lines, "Nothing was found."])
    hit, ndcg = data["test"]["hit@10"], data["test"]["ndcg@10"]
    own = ", ".join(f"{key} {value}" for key, value in data["settings"].items())
    lines += [
        f"Work: {data['users']:,} users, the last item of each among 100 others; {own}.",
        "",
        "| | Hit@10 | NDCG@10 |",
        "|---|--:|--:|",
        f"| test, best epoch on validation of {data['epochs']} | {hit:.4f} | {ndcg:.4f} |",
        f"| the paper | {PUBLISHED[0]} | {PUBLISHED[1]} |",
        "",
        f"Bar: Hit@10 of at least {BAR}: {'met' if hit >= BAR else 'NOT met'}.",
    ]
    if data["epoch_s"] is not None:
        lines.append(f"An epoch of {data['steps']} steps takes {data['epoch_s']:.2f} s, evaluation not counted.")
    return "\n".join(lines if data["complete"] else [*lines, "The time was over before the last epoch."])


def write_results(files: Sequence[Path]) -> None:
    """Put what was found into RESULTS.md, each section into its own."""
    for name, data in read_sections(files, "sasrec", SECTIONS):
        write_section(f"recsys-sasrec-{name}", as_markdown(name, data))


if __name__ == "__main__":
    main()
