"""Keeping a run in its folder: what lies in it already, its checkpoints, its end."""

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from treadle.checkpoint.format.manifest import require_facts
from treadle.checkpoint.run_state import RunState
from treadle.checkpoint.saver import Saver
from treadle.checkpoint.store import CheckpointStore
from treadle.checkpoint.tracked import explaining_mismatch
from treadle.errors import CheckpointError, NonFiniteError, some_of
from treadle.execution.choice import FILE
from treadle.loop.interfaces import RunningTrainer
from treadle.loop.nonfinite import RollBack
from treadle.parallel.liveness import PeerLiveness
from treadle.result import find_best, watched_by
from treadle.runs.description import count_parameters, describe_changes, describe_loss, describe_run
from treadle.runs.elastic import Split, batch_identity
from treadle.runs.fingerprint import (
    changes,
    environment,
    fingerprint_data,
    fingerprint_model,
    fingerprint_optimizer,
    plain_values,
)
from treadle.runs.folder import RunFolder
from treadle.runs.heartbeat import Heartbeat
from treadle.runs.lock import held_here
from treadle.runs.metrics_file import MetricsFile
from treadle.runs.pretrained import keep_pretrained
from treadle.runs.provenance import files_named, origin
from treadle.schedules.extend import SCHEDULED, fit_schedule

PATIENCE_AFTER_FAILURE = 10.0
"""Seconds that the last checkpoint of a run that failed waits for the parts of other ranks."""


class NoCheckpointer:
    """Keeps nothing of a run: what a run without a folder has.

    Attributes:
        unsaved: Why the end of the run is not saved, though it should be; empty if it is, or if nothing is kept.
        saves: Whether the run is kept anywhere.
        place: What people call the place where it is kept.
    """

    saves = False

    def __init__(self) -> None:
        self.unsaved, self.place = "", "no folder"
        self._afterwards: list[Callable[[], object]] = []

    def open(self) -> None:
        """Open the folder of the run, and find out whether to resume from a checkpoint in it."""

    def begin(self, *, first: bool, fresh: bool) -> None:
        """Take note that the run moves on from where it is.

        Args:
            first: Whether this start of the run has not moved before.
            fresh: Whether the run begins here.
        """

    def log(self, line: str) -> None:
        """Write a line into the log of the run."""

    def save(self, *, best: bool = False, finished: bool = False) -> None:
        """Save the run as it is now: after an update, or between two epochs."""

    def improved(self, *, evaluated: bool) -> bool:
        """Whether there is a new value of the metric that checkpoints are judged by, and it is the best so far."""
        return False

    def check(self) -> None:
        """Act on a checkpoint that could not be written in the background."""

    def wait(self) -> None:
        """Wait until nothing is being written."""

    def forget_place(self) -> None:
        """Save again where the run is, even if it was saved here: something of this place is to be made anew."""

    def finish(self) -> None:
        """Save the end of the run and wait until it is on disk."""

    def roll_back(self, request: RollBack) -> None:
        """Go back to the last checkpoint before the bad step, whose data will be skipped."""
        raise AssertionError("a run that rolls back has a folder")

    def abandon(self, *, waits: bool) -> None:
        """Hold nobody up: the run failed."""

    def afterwards(self, action: Callable[[], object]) -> None:
        """Have `action` called once the files of this run are complete and closed, however the run ends."""
        self._afterwards.append(action)

    def close(self, *, waits: bool) -> None:
        """Close the files of the run; a checkpoint being written is completed, here or when the process ends."""
        actions, self._afterwards = self._afterwards, []
        for action in actions:
            action()


