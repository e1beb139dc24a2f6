"""Recommenders against published results that a CPU reaches: Pop, EASE and BPR on ml-100k, GF-CF on gowalla.

    python -m benchmarks.recsys.published --write

Settings are RecBole's defaults, and for GF-CF those of its paper. The data is looked for in the folder that
TREADLE_DATA names.
"""

import argparse
import json
import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from time import process_time
from typing import Any

from benchmarks.provenance import provenance
from benchmarks.results import write_section
from treadle.recsys import Config
from treadle.recsys.quick_start import build

SEED = 2020


@dataclass(frozen=True)
class Published:
    """A result that somebody published, and what of it has to be reached.

    Attributes:
        model: The model.
        dataset: The data set.
        part: On which part of the data: "valid" for the best epoch on validation, or "test".
        least: The least value of each metric.
        known: What was published.
        exact: Whether the result is deterministic, and has to be met to four digits.
        settings: Settings besides the defaults.
    """

    model: str
    dataset: str
    part: str
    least: dict[str, float]
    known: dict[str, float]
    exact: bool = False
    settings: dict[str, Any] = field(default_factory=dict)

    def is_met(self, found: dict[str, float]) -> bool:
        """Whether a result is good enough."""
        if self.exact:
            return all(abs(found[key] - value) < 0.5e-4 for key, value in self.known.items())
        return all(found[key] >= value for key, value in self.least.items())


GOWALLA: dict[str, Any] = {
    "inter_layout": "lists",
    "benchmark_filename": ["train", "test"],
    "metrics": ["Recall", "NDCG"],
    "topk": [20],
    "valid_metric": "NDCG@20",
}
ANCHOR = {"recall@20": 0.1849, "ndcg@20": 0.1518}
RESULTS = [
    Published("Pop", "ml-100k", "valid", {"recall@10": 0.105}, {"recall@10": 0.1166}),
    Published("EASE", "ml-100k", "valid", {"recall@10": 0.22}, {"recall@10": 0.2389}),
    Published("BPR", "ml-100k", "test", {"recall@10": 0.23, "mrr@10": 0.45}, {"recall@10": 0.2466, "mrr@10": 0.4895}),
    Published("GFCF", "gowalla", "test", ANCHOR, ANCHOR, exact=True, settings=GOWALLA),
]


def reach(one: Published, *, seed: int = SEED, **given: Any) -> dict[str, Any]:
    """Train as a user would, and return what came of it.

    Args:
        one: What to train.
        seed: Of split, weights, batches and negatives.
        given: Further settings.
    """
    with tempfile.TemporaryDirectory() as folder:
        fixed = {"seed": seed, "show_progress": False, "checkpoint_dir": folder}
        config = Config(one.model, one.dataset, config_dict={**one.settings, **fixed, **given})
        trainer, _, train, valid, test = build(config)
        began = process_time()
        _, best = trainer.fit(train, valid, verbose=False)
        seconds = process_time() - began
        found = best if one.part == "valid" else trainer.evaluate(test, load_best_model=valid is not None)
    assert found is not None
    return {
        "found": {key: float(value) for key, value in found.items()},
        "epochs": len(trainer.train_loss_dict),
        "seconds": round(seconds, 1),
        "met": one.is_met(dict(found)),
    }


def table(results: dict[str, dict[str, Any]]) -> str:
    """Return the results as a Markdown table."""
    rows = [
        "| model | data | part | metric | Treadle | published | wanted | met | epochs | CPU s |",
        "|---|---|---|---|--:|--:|--:|---|--:|--:|",
    ]
    for one in RESULTS:
        if one.model not in results:
            continue
        result = results[one.model]
        for key, least in one.least.items():
            rows.append(
                f"| {one.model} | {one.dataset} | {one.part} | {key} | {result['found'][key]:.4f} | "
                f"{one.known[key]:.4f} | {'the same' if one.exact else f'{least:g}'} | "
                f"{'yes' if result['met'] else '**no**'} | {result['epochs']} | {result['seconds']:g} |"
            )
    return "\n".join(rows)


def section(results: dict[str, dict[str, Any]], seed: int) -> str:
    """Return the section for RESULTS.md."""
    # Folders are of this machine, and of no use to whoever measures again.
    facts = re.sub(r" --out[ =][^\s`]+", "", provenance("recsys_published", ["torch", "treadle", "numpy"], seed=seed))
    told = (
        "ml-100k: RecBole's defaults (split 8:1:1 at random by user, full ranking, early stopping); RecBole's figures "
        "are of its own split, the one for Pop with its counting mended. gowalla: the split of the LightGCN paper; "
        "GF-CF is deterministic, and checks data, masking and metrics at once. CPU s: seconds of the process for "
        "fitting, with the evaluations in it."
    )
    return "\n".join(["## Recommenders: published results on the CPU", "", facts, "", told, "", table(results)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="the models whose name holds this text")
    parser.add_argument("--seed", type=int, default=SEED, help="of split, weights, batches and negatives")
    parser.add_argument("--out", type=Path, help="a JSON file that results are added to as they come")
    parser.add_argument("--write", action="store_true", help="write the section in RESULTS.md")
    arguments = parser.parse_args()
    results: dict[str, dict[str, Any]] = {}
    for one in RESULTS:
        if arguments.only in one.model:
            results[one.model] = reach(one, seed=arguments.seed, use_gpu=False)
            print(one.model, results[one.model], flush=True)
            if arguments.out is not None:
                arguments.out.write_text(json.dumps(results, indent=1), encoding="utf-8")
    print(table(results))
    if arguments.write:
        write_section("recsys-published", section(results, arguments.seed))


if __name__ == "__main__":
    main()
