"""Today's sequential models on the data sets of the published tables: leave-one-out, ranked among all items.

A row is a data set, a model and a seed: `--rows beauty:eSASRec:1,beauty:HSTU:1`, or all rows of `--data`, `--models`
and `--seeds`. Each is kept in `<run-dir>/<row>`, and what it found is written to `<out>/sequential-<row>.json` when it
is complete: the same command again resumes the row that the time ended in, and leaves out those that are complete.
The data is looked for in the folder that TREADLE_DATA names. `--write-results` makes the table of such files.

Protocol: the last item of each user is the test, the one before it the validation, everything before that is trained
on; all items are ranked but those of the user's history; recall@10 and NDCG@10 are means over users. The epoch is
chosen by NDCG@10 on validation, and so were the settings below; the test is looked at once, with the chosen weights.

python -m benchmarks.recsys.sequential --out found --seconds 540
"""

import argparse
import itertools
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from benchmarks.execution.session import Findings, Options
from benchmarks.recsys.s3rec import made_up
from benchmarks.recsys.sasrec import Watch
from benchmarks.recsys.sasrec import published as published_movies
from benchmarks.recsys.sections import chosen_device, complete_section, where_from
from benchmarks.results import write_section
from treadle.data import data_folder
from treadle.recsys import Config, create_dataset, data_preparation, get_model, get_trainer, init_seed
from treadle.recsys.data.dataloader import PackedSequenceDataLoader
from treadle.recsys.data.tables.text_files import read_interactions

PACKAGES = ("torch", "triton", "numpy", "pyarrow")
FILES = {"beauty": "Beauty", "sports": "Sports_and_Outdoors", "toys": "Toys_and_Games"}
DATA = (*FILES, "ml-1m")
BEST: dict[str, dict[str, tuple[float, float]]] = {
    "beauty": {
        "SASRec": (0.0605, 0.0318),
        "SASRec, sampled softmax": (0.0921, 0.0531),
        "eSASRec": (0.0928, 0.0523),
    },
    "sports": {
        "SASRec": (0.0350, 0.0192),
        "SASRec, sampled softmax": (0.0569, 0.0314),
        "eSASRec": (0.0560, 0.0323),
    },
    "toys": {
        "SASRec": (0.0675, 0.0374),
        "SASRec, sampled softmax": (0.0970, 0.0580),
        "eSASRec": (0.0939, 0.0538),
    },
    "ml-1m": {
        "SASRec": (0.2392, 0.1259),
        "SASRec, sampled softmax": (0.3058, 0.1779),
        "eSASRec": (0.3133, 0.1772),
        "gSASRec": (0.3003, 0.1726),
    },
}
"""Published recall@10 and NDCG@10."""
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "SASRec-softmax": ("gSASRec", {"loss_type": "sampled_softmax"}),
    "SASRec-CE": ("gSASRec", {"loss_type": "CE"}),
    "gSASRec": ("gSASRec", {}),
    "eSASRec": ("eSASRec", {}),
    "HSTU": ("HSTU", {"attention_size": 64, "value_size": 64, "time_buckets": 0}),
}
"""Models, and their settings beside those of the data. The order of these data sets is known, their times are not."""
PROTOCOL: dict[str, Any] = {
    "repeatable": False,
    "metrics": ["Recall", "NDCG"],
    "topk": [10],
    "valid_metric": "NDCG@10",
    "hidden_size": 64,
    "n_heads": 1,
    "epochs": 200,
    "stopping_step": 20,
}
SHOPS: dict[str, Any] = {
    "MAX_ITEM_LIST_LENGTH": 50,
    "train_batch_size": 750,
    "n_layers": 1,
    "hidden_dropout_prob": 0.3,
    "attn_dropout_prob": 0.3,
    "learning_rate": 2e-3,
    "n_negatives": 512,
    "negatives_per": "batch",
}
MOVIES: dict[str, Any] = {
    "MAX_ITEM_LIST_LENGTH": 200,
    "train_batch_size": 128 * 200,
    "n_layers": 2,
    "hidden_dropout_prob": 0.1,
    "attn_dropout_prob": 0.1,
    "learning_rate": 1e-3,
    "n_negatives": 256,
    "negatives_per": "position",
}
SMOKE = {"MAX_ITEM_LIST_LENGTH": 8, "train_batch_size": 160, "hidden_size": 8, "n_negatives": 4, "epochs": 2}