class RunCheckpointer(NoCheckpointer):
    """Keeps a run in a folder.

    A door that describes its runs in another way, or keeps more, gives its trainer a subclass by `create_checkpointer`.

    Args:
        trainer: Whose run it is.
        state: What is saved of it.
        folder: The folder of the run.

    Attributes:
        folder: The same.
        saved_at: The step and the epoch of the last checkpoint; None if there is none, or it failed.
    """

    saves = True

    def __init__(self, trainer: RunningTrainer, state: RunState, folder: Path) -> None:
        super().__init__()
        self.trainer, self._state = trainer, state
        self.folder = RunFolder(folder)
        self.place = str(self.folder)
        self.saved_at: tuple[int, int] | None = None
        self._saved_finished = False
        self._save_failure = ""
        self._judged = 0
        self._made_of: dict[str, Any] = {}
        self._metrics_file: MetricsFile | None = None
        processes = trainer.processes
        self.store = CheckpointStore(
            self.folder.checkpoints,
            trainer.this_run.spec.checkpoints,
            rank=processes.rank,
            size=processes.size,
            may_live=PeerLiveness(processes).may_live if processes.distributed else None,
        )
        # Tells the parts of this run's checkpoints from those that a killed run left behind for the same step.
        attempt = str(processes.share(f"{os.getpid()}_{time.time_ns()}"))
        self._saver = Saver(self.store, attempt, trainer.this_run.wake, state.frozen)

    # Opening ------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open the folder, and find out whether to resume from a checkpoint in it."""
        self._made_of = self.made_of()
        step = self.step_to_resume()
        if step is not None:
            with explaining_mismatch(f"the checkpoint {self.store.address(step)}"):
                self.take(step)
        # Only now: a folder that is refused, because it holds another run, keeps its lines and its config.
        if self.trainer.processes.is_main:
            self.open_files(fresh=step is None)

    def open_files(self, *, fresh: bool) -> None:
        """Open the files that lie beside the checkpoints; those of a run that begins are empty."""
        trainer = self.trainer
        self.store.clear_leftovers()
        metrics = MetricsFile(self.folder.path / "metrics.jsonl", trainer.progress, trainer.print)
        if fresh:
            metrics.truncate()
            (self.folder.path / FILE).unlink(missing_ok=True)
        trainer.track(metrics_file=metrics)
        heartbeat = Heartbeat(self.folder.path, trainer.progress)

        def written(records: list[tuple[str, int, Any, str]]) -> None:
            metrics.put(records)
            heartbeat.beat()

        trainer.storage.on_flush = written
        self._metrics_file = metrics
        self.write_config()

    def write_config(self) -> None:
        """Write what the run was asked to do into its folder."""
        config = self.trainer.run_config
        assert config is not None
        self.folder.write_config({**config.to_dict(), **self.described()})

    def step_to_resume(self) -> int | None:
        """Return the step to resume from, the same on every rank; None starts afresh.

        Raises:
            CheckpointError: The folder holds a run and nobody said whether to go on, or nothing in it is whole.
        """
        processes, resume = self.trainer.processes, self.trainer.settings.resume
        # All ranks act on what the first one sees: what a network file system lists may differ between machines.
        steps = processes.share(self.store.steps())
        if resume is None and any(steps):
            raise CheckpointError(
                f"{self.place} already holds a run, at step {steps[-1]}; pass resume='auto' to resume "
                "it, or another run_dir"
            )
        if resume is None or not steps:
            return None
        # Checksums of all files are compared, which reads them whole; so one process does it for all.
        step: int | None = processes.share(self.store.newest_good() if processes.is_main else None)
        if step is None:
            raise CheckpointError(
                f"every checkpoint in {self.store} is damaged (steps {steps}); restore one, or use another run_dir"
            )
        return step

    def take(self, step: int) -> None:
        """Read the checkpoint at `step`, having checked that it is of this run."""
        trainer, store, state = self.trainer, self.store, self._state
        manifest = store.manifest(step)
        require_facts(store.address(step), manifest)
        saved = manifest["identity"]
        # Older checkpoints say how the batch was cut; what a run is known by is its product.
        found = changes({**saved, "batch": batch_identity(saved["batch"])}, self.identity())
        if found:
            listed = "; ".join(found)
            raise CheckpointError(f"the run in {self.place} is another one: {listed}. Start afresh in another run_dir")
        shared = state.read_shared(store, step)
        _require_place(store.address(step), manifest, {**shared["tracked"]["progress"], "ranks": shared["processes"]})
        _require_batch(store.address(step), batch_identity(saved["batch"]), Split.of_state(shared, state.split()))
        own = state.read_own(store, step, shared)
        self._fit_schedule(shared["tracked"], manifest)
        # Before anything is loaded: afterwards the optimizers have the checkpoint's values, and nothing differs.
        self.report_changes(shared["tracked"], manifest)
        # Later checkpoints go only now that this one was found to fit; nobody moves on before they are gone.
        if trainer.processes.is_main:
            store.discard_after(step)
        trainer.processes.barrier()
        store.share_from(step)
        state.restored = (shared, own)
        self.saved_at, self._saved_finished = (step, int(manifest["epoch"])), bool(manifest["finished"])
        # A run that was stopped for good stays stopped; only whoever asks for more of it starts it again.
        if not is_longer(self._planned(), manifest["planned"]):
            trainer.this_run.stop.over = manifest.get("stopped")
        trainer.print(f"resuming from step {step} of {self.place}")

    def _fit_schedule(self, tracked: dict[str, Any], manifest: dict[str, Any]) -> None:
        """Have the schedule go on as the saved one, or as `extend` says if the run has become longer."""
        trainer = self.trainer
        assert trainer.run_config is not None
        unit = "steps" if trainer.this_run.schedule.by_step else "epochs"
        fitted = fit_schedule(
            trainer.scheduler,
            tracked.get("scheduler"),
            saved_steps=manifest["planned"]["steps"],
            steps=trainer.run_config.max_num_train_steps,
            extend=trainer.settings.extend,
            taken=int(tracked["progress"]["step" if trainer.this_run.schedule.by_step else "epoch"]),
            limit=manifest["planned"][unit],
        )
        if fitted is not trainer.scheduler:
            trainer.scheduler = fitted
            trainer.track(scheduler=fitted)

    def report_changes(self, tracked: dict[str, Any], manifest: dict[str, Any]) -> None:
        """Say what is no longer as it was, where the run can go on all the same."""
        trainer = self.trainer
        then, now = manifest["environment"], environment()
        changed = changes(then, now)
        if changed:
            trainer.print("resumed, but not bit for bit: " + "; ".join(changed))
        described = manifest.get("made of")
        if isinstance(described, dict):
            same = then.get("python") == now["python"]
            for line in describe_changes(described, self._made_of, same_python=same):
                trainer.print(line)
        moving = SCHEDULED if self.is_scheduled() else ()
        for name, optimizer in trainer.optimizers().items():
            for change in self._state.of_optimizer(optimizer).changed_arguments(tracked[name], moving):
                trainer.print(f"{name}: {change}; the checkpoint's value is used")

    # Describing ---------------------------------------------------------------------------------------------

    def made_of(self) -> dict[str, Any]:
        """Return what else the run is made of, to be told of if it changes; looked at once, before anything moves."""
        trainer = self.trainer
        given = {
            "training": (trainer._train_dataloader, trainer.train_dataset),
            "evaluation": (trainer._eval_dataloader, trainer.eval_dataset),
        }
        data = {name: getattr(stream, "dataset", dataset) for name, (stream, dataset) in given.items()}
        verbs = [verb for verb in (getattr(type(trainer), "calculate_train_batch_loss", None),) if verb is not None]
        settings = {
            "gradient_clip_value": trainer.settings.gradient_clip_value,
            "clip_norm": trainer.settings.clip_norm,
            # What a partial binds is often an object that shows itself by its place in memory.
            "collate_fn": describe_loss(getattr(trainer.collate_fn, "func", trainer.collate_fn)),
        }
        seed, loss_func = trainer.seed, trainer.loss_func
        return describe_run(trainer.model, loss_func, seed=seed, data=data, verbs=verbs, settings=settings)

    def is_scheduled(self) -> bool:
        """Whether a schedule moves the arguments of optimizers, so that other values than at the start are no news."""
        return self.trainer.scheduler is not None

    def described(self) -> dict[str, Any]:
        """Return what is trained and how, for people who compare runs."""
        trainer = self.trainer
        optimizers = {
            name: {"class": type(optimizer).__name__, **plain_values(optimizer.defaults)}
            for name, optimizer in trainer.optimizers().items()
        }
        scheduler = None if trainer.scheduler is None else type(trainer.scheduler).__name__
        return {"model": type(trainer.model).__name__, "optimizers": optimizers, "scheduler": scheduler}

    def identity(self) -> dict[str, Any]:
        """Return what must be the same for a run to go on: model, optimizers, data and how they are split."""
        trainer, config = self.trainer, self.trainer.run_config
        assert config is not None
        data = getattr(trainer._train_dataloader, "known_by", None)
        return {
            "model": trainer.parallel.fingerprint or fingerprint_model(trainer.model),
            "optimizer": {
                name: trainer.parallel.prints.get(id(one)) or fingerprint_optimizer(one)
                for name, one in trainer.optimizers().items()
            },
            "data": fingerprint_data(trainer.train_dataset if data is None else data),
            "batch": batch_identity(
                {
                    "per device": config.train_per_device_batch_size,
                    "accumulation": config.gradient_accumulation_steps,
                    "processes": trainer.parallel.data_size,
                }
            ),
            "precision": trainer.precision.initial,
        }

    def sources(self) -> list[Any]:
        """Return what names the files that the run reads: the command line and the data sets."""
        streams = (self.trainer._train_dataloader, self.trainer._eval_dataloader)
        return [sys.argv[1:], *(getattr(stream, "dataset", None) for stream in streams)]

    def _planned(self) -> dict[str, int | None]:
        """Return how long the run is to be."""
        config = self.trainer.run_config
        assert config is not None
        return {"steps": config.max_num_train_steps, "epochs": config.num_epochs}

    def facts(self, *, best: bool, finished: bool) -> dict[str, Any]:
        """Return what the manifest of a checkpoint says of the run."""
        return {
            "epoch": self.trainer.progress.epoch,
            "identity": self.identity(),
            "environment": environment(),
            "planned": self._planned(),
            "best": best,
            "finished": finished,
            "stopped": self.trainer.this_run.stop.over,
            "made of": self._made_of,
        }

    # Going on -----------------------------------------------------------------------------------------------

    def begin(self, *, first: bool, fresh: bool) -> None:
        """Take note that the run moves on from where it is.

        A run that begins is saved at once: what it was built and seeded with may differ when it is started again.
        """
        self._judged = self._judgements()
        if not first:
            return
        lock = held_here(self.folder.path)
        if lock is not None:
            lock.note_begin()
        self._write_manifest()
        self._keep_pretrained()
        if fresh:
            self.save()

    def _keep_pretrained(self) -> None:
        """Write what a model of transformers, and a tokenizer, are built again from."""
        trainer = self.trainer
        if not trainer.processes.is_main:
            return
        data = trainer.this_run.data
        sources = (data, getattr(data.training, "source", None), getattr(data.evaluation, "source", None))
        keep_pretrained(self.folder.path, trainer.model, sources, trainer.print)

    def _write_manifest(self) -> None:
        trainer, folder = self.trainer, self.folder
        if not trainer.processes.is_main:
            return
        facts = {"step": trainer.progress.step, "seed": trainer.seed, "identity": self.identity()}
        facts |= {"environment": environment(), "processes": trainer.processes.size}
        trained, frozen = count_parameters(trainer.model, trainer.optimizers().values())
        facts["parameters"] = {"trained": trained, "frozen": frozen}
        watched = watched_by(trainer)
        if watched is not None:
            facts["watched"] = {"metric": watched[0], "greater_is_better": watched[1]}
        made_from = origin(self.sources(), deterministic=trainer.this_run.spec.deterministic, but=folder.path)
        # Before the manifest is written: it is compared with the files that the last start wrote down there.
        self._report_files()
        folder.write_manifest({**facts, **made_from})

    def _report_files(self) -> None:
        """Say which files that the data sets name are not what they were when the run was last started."""
        before = self.folder.manifest().get("files")
        now = files_named(*self.sources()[1:], but=self.folder.path)
        known = before if isinstance(before, dict) and self.trainer.progress.step else {}
        changed = sorted(path for path, checksum in now.items() if known.get(path, checksum) != checksum)
        if changed:
            self.trainer.print(
                f"files of the data have changed since the run was last started: {some_of(changed, 3)}; it continues "
                "with these"
            )

    def log(self, line: str) -> None:
        """Write a line into the log of the run, on the first process."""
        if self.trainer.processes.is_main:
            self.folder.log(line)

    # Saving -------------------------------------------------------------------------------------------------

    def save(self, *, best: bool = False, finished: bool = False) -> None:
        """Save the run as it is now: after an update, or between two epochs.

        Args:
            best: Whether it is the best so far.
            finished: Whether the run has come to its end.

        Raises:
            CheckpointError: This or the previous checkpoint could not be written, and that ends the run.
            NonFiniteError: Weights or losses are not finite.
        """
        trainer = self.trainer
        place = (trainer.progress.step, trainer.progress.epoch)
        saved = place == self.saved_at and not best and (self._saved_finished or not finished)
        if saved and not trainer.processes.distributed:
            return
        log = trainer.this_run.log
        # A save may have failed on some ranks only, and all of them must make the next one together.
        due, bad = map(bool, trainer.processes.reduce([float(not saved), float(log.sees_bad_loss)], "max"))
        if not due:
            return
        if bad:
            log.write()
        # One norm over all weights, which the host reads: weights of nan must not take the place of a good checkpoint.
        log.check_weights()
        # Those of the first rank are written: whoever goes on from here, now or after a kill, goes on with the same.
        trainer.parallel.share_buffers(trainer.model)
        facts = self.facts(best=best, finished=finished)
        # Before the next save begins, which would otherwise fail by the error of the last one.
        self.wait_or_report()
        try:
            self._saver.save(trainer.progress.step, self._state.state_dict, facts, after=self.file_writer())
            self.saved_at, self._saved_finished = place, finished
        except CheckpointError as error:
            self._report_failed_save(error)

    def file_writer(self) -> threading.Thread | None:
        """Return the thread that writes a file which the state of the run counts on; None where there is none."""
        return None

    def _report_failed_save(self, error: CheckpointError) -> None:
        self.saved_at = None
        if self.trainer.this_run.spec.checkpoints.on_error == "raise":
            raise error
        self._save_failure = str(error)
        self.trainer.print(f"continuing without a checkpoint: {error}")

    def wait(self) -> None:
        """Wait until nothing is being written.

        Raises:
            CheckpointError: What was being written could not be.
        """
        self._saver.wait()

    def wait_or_report(self) -> None:
        """Wait for a checkpoint being written; if it failed, that is reported and costs no other."""
        try:
            self._saver.wait()
        except CheckpointError as error:
            self._report_failed_save(error)

    def check(self) -> None:
        """Act on a checkpoint that could not be written in the background."""
        try:
            self._saver.check()
        except CheckpointError as error:
            self._report_failed_save(error)

    def point(self, name: str) -> None:
        """Have the checkpoint of the step under way known by another name, too."""
        self._saver.wait()
        if self.trainer.processes.is_main:
            self.store.point(name, self.trainer.progress.step)
        # Every process finds the checkpoint and its name from here on.
        self.trainer.processes.barrier()

    def forget_place(self) -> None:
        """Save again where the run is, even if it was saved here: something of this place is to be made anew."""
        self.saved_at = None

    # The best -----------------------------------------------------------------------------------------------

    def _judgements(self) -> int:
        name = self.trainer.this_run.spec.checkpoints.best
        return 0 if name is None else len(self.trainer.run_history.get_metric_values(name))

    def improved(self, *, evaluated: bool) -> bool:
        """Whether there is a new value of the metric that checkpoints are judged by, and it is the best so far.

        Args:
            evaluated: Whether an evaluation has just ended, which should have reported it.

        Raises:
            UnknownMetricError: An evaluation ended and did not report it.
        """
        policy, history = self.trainer.this_run.spec.checkpoints, self.trainer.run_history
        name = policy.best
        if name is None:
            return False
        values = history.get_metric_values(name)
        if evaluated and not values:
            # Asked for its error alone, which lists the metrics that were reported.
            history.get_latest_metric(name)
        # Counted and not compared: an evaluation may give the same value twice.
        judged, self._judged = self._judged, len(values)
        best = find_best(name, values, greater_is_better=policy.keeps_greatest)
        own = len(values) > judged and best is not None and best.position == len(values) - 1
        # A metric of the user's own may differ from rank to rank, and all of them must save together or not at all.
        return bool(self.trainer.processes.share(own))

    # Going back ---------------------------------------------------------------------------------------------

    def roll_back(self, request: RollBack) -> None:
        """Go back to the last checkpoint before the bad step, whose data will be skipped.

        Raises:
            NonFiniteError: There is no such checkpoint, or it happened too often.
        """
        trainer, store, state = self.trainer, self.store, self._state
        skipped = trainer.this_run.updater.skipped.steps
        if len(skipped) >= trainer.this_run.spec.max_rollbacks:
            raise NonFiniteError(
                f"{request}, after {trainer.this_run.spec.max_rollbacks} rollbacks; lower the learning rate"
            )
        # The checkpoint to go back to may be the one that is being written.
        self._saver.wait()
        is_main = trainer.processes.is_main
        step: int | None = trainer.processes.share(store.newest_good(before=request.step) if is_main else None)
        if step is None:
            raise NonFiniteError(f"{request}, before the first checkpoint; lower the learning rate or save_every")
        if is_main:
            store.discard_after(step)
        trainer.processes.barrier()
        shared = state.read_shared(store, step)
        # Put into the state and not only into the run, since `restore` loads the list of the checkpoint over it.
        shared["tracked"]["poisoned"] = {"steps": sorted({*skipped, request.step})}
        state.restored = (shared, shared if is_main else store.read(step))
        # Checkpoints above that step are gone: a place that was saved before has to be saved once more.
        self.saved_at = None
        state.restore()
        # The next step at which something is due was worked out for a later place than the run is at now.
        trainer.this_run.wake()
        trainer.print(f"{request}: back to step {step}, and the data of step {request.step} is skipped")

    # The end ------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Save the end of the run and wait until it is on disk; one that was cut inside an epoch is saved there."""
        run = self.trainer.this_run
        best = self.improved(evaluated=False)
        for first in (True, False):
            # Twice, for a failure of the save before this one is only found now.
            if not run.epoch_is_cut:
                self.save(best=best and (first or self.saved_at is None), finished=not run.stop.pauses)
            self.wait_or_report()
        if self.saved_at is None:
            self._note_unsaved()

    def _note_unsaved(self) -> None:
        """Say that the end of the run is lost when the process is, and have the status of the run say so too."""
        step = self.trainer.progress.step
        self.unsaved = f"the run came to its end, step {step}, which is not saved: {self._save_failure}"
        self.trainer.print(self.unsaved)
        lock = held_here(self.folder.path)
        if lock is not None:
            lock.note_unsaved(self.unsaved)

    def abandon(self, *, waits: bool) -> None:
        """Wait for other ranks no longer than need be: the run failed."""
        self._saver.abandon(PATIENCE_AFTER_FAILURE if waits else 0)

    def close(self, *, waits: bool) -> None:
        """Close the files of the run; a checkpoint being written is completed, here or when the process ends."""
        trainer = self.trainer
        if waits:
            try:
                self._saver.wait()
            except CheckpointError as error:
                trainer.print(str(error))
        self._keep_folder_while_writing()
        if self._metrics_file is not None:
            trainer.storage.flush()
            self._metrics_file.close()
            # What is saved of the trainer from now on is of no file.
            trainer.tracked.remove("metrics_file")
        trainer.storage.on_flush = None
        super().close(waits=waits)

    def _keep_folder_while_writing(self) -> None:
        """Let nobody else into the folder while a checkpoint is still being written into it."""
        writer, lock = self._saver.writer(), held_here(self.folder.path)
        if writer is not None and lock is not None:
            lock.hold_for(writer)


def _require_place(path: str, manifest: dict[str, Any], place: dict[str, Any]) -> None:
    """Refuse a checkpoint whose state says that it is of another moment than its manifest does."""
    for name in ("step", "epoch", "ranks"):
        if type(place[name]) is not int or place[name] != manifest[name]:
            raise CheckpointError(
                f"{path} was edited: its manifest says {name} {manifest[name]}, its state says {place[name]!r}; "
                "restore it, or move it away to resume from the one before"
            )


def _require_batch(path: str, batch: dict[str, Any], split: Split) -> None:
    """Refuse a checkpoint whose state shares out other batches than its manifest says it had."""
    whole = batch.get("global")
    if whole is not None and split.batch_size is not None and whole % (split.batch_size * split.data):
        raise CheckpointError(
            f"{path} was edited: its manifest says batches of {whole} samples, its state {split.batch_size} on each of "
            f"{split.data}; restore it, or move it away to resume from the one before"
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
