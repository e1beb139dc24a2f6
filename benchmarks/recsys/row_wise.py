"""BPR on gowalla on one thread of a CPU: an epoch by each optimizer, of all rows or of those of a batch alone.

    python -m benchmarks.recsys.row_wise --write

The optimizers take turns in one process. The data is looked for in the folder that TREADLE_DATA names.
"""

import argparse
import os
import statistics
from time import process_time
from typing import Any

import torch

from benchmarks.provenance import provenance
from benchmarks.recsys.published import GOWALLA
from benchmarks.results import write_section
from treadle.recsys import Config, create_dataset, data_preparation, get_model, get_trainer, init_seed

RATES = {"adam": 0.001, "lazy_adam": 0.001, "row_adagrad": 0.05}
WANTED = 0.6
EPOCHS = 4


def epochs_of(learner: str, loaders: Any, dataset: Any) -> list[float]:
    """Return the CPU seconds of some epochs, without the first."""
    given = {"learner": learner, "learning_rate": RATES[learner], "epochs": EPOCHS, "use_gpu": False}
    config = Config("BPR", "gowalla", config_dict={**GOWALLA, **given, "show_progress": False})
    init_seed(config["seed"], True)
    trainer = get_trainer(config, get_model("BPR")(config, dataset))
    seconds: list[float] = []
    began = process_time()

    def note(epoch: int, score: Any) -> None:
        nonlocal began
        seconds.append(process_time() - began)
        began = process_time()

    trainer.fit(loaders[0], None, verbose=False, saved=False, callback_fn=note)
    return seconds[1:]


def table(seconds: dict[str, list[list[float]]]) -> str:
    """Return what an epoch takes, as a Markdown table."""
    lines = [
        "| learner | learning rate | CPU s an epoch | least to most | times as fast as adam, in single turns | wanted |"
    ]
    lines.append("|---|--:|--:|--:|--:|--:|")
    turns = {learner: [statistics.median(turn) for turn in found] for learner, found in seconds.items()}
    for learner, found in seconds.items():
        every = [one for turn in found for one in turn]
        ratios = [adam / own for adam, own in zip(turns["adam"], turns[learner], strict=True)]
        met = "met" if statistics.median(every) <= WANTED else "**missed**"
        wanted = "" if learner == "adam" else f"at most {WANTED}: {met}"
        figures = f"{statistics.median(every):.2f} | {min(every):.2f}-{max(every):.2f}"
        lines.append(f"| {learner} | {RATES[learner]:g} | {figures} | {min(ratios):.1f}-{max(ratios):.1f} | {wanted} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3, help="how often each optimizer has its turn")
    parser.add_argument("--write", action="store_true", help="write the section in RESULTS.md")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    config = Config("BPR", "gowalla", config_dict={**GOWALLA, "use_gpu": False})
    dataset = create_dataset(config)
    loaders = data_preparation(config, dataset)
    seconds: dict[str, list[list[float]]] = {learner: [] for learner in RATES}
    for turn in range(arguments.turns):
        for learner, found in seconds.items():
            found.append(epochs_of(learner, loaders, loaders[0].dataset))
            print(f"turn {turn + 1}: {learner} {statistics.median(found[-1]):.3f} s", flush=True)
    print(table(seconds))
    if arguments.write:
        facts = provenance(
            "recsys.row_wise",
            ["torch", "treadle"],
            turns=arguments.turns,
            epochs=EPOCHS - 1,
            load_average=f"{os.getloadavg()[0]:.0f}",
        )
        told = (
            "Batches of 2,048 pairs, 64 factors; drawing negatives anew for each epoch is in the time; no evaluation."
        )
        write_section(
            "recsys-row-wise", f"## Rows of a batch alone: BPR on gowalla\n\n{facts}\n\n{told}\n\n{table(seconds)}"
        )


if __name__ == "__main__":
    main()
