"""One training of a benchmark."""

import json
import logging
import os
import signal
import threading
import traceback
from pathlib import Path
from typing import Any

from treadle.recsys.bench.measuring import EpochSeconds, PeakMemory, parameters_of, print_of_rows
from treadle.recsys.bench.records import FAILED, Record
from treadle.recsys.compat import install_names
from treadle.recsys.config import Config
from treadle.recsys.group_panels import write_group_panels
from treadle.recsys.model_registry import locate_model
from treadle.recsys.quick_start import build, fit_and_test
from treadle.recsys.trainers.model_file import storable

logger = logging.getLogger(__name__)


def train_entry(name: str, config: Config, folder: Path) -> Record:
    """Train and test what the settings say, go on with it if it was begun, and keep what it cost and brought.

    Args:
        name: What the model is called in the table.
        config: The settings.
        folder: The folder of the run.

    Returns:
        What is known of it; an error of the training is part of that.
    """
    record = Record(name, int(config["seed"]), settings=storable(config.plain()))
    try:
        _train(config, folder, record)
    except Exception as error:
        record.state, record.error = FAILED, f"{type(error).__name__}: {error}"
        logger.error("%s", "".join(traceback.format_exception(error)))
    record.write(folder)
    return record


def _train(config: Config, folder: Path, record: Record) -> None:
    memory = PeakMemory(config["device"])
    trainer, _, train_data, valid_data, test_data = build(config)
    seconds = EpochSeconds()
    trainer.callbacks.append(seconds)
    result = fit_and_test(trainer, train_data, valid_data, test_data, verbose=False)
    record.valid = _exact(result["best_valid_result"])
    record.test = _exact(result["test_result"])
    record.epochs = len(trainer.train_loss_dict)
    record.seconds_per_epoch, record.memory_mib = seconds.typical(), memory.mib()
    record.device = str(trainer.device)
    record.parameters = parameters_of(trainer.model)
    if test_data is not None:
        label = str(config["LABEL_FIELD"]) if config["eval_args"]["mode"]["test"] == "labeled" else None
        record.test_rows, record.test_print = len(test_data.dataset), print_of_rows(test_data.dataset, label)
    write_group_panels(trainer, train_data, test_data, folder)


def _exact(metrics: Any) -> dict[str, float]:
    return {} if metrics is None else {name: float(value) for name, value in getattr(metrics, "exact", metrics).items()}


def main(file: str) -> None:
    """Train the entry that a file of JSON describes; leave in good order when the process that asked for it is gone."""
    _watch_parent()
    given: dict[str, Any] = json.loads(Path(file).read_text(encoding="utf-8"))
    # The process is this training's: what a file imports from recbole while it runs is served, too.
    install_names()
    config = Config(locate_model(given["model"]), given["dataset"], given["files"], given["settings"])
    train_entry(given["name"], config, Path(given["folder"]))


def _watch_parent() -> None:
    """Ask this process to save and leave once its input, which the other process holds open, is at its end."""

    def wait() -> None:
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="treadle-bench-parent", daemon=True).start()