def main(arguments: Sequence[str] | None = None) -> None:
    """Train the rows that were asked for, or write the table of what was found into RESULTS.md."""
    parsed = parse_arguments(arguments)
    if parsed.write_results:
        write_results(parsed.write_results)
        return
    device = chosen_device(parsed)
    ends = monotonic() + parsed.seconds
    for row in parsed.rows:
        name = "-".join(map(str, row))
        left = ends - monotonic()
        if complete_section(parsed.out, f"sequential-{name}") or left < 10:
            print(f"--- {name}: {'complete already' if left >= 10 else 'no time left; run the same command again'}")
            continue
        options = Options(device, parsed.smoke, row[2], parsed.out)
        findings = Findings(f"sequential-{name}", options, left, where_from("recsys.sequential", PACKAGES, device))
        try:
            train_row(row, findings, parsed)
        finally:
            findings.save()


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recsys.sequential", description=__doc__.split("\n")[0])
    parser.add_argument("--rows", help="rows as data:model:seed, by commas, in the place of the three below")
    parser.add_argument("--data", default=",".join(DATA), help=f"some of {', '.join(DATA)}, by commas")
    parser.add_argument("--models", default=",".join(MODELS), help=f"some of {', '.join(MODELS)}, by commas")
    parser.add_argument("--seeds", default="1,2,3", help="by commas")
    parser.add_argument("--out", type=Path, default=Path("found"), help="the folder for results")
    parser.add_argument("--run-dir", type=Path, default=Path("runs/sequential"), help="where runs are kept")
    parser.add_argument("--seconds", type=float, default=540.0, help="after how many seconds all ends")
    parser.add_argument("--epochs", type=int, help="another number of epochs")
    parser.add_argument("--precision", default="fp32", help="fp32, bf16 or fp16")
    parser.add_argument("--execution", help="auto, eager, compile or graph, in the place of what the models choose")
    parser.add_argument("--smoke", action="store_true", help="made-up data on the CPU, to see that it runs")
    parser.add_argument("--write-results", type=Path, nargs="+", metavar="JSON", help="write the table of these")
    parsed = parser.parse_args(arguments)
    asked = itertools.product(*(getattr(parsed, one).split(",") for one in ("data", "models", "seeds")))
    named = [tuple(one.split(":")) for one in parsed.rows.split(",")] if parsed.rows else list(asked)
    for row in named:
        if len(row) != 3 or row[0] not in DATA or row[1] not in MODELS or not row[2].isdecimal():
            parser.error(f"{':'.join(row)} is no row; write data:model:seed, of {list(DATA)} and {list(MODELS)}")
    parsed.rows = [(data, model, int(seed)) for data, model, seed in named]
    return parsed


def train_row(row: tuple[str, str, int], findings: Findings, parsed: argparse.Namespace) -> None:
    """Train a row, as long as there is time, and when it is complete test its best epoch."""
    data, model, seed = row
    kind = MODELS[model][0]
    config = Config(kind, data, config_dict=settings(row, parsed))
    dataset = create_dataset(config, inter=made_up()["inter"] if parsed.smoke else published(data))
    train, valid, test = data_preparation(config, dataset)
    init_seed(seed, True)
    trainer = get_trainer(config, get_model(kind)(config, train.dataset))
    watch = Watch(findings)
    trainer.callbacks.append(watch)
    assert isinstance(train, PackedSequenceDataLoader), "these models are trained on whole sequences"
    findings.say(f"{len(train)} steps an epoch; {train.fill:.1%} of the places of its rows are full")

    def evaluated(epoch: int, score: float) -> None:
        findings.data.setdefault("valid", []).append({"epoch": epoch + 1, "ndcg@10": round(score, 4)})
        findings.say(f"epoch {epoch + 1}: NDCG@10 {score:.4f} on validation")
        findings.save()

    trainer.fit(train, valid, verbose=False, callback_fn=evaluated)
    epochs = len(trainer.train_loss_dict)
    findings.data |= {
        "row": list(row),
        "epochs": epochs,
        "most_epochs": config["epochs"],
        "valid_best": trainer.best_valid_score,
        "complete": epochs >= config["epochs"] or trainer.cur_step > trainer.stopping_step,
        "steps": len(train),
        "epoch_s": statistics.median(watch.seconds) if watch.seconds else None,
        "device": str(findings.options.device),
        "settings": {key: config[key] for key in ("hidden_size", "loss_type", "n_negatives", "negatives_per")},
    }
    if findings.data["complete"]:
        found = trainer.evaluate(test).exact
        findings.data["test"] = {key: float(value) for key, value in found.items()}
        findings.say(f"test: recall@10 {found['recall@10']:.4f}, NDCG@10 {found['ndcg@10']:.4f}")


