"""Opening a run: its folder, what lies in it already, and the state to go on from."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from treadle._setup import SetUp
from treadle.checkpoint import CheckpointStore, Saver
from treadle.checkpoint.manifest import require_facts
from treadle.checkpoint.tracked import telling_misfit
from treadle.errors import CheckpointError
from treadle.fingerprint import (
    changes,
    environment,
    fingerprint_data,
    fingerprint_model,
    fingerprint_optimizer,
    plain_values,
)
from treadle.metrics_file import MetricsFile
from treadle.parallel.peers import Peers
from treadle.provenance import files_named, origin
from treadle.resplitting import Split, batch_identity
from treadle.run_description import describe_loss, describe_run, told_changes
from treadle.run_folder import RunFolder
from treadle.schedules.extending import SCHEDULED, fit_schedule


class Opening(SetUp):
    """How a trainer with a run folder begins a run or takes one up; without a folder it does nothing."""

    _saver: Saver | None = None
    _restored: tuple[dict[str, Any], dict[str, Any]] | None = None
    _cut = False

    def _open_run(self) -> None:
        """Open the run's folder and find out whether to go on from a checkpoint in it."""
        self._folder = self._saver = self._restored = None
        self._cut = False
        self._saved_at: tuple[int, int] | None = None
        self._unsaved = self._save_failure = ""
        self._saved_finished = False
        self._judged = 0
        self._started_at: int | None = None
        self._made_of: dict[str, Any] = {}
        self._metrics_file: MetricsFile | None = None
        self._afterwards: list[Callable[[], object]] = []
        self.storage.on_flush = None
        self._tracked.remove("metrics_file")
        if self.run_dir is None:
            return
        self._folder = RunFolder(self.run_dir)
        store = CheckpointStore(
            self._folder.checkpoints,
            self.checkpoint_policy,
            rank=self.processes.rank,
            size=self.processes.size,
            may_live=Peers(self.processes).may_live if self.processes.distributed else None,
        )
        self._made_of = self._describe_run()
        attempt = str(self.processes.share(f"{os.getpid()}_{time.time_ns()}"))
        self._saver = Saver(store, attempt, self.this_run.wake)
        step = self._step_to_resume(store)
        if step is not None:
            with telling_misfit(f"the checkpoint {store.path(step)}"):
                self._take_checkpoint(store, step)
        if self.processes.is_main:
            self._open_files(store, fresh=step is None)

    def _open_files(self, store: CheckpointStore, *, fresh: bool) -> None:
        assert self._folder is not None
        store.clear_leftovers()
        metrics = MetricsFile(self._folder.path / "metrics.jsonl", self.progress, self.print)
        if fresh:
            metrics.truncate()
        self.track(metrics_file=metrics)
        self.storage.on_flush = metrics.put
        self._metrics_file = metrics
        self._write_config(self._folder)

    def _write_config(self, folder: RunFolder) -> None:
        """Write what the run was asked to do into its folder."""
        assert self.run_config is not None
        folder.write_config({**self.run_config.to_dict(), **self._described()})

    def _step_to_resume(self, store: CheckpointStore) -> int | None:
        """Return the step to go on from, the same on every rank; None starts afresh.

        Raises:
            CheckpointError: The folder holds a run and nobody said whether to go on, or nothing in it is whole.
        """
        resume = self.settings.resume
        steps = self.processes.share(store.steps())
        if resume is None and any(steps):
            raise CheckpointError(
                f"{self.run_dir} already holds a run, at step {steps[-1]}; pass resume='auto' to go on with it, "
                "or another run_dir"
            )
        if resume is None or not steps:
            return None
        step: int | None = self.processes.share(store.newest_good() if self.processes.is_main else None)
        if step is None:
            raise CheckpointError(
                f"every checkpoint in {store.folder} is damaged (steps {steps}); restore one, or use another run_dir"
            )
        return step

    def _take_checkpoint(self, store: CheckpointStore, step: int) -> None:
        """Read the checkpoint at `step`, having checked that it is of this run."""
        manifest = store.manifest(step)
        require_facts(store.path(step), manifest)
        saved = manifest["identity"]
        found = changes({**saved, "batch": batch_identity(saved["batch"])}, self._identity())
        if found:
            listed = "; ".join(found)
            raise CheckpointError(
                f"the run in {self.run_dir} is another one: {listed}. Start afresh in another run_dir"
            )
        shared = self._read_shared(store, step)
        _require_place(store.path(step), manifest, {**shared["tracked"]["progress"], "ranks": shared["processes"]})
        _require_batch(store.path(step), batch_identity(saved["batch"]), Split.of_state(shared, self._split()))
        own = self._read_own(store, step, shared)
        self._fit_schedule(shared["tracked"], manifest)
        self._report_changes(shared["tracked"], manifest)
        if self.processes.is_main:
            store.discard_after(step)
        self.processes.barrier()
        self._restored = (shared, own)
        self._saved_at, self._saved_finished = (step, int(manifest["epoch"])), bool(manifest["finished"])
        if not is_longer(self._planned(), manifest["planned"]):
            self.this_run.stop.over = manifest.get("stopped")
        self.print(f"going on from step {step} of {self.run_dir}")

    def _fit_schedule(self, tracked: dict[str, Any], manifest: dict[str, Any]) -> None:
        """Have the schedule go on as the saved one, or as `extend` says if the run has become longer."""
        assert self.run_config is not None
        unit = "steps" if self._scheduled_by_step else "epochs"
        fitted = fit_schedule(
            self.scheduler,
            tracked.get("scheduler"),
            saved_steps=manifest["planned"]["steps"],
            steps=self.run_config.max_num_train_steps,
            extend=self.settings.extend,
            taken=int(tracked["progress"]["step" if self._scheduled_by_step else "epoch"]),
            limit=manifest["planned"][unit],
        )
        if fitted is not self.scheduler:
            self.scheduler = fitted
            self.track(scheduler=fitted)

    def _report_changes(self, tracked: dict[str, Any], manifest: dict[str, Any]) -> None:
        """Say what is no longer as it was, where the run can go on all the same."""
        then, now = manifest["environment"], environment()
        changed = changes(then, now)
        if changed:
            self.print("resumed, but not bit for bit: " + "; ".join(changed))
        described = manifest.get("made of")
        if isinstance(described, dict):
            same = then.get("python") == now["python"]
            for line in told_changes(described, self._made_of, same_python=same):
                self.print(line)
        moving = SCHEDULED if self._is_scheduled() else ()
        for name, optimizer in self.optimizers().items():
            for change in self._optimizer_state(optimizer).changed_arguments(tracked[name], moving):
                self.print(f"{name}: {change}; the checkpoint's value is used")

    def _describe_run(self) -> dict[str, Any]:
        """Return what else the run is made of, to be told of if it changes; looked at once, before anything moves."""
        given = {
            "training": (self._train_dataloader, self.train_dataset),
            "evaluation": (self._eval_dataloader, self.eval_dataset),
        }
        data = {name: getattr(stream, "dataset", dataset) for name, (stream, dataset) in given.items()}
        verbs = [verb for verb in (getattr(type(self), "calculate_train_batch_loss", None),) if verb is not None]
        settings = {
            "gradient_clip_value": self.settings.clip_value,
            "clip_norm": self.settings.clip_norm,
            # What a partial binds is often an object that shows itself by its place in memory.
            "collate_fn": describe_loss(getattr(self.collate_fn, "func", self.collate_fn)),
        }
        return describe_run(self.model, self.loss_func, seed=self.seed, data=data, verbs=verbs, settings=settings)

    def _is_scheduled(self) -> bool:
        """Whether a schedule moves the arguments of optimizers, so that other values than at the start are no news."""
        return self.scheduler is not None

    def _described(self) -> dict[str, Any]:
        """Return what is trained and how, for people who compare runs."""
        optimizers = {
            name: {"class": type(optimizer).__name__, **plain_values(optimizer.defaults)}
            for name, optimizer in self.optimizers().items()
        }
        scheduler = None if self.scheduler is None else type(self.scheduler).__name__
        return {"model": type(self.model).__name__, "optimizers": optimizers, "scheduler": scheduler}

    def _identity(self) -> dict[str, Any]:
        """Return what must be the same for a run to go on: model, optimizers, data and how they are split."""
        assert self.run_config is not None
        data = getattr(self._train_dataloader, "known_by", None)
        return {
            "model": self.parallel.fingerprint or fingerprint_model(self.model),
            "optimizer": {
                name: self.parallel.prints.get(id(one)) or fingerprint_optimizer(one)
                for name, one in self.optimizers().items()
            },
            "data": fingerprint_data(self.train_dataset if data is None else data),
            "batch": batch_identity(
                {
                    "per device": self.run_config.train_per_device_batch_size,
                    "accumulation": self.run_config.gradient_accumulation_steps,
                    "processes": self.parallel.data_size,
                }
            ),
            "precision": self.precision.initial,
        }

    def _restore(self, *, partly: bool = False) -> None:
        """Load the state to go on from: once for the start events to see, and again where they may have moved it.

        Args:
            partly: Whether some of what the state is of may still be missing, to be tracked at the start of the run.
        """
        if self._restored is None and self.settings.resume_from is not None and self._started_at is None:
            self._restored = self._read_training_state(self.settings.resume_from)
        if self._restored is not None:
            self._load_state(*self._restored, partly=partly)

    def _write_manifest(self) -> None:
        if self._folder is not None and self.processes.is_main:
            facts = {"step": self.progress.step, "seed": self.seed, "identity": self._identity()}
            facts |= {"environment": environment(), "processes": self.processes.size}
            made_from = origin(self._sources(), deterministic=self.deterministic, but=self._folder.path)
            self._report_files(self._folder)
            self._folder.write_manifest({**facts, **made_from})

    def _report_files(self, folder: RunFolder) -> None:
        """Say which files that the data sets name are not what they were when the run was last started."""
        before = folder.manifest().get("files")
        now = files_named(*self._sources()[1:], but=folder.path)
        known = before if isinstance(before, dict) and self.progress.step else {}
        changed = sorted(path for path, checksum in now.items() if known.get(path, checksum) != checksum)
        if changed:
            listed = ", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")
            self.print(
                f"files of the data have changed since the run was last started: {listed}; it goes on with these"
            )

    def _sources(self) -> list[Any]:
        """Return what names the files that the run reads: the command line and the data sets."""
        streams = (self._train_dataloader, self._eval_dataloader)
        return [sys.argv[1:], *(getattr(stream, "dataset", None) for stream in streams)]

    def _planned(self) -> dict[str, int | None]:
        """Return how long the run is to be."""
        assert self.run_config is not None
        return {"steps": self.run_config.max_num_train_steps, "epochs": self.run_config.num_epochs}


