"""One training of a benchmark."""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from treadle.recsys.bench.cost import EpochSeconds, PeakMemory, count_parameters, fingerprint_rows
from treadle.recsys.bench.leaderboard import FAILED, Record
from treadle.recsys.bench.users import user_lists, values_by_owner, write_lists, write_values
from treadle.recsys.compat import install_names
from treadle.recsys.config.configurator import Config
from treadle.recsys.evaluation.group_panels import evaluate_by_groups, write_panels
from treadle.recsys.model_registry import locate_model
from treadle.recsys.quick_start import build, fit_and_test
from treadle.recsys.trainers.loop.model_file import storable
from treadle.runs.preemption import SignalHandler, leave

# A training in a process of its own: what it does to memory, or what kills it, is its own affair


LAST_WORDS = 2000
"""Characters of what a process said that are told of one that died."""


def run_subprocess(given: Mapping[str, Any], folder: Path) -> str:
    """Train an entry in a process of its own, and return why it died without a word, if it did.

    Args:
        given: What `treadle.recsys.bench.worker.main` reads.
        folder: The folder of the run.

    Raises:
        KeyboardInterrupt: Ctrl-C; the training saved itself first.
        PreemptedExit: SIGTERM or SIGUSR1; the training saved itself first.
    """
    folder.mkdir(parents=True, exist_ok=True)
    asked, said = folder / "entry.json", folder / "entry.log"
    asked.write_text(json.dumps(dict(given), default=str), encoding="utf-8")
    requests: list[int] = []
    command = [sys.executable, "-m", "treadle.recsys.bench", str(asked)]
    # Apart from the terminal: Ctrl-C comes to this process, which hands it on once.
    apart: dict[str, Any] = {"stdin": subprocess.PIPE, "start_new_session": True, "env": _environment()}
    with said.open("ab") as output, subprocess.Popen(command, stdout=output, stderr=output, **apart) as process:

        def hand_on(number: int) -> None:
            requests.append(number)
            if sys.platform == "win32" and process.stdin is not None:
                process.stdin.close()  # a signal would end it there, and not ask it; see `_watch_parent`
            else:
                process.send_signal(number)

        try:
            with SignalHandler(hand_on):
                status = process.wait()
        except BaseException:
            process.terminate()
            raise
    if requests:
        leave(requests[-1], f"the benchmark is saved, with {folder.name} under way; start the same command to resume")
    if status == 0:
        return ""
    died = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
    return f"its process ended with {died}: {_last_words(said)}"


def _environment() -> dict[str, str]:
    """Return the environment of the process: it finds the same Treadle, and the user's own modules."""
    own = [str(Path(__file__).parents[3]), *(path for path in sys.path if path), os.getcwd()]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(own))}


def _last_words(file: Path) -> str:
    lines = file.read_text(encoding="utf-8", errors="replace")[-LAST_WORDS:].strip().splitlines()
    return lines[-1] if lines else "it said nothing"


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
    record.parameters = count_parameters(trainer.model)
    if test_data is not None:
        label = str(config["LABEL_FIELD"]) if config["eval_args"]["mode"]["test"] == "labeled" else None
        record.test_rows, record.test_print = len(test_data.dataset), fingerprint_rows(test_data.dataset, label)
    found = evaluate_by_groups(trainer, train_data, test_data, keep_per_user=True)
    if found is not None:
        write_panels(found, folder)
        if found.per_user is not None:
            write_values(folder, *values_by_owner(found.per_user, test_data, record.test_print))
        write_lists(folder, user_lists(trainer.model, test_data, trainer.device))


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
        signal.raise_signal(signal.SIGTERM)

    threading.Thread(target=wait, name="treadle-bench-parent", daemon=True).start()