def settings(row: tuple[str, str, int], parsed: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of a row."""
    data, model, seed = row
    given = {**PROTOCOL, **(MOVIES if data == "ml-1m" else SHOPS)}
    if model != "HSTU":
        given["inner_size"] = 4 * given["hidden_size"]
    given |= {**MODELS[model][1], **(SMOKE if parsed.smoke else {})}
    given |= {"seed": seed, "precision": parsed.precision}
    given |= {} if parsed.execution is None else {"execution": parsed.execution}
    given |= {} if parsed.epochs is None else {"epochs": parsed.epochs}
    place = parsed.run_dir / "-".join(map(str, row))
    return {**given, "run_dir": str(place), "use_gpu": not parsed.smoke, "show_progress": False, "load_col": None}


def published(data: str) -> Any:
    """Return the interactions of a data set, in the order of time."""
    if data == "ml-1m":
        return published_movies()
    (path,) = data_folder("s3rec-seq").glob(f"{FILES[data]}.txt*")
    return read_interactions(path, "lists", user="user_id", item="item_id", time="timestamp")


def as_markdown(found: Sequence[dict[str, Any]]) -> str:
    """Return the table for RESULTS.md: means over seeds, beside what was published."""
    lines = ["## Today's sequential models", "", found[0]["facts"], "", _protocol(found), ""]
    lines += ["| data | model | seeds | epochs | recall@10 | NDCG@10 | s an epoch |", "|---|---|--:|--:|--:|--:|--:|"]
    for data in DATA:
        for model in MODELS:
            rows = [one for one in found if one["row"][:2] == [data, model]]
            if rows:
                lines.append(_line(data, model, rows))
        if any(one["row"][0] == data for one in found):
            lines += [
                f"| {data} | {model}, published | | | {recall:.4f} | {ndcg:.4f} | |"
                for model, (recall, ndcg) in BEST[data].items()
            ]
    return "\n".join([*lines, "", *_bars(found)])


def _protocol(found: Sequence[dict[str, Any]]) -> str:
    devices = sorted({one["device"] for one in found})
    return (
        f"On {', '.join(devices)}. The last item of each user is the test, the one before it the validation; all items "
        "are ranked but those of the user's history. Settings and the epoch are chosen by NDCG@10 on validation; "
        "figures are means over seeds, with their range."
    )


def _line(data: str, model: str, rows: Sequence[dict[str, Any]]) -> str:
    cells = [f"{data} | {model} | {len(rows)}", " to ".join(_ends([one["epochs"] for one in rows]))]
    for key in ("recall@10", "ndcg@10"):
        values = [one["test"][key] for one in rows]
        spread = f" ({min(values):.4f} to {max(values):.4f})" if len(values) > 1 else ""
        cells.append(f"{statistics.mean(values):.4f}{spread}")
    timed = [one["epoch_s"] for one in rows if one["epoch_s"] is not None]
    cells.append(f"{statistics.median(timed):.2f}" if timed else "")
    return f"| {' | '.join(cells)} |"


def _ends(numbers: Sequence[int]) -> list[str]:
    return [str(one) for one in dict.fromkeys((min(numbers), max(numbers)))]


def _bars(found: Sequence[dict[str, Any]]) -> list[str]:
    """Say of each data set whether the best published NDCG@10 and recall@10 are reached within 1%, by three seeds."""
    lines = []
    for data in DATA:
        means: dict[str, list[float]] = {}
        for model in MODELS:
            rows = [one["test"] for one in found if one["row"][:2] == [data, model]]
            if len(rows) >= 3:
                means[model] = [statistics.mean(one[key] for one in rows) for key in ("recall@10", "ndcg@10")]
        best = [max(one[place] for one in BEST[data].values()) for place in (0, 1)]
        if means:
            reached = [max(one[place] for one in means.values()) >= 0.99 * best[place] for place in (0, 1)]
            lines.append(
                f"- {data}: within 1% of the best published recall@10 {'met' if reached[0] else 'NOT met'}, NDCG@10 "
                f"{'met' if reached[1] else 'NOT met'}."
            )
        elif any(one["row"][0] == data for one in found):
            lines.append(f"- {data}: no model has three seeds yet, so that the bar of 1% is not judged.")
    return lines


def write_results(files: Sequence[Path]) -> None:
    """Put the table of complete rows into RESULTS.md."""
    found = []
    for file in files:
        data: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if data["smoke"]:
            sys.exit(f"{file} is of a smoke test; its figures mean nothing")
        if not data["complete"]:
            sys.exit(f"{file} is of a row that is not complete; run the same command again")
        found.append(data)
    write_section("recsys-sequential", as_markdown(found))


if __name__ == "__main__":
    main()