def _require_place(path: Path, manifest: dict[str, Any], place: dict[str, Any]) -> None:
    """Refuse a checkpoint whose state says that it is of another moment than its manifest does."""
    for name in ("step", "epoch", "ranks"):
        if type(place[name]) is not int or place[name] != manifest[name]:
            raise CheckpointError(
                f"{path} was edited: its manifest says {name} {manifest[name]}, its state says {place[name]!r}; "
                "restore it, or move it away to go on from the one before"
            )


def _require_batch(path: Path, batch: dict[str, Any], split: Split) -> None:
    """Refuse a checkpoint whose state shares out other batches than its manifest says it had."""
    whole = batch.get("global")
    if whole is not None and split.batch_size is not None and whole % (split.batch_size * split.data):
        raise CheckpointError(
            f"{path} was edited: its manifest says batches of {whole} samples, its state {split.batch_size} on each of "
            f"{split.data}; restore it, or move it away to go on from the one before"
        )


def is_longer(now: dict[str, int | None], then: dict[str, int | None]) -> bool:
    """Whether a run of these limits is to be longer than one of those, or is limited otherwise.

    >>> is_longer({"steps": 30, "epochs": 3}, {"steps": 20, "epochs": 2})
    True
    >>> is_longer({"steps": None, "epochs": 2}, {"steps": None, "epochs": 3})
    False
    """
    for unit in ("steps", "epochs"):
        own, other = now[unit], then[unit]
        if own is not None and other is not None:
            return own > other
    return now != then
