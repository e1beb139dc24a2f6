"""A benchmark: models and seeds, one after the other, each gone on with where it was."""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

from treadle.errors import ConfigError
from treadle.files.atomic_io import replace_text
from treadle.recsys.bench.leaderboard import DONE, FAILED, Leaderboard, Record, settings_file
from treadle.recsys.bench.protocol import Protocol
from treadle.recsys.bench.worker import run_subprocess, train_entry
from treadle.recsys.data.tables import demo_shop
from treadle.recsys.data.tables.sources import require_folder
from treadle.recsys.trainers.loop.model_file import storable
from treadle.runs.folder import to_yaml
from treadle.runs.lock import RunLock
from treadle.runs.reader import read_json
from treadle.runs.status import FINISHED, STOPPED

PROTOCOL_FILE = "protocol.json"
OWN = ("run_dir", "show_progress", "seed", "state")
"""Settings that may differ between two starts of one training, or are its own."""


class Benchmark:
    """Trains models under one protocol, and writes what came of it after each.

    A training that is done is not done again; one that was cut short goes on from its checkpoint; one that failed is
    tried again. Each is a process of its own, so that nothing that happens to it costs the others.

    Args:
        protocol: The models, and what they share.
        folder: Where everything is kept.
        seeds: The seeds of each model; by default the one of the settings.
        isolated: Whether each training has a process of its own. Without, models need not be found by their name.

    Raises:
        ConfigError: The folder holds a benchmark of another protocol.
    """

    def __init__(self, protocol: Protocol, folder: Path, *, seeds: Sequence[int] = (), isolated: bool = True) -> None:
        self.protocol, self.folder, self.isolated = protocol, folder, isolated
        self.seeds = list(dict.fromkeys(seeds)) or [protocol.seed()]
        self._check_protocol()

    def _check_protocol(self) -> None:
        known = read_json(self.folder / PROTOCOL_FILE)
        now = json.loads(json.dumps({"dataset": self.protocol.dataset, **self.protocol.shared}, default=str))
        for name in now:
            # A benchmark of an earlier version lacks names that came later.
            if name in known and known[name] != now[name]:
                raise ConfigError(
                    f"{self.folder} holds a benchmark with {name}={known[name]!r}, and now it is {now[name]!r}: "
                    "the results could not stand in one table; use another folder"
                )

    def run(self, tell: Callable[[str], None] = lambda text: None) -> Leaderboard:
        """Train what is left to be trained, and return the table, which is in the folder too.

        Args:
            tell: Called with a line for each training that begins, ends or was done before.

        Raises:
            CheckpointError: Another process runs a benchmark in the folder.
            DataError: The data set is not there, for any of the models.
            ConfigError: The folder holds a training of the same model with other settings.
        """
        self._require_data()
        self.folder.mkdir(parents=True, exist_ok=True)
        holder = RunLock(self.folder / ".work")
        state = STOPPED
        try:
            text = json.dumps({"dataset": self.protocol.dataset, **self.protocol.shared}, default=str)
            replace_text(self.folder / PROTOCOL_FILE, text)
            self._check_settings()
            for seed in self.seeds:
                for model in self.protocol.models:
                    self._train(model, seed, tell)
                    self.leaderboard().write(self.folder)
            state = FINISHED
        finally:
            holder.end(state)
        return self.leaderboard()

    def _require_data(self) -> None:
        """Say once, and not of each model, that there is nothing to train on."""
        for model, seed in product(self.protocol.models, self.seeds):
            known = Record.read(self._place(model, seed))
            if known is None or known.state != DONE:
                with suppress(ConfigError):  # what is wrong with a model is told when its turn comes
                    config = self.protocol.config(model)
                    if config["dataset"] != demo_shop.NAME:
                        require_folder(str(config["dataset"]), Path(config["data_path"]))
                    return

    def leaderboard(self) -> Leaderboard:
        """Return the table of what is there, models of earlier starts included."""
        found = [Record.read(path) for path in sorted((self.folder / "runs").glob("*"))]
        records = [one for one in found if one is not None]
        made = self.protocol
        return Leaderboard(
            records, dataset=str(made.dataset), shared=made.shared, bigger=made.bigger, remarks=made.notes
        )

    def run_folders(self) -> list[Path]:
        """Return the folders of the trainings of which there is anything to see, the best model first."""
        order = [line.model for line in self.leaderboard().lines]
        paths = [path for path in sorted((self.folder / "runs").glob("*")) if (path / "checkpoints").is_dir()]
        place = {model: position for position, model in enumerate(order)}
        return sorted(paths, key=lambda path: place.get(path.name.rpartition("-")[0], len(order)))

    def _place(self, model: str, seed: int) -> Path:
        return self.folder / "runs" / f"{model}-{seed}"

    def _check_settings(self) -> None:
        """Write down the settings of each model; refuse to go on with a training of other settings."""
        for model in self.protocol.models:
            try:
                settings = storable(self.protocol.config(model).plain())
            except ConfigError:
                continue  # what is wrong with it is told when its turn comes
            path = self.folder / settings_file(model)
            path.parent.mkdir(exist_ok=True)
            # Those of other seeds too: one line of the table is their mean.
            for run in sorted((self.folder / "runs").glob(f"{model}-*")):
                self._require_same(model, run, settings)
            replace_text(path, to_yaml(settings))

    def _require_same(self, model: str, run: Path, settings: dict[str, Any]) -> None:
        begun = read_json(run / "settings.json")
        now = json.loads(json.dumps(settings, default=str))
        for name in sorted({*begun, *now} - set(OWN)) if begun else ():
            if begun.get(name) != now.get(name):
                raise ConfigError(
                    f"{run} was begun with {name}={begun.get(name)!r}, and now {model} has {now.get(name)!r}; use "
                    "another folder, or remove this one"
                )

    def _train(self, model: str, seed: int, tell: Callable[[str], None]) -> None:
        run = self._place(model, seed)
        known = Record.read(run)
        if known is not None and known.state == DONE:
            tell(f"{model}, seed {seed}: done before")
            return
        tell(f"{model}, seed {seed}: {'resumes' if (run / 'checkpoints').is_dir() else 'begins'}")
        record = self._record(model, seed, run)
        tell(f"{model}, seed {seed}: {_ended(record, str(self.protocol.shared['valid_metric']).lower())}")

    def _record(self, model: str, seed: int, run: Path) -> Record:
        more = {"run_dir": str(run), "show_progress": False}
        try:
            config = self.protocol.config(model, seed, **more)
        except ConfigError as error:
            record = Record(model, seed, FAILED, f"ConfigError: {error}")
            record.write(run)
            return record
        run.mkdir(parents=True, exist_ok=True)
        replace_text(run / "settings.json", json.dumps(storable(config.plain()), default=str))
        if not self.isolated:
            return train_entry(model, config, run)
        (run / "bench.json").unlink(missing_ok=True)
        died = run_subprocess(
            {
                "name": model,
                "model": self.protocol.named[model],
                "dataset": self.protocol.dataset,
                "files": self.protocol.files,
                "settings": {**self.protocol.settings(model, seed), **more},
                "folder": str(run),
            },
            run,
        )
        found = Record.read(run)
        if found is None:
            found = Record(model, seed, FAILED, died or "its process left no result")
            found.write(run)
        return found


def _ended(record: Record, metric: str) -> str:
    if record.state != DONE:
        return f"failed: {record.error.splitlines()[0] if record.error else 'for no known reason'}"
    value = record.test.get(metric.replace(" ", ""))
    shown = "" if value is None else f"{metric} {value:.4f}, "
    return f"{shown}{record.epochs} epoch{'' if record.epochs == 1 else 's'}"
