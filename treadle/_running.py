"""Keeping a run: its folder, its checkpoints, going on from one, and leaving in good order."""

import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from treadle._setup import SetUp
from treadle.checkpoint import CheckpointStore, Saver
from treadle.errors import CheckpointError, NonFiniteError
from treadle.fingerprint import (
    changes,
    environment,
    fingerprint_data,
    fingerprint_model,
    fingerprint_optimizer,
    plain_values,
)
from treadle.gradients import norm_of
from treadle.leaving import LeavingRequests, leave
from treadle.metrics_file import MetricsFile
from treadle.nonfinite import REMEDY, RollBack
from treadle.parallel.peers import Peers
from treadle.provenance import origin
from treadle.resplitting import batch_identity
from treadle.result import find_best
from treadle.run_folder import RunFolder
from treadle.schedules.extending import SCHEDULED, fit_schedule

PATIENCE_AFTER_FAILURE = 10.0
"""Seconds that the last checkpoint of a run that failed waits for the parts of other ranks."""


class Running(SetUp):
    """What a trainer with a run folder does around the loop; without one it does nothing."""

    _saver: Saver | None = None
    _restored: tuple[dict[str, Any], dict[str, Any]] | None = None
    _cut = False
    _stop_reason: str | None = None
    _foreign_epoch = _told_of_rounding = False

    def _open_run(self) -> None:
        """Open the run's folder and find out whether to go on from a checkpoint in it."""
        self._folder = self._saver = self._restored = None
        self._cut = False
        self._stop_reason = None
        self._stops_for_good = self._pauses = False
        self._told_of_rounding = False
        self._saved_at: tuple[int, int] | None = None
        self._saved_finished = False
        self._judged = 0
        self._started_at: int | None = None
        self._metrics_file: MetricsFile | None = None
        self._afterwards: list[Callable[[], None]] = []
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
        attempt = str(self.processes.share(f"{os.getpid()}_{time.time_ns()}"))
        self._saver = Saver(store, attempt, self._come_back)
        step = self._step_to_resume(store)
        if step is not None:
            self._take_checkpoint(store, step)
        if self.processes.is_main:
            self._open_files(store, fresh=step is None)

    def _open_files(self, store: CheckpointStore, *, fresh: bool) -> None:
        assert self._folder is not None
        store.clear_leftovers()
        metrics = MetricsFile(self._folder.path / "metrics.jsonl", self.progress)
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
        saved = manifest["identity"]
        found = changes({**saved, "batch": batch_identity(saved["batch"])}, self._identity())
        if found:
            listed = "; ".join(found)
            raise CheckpointError(
                f"the run in {self.run_dir} is another one: {listed}. Start afresh in another run_dir"
            )
        shared = self._read_shared(store, step)
        own = self._read_own(store, step, shared)
        self._fit_schedule(shared["tracked"], manifest)
        self._report_changes(shared["tracked"], manifest)
        if self.processes.is_main:
            store.discard_after(step)
        self.processes.barrier()
        self._restored = (shared, own)
        self._saved_at, self._saved_finished = (step, int(manifest["epoch"])), bool(manifest["finished"])
        if not is_longer(self._planned(), manifest["planned"]):
            self._stop_reason = manifest.get("stopped")
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
        changed = changes(manifest["environment"], environment())
        if changed:
            self.print("resumed, but not bit for bit: " + "; ".join(changed))
        moving = SCHEDULED if self._is_scheduled() else ()
        for name, optimizer in self.optimizers().items():
            for change in self._optimizer_state(optimizer).changed_arguments(tracked[name], moving):
                self.print(f"{name}: {change}; the checkpoint's value is used")

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
        data = getattr(self._train_dataloader, "dataset", None)
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

    def _resume(self, *, partly: bool = False) -> None:
        """Load the state to go on from: once for the start events to see, and again where they may have moved it.

        Args:
            partly: Whether some of what the state is of may still be missing, to be tracked at the start of the run.
        """
        if self._restored is None and self.settings.resume_from is not None and self._started_at is None:
            self._restored = self._read_training_state(self.settings.resume_from)
        if self._restored is not None:
            self._load_state(*self._restored, partly=partly)

    def _stay_stopped(self, reason: str) -> str:
        """Say that the run was over when it was started, and why; return that."""
        self._stopped = True
        self.print(f"the run is over: {reason}; it goes on with a larger num_epochs or max_steps")
        return reason

    def _resumed(self) -> None:
        """Forget the state that was loaded: the run is where it was, and moves on.

        A run that begins is saved at once: what it was built and seeded with may differ when it is started again.
        """
        fresh = self._restored is None
        self._restored = None
        self._judged = self._judgements()
        if self._started_at is None:
            self._started_at = self.progress.step
            self._write_manifest()
            if fresh:
                self._save()

    def _write_manifest(self) -> None:
        if self._folder is not None and self.processes.is_main:
            facts = {"step": self.progress.step, "seed": self.seed, "identity": self._identity()}
            facts |= {"environment": environment(), "processes": self.processes.size}
            made_from = origin(self._sources(), deterministic=self.deterministic, but=self._folder.path)
            self._folder.write_manifest({**facts, **made_from})

    def _sources(self) -> list[Any]:
        """Return what names the files that the run reads: the command line and the data sets."""
        streams = (self._train_dataloader, self._eval_dataloader)
        return [sys.argv[1:], *(getattr(stream, "dataset", None) for stream in streams)]

    # Saving -----------------------------------------------------------------------------------------------

    def _save(self, *, best: bool = False, finished: bool = False) -> None:
        """Save the run as it is now: after an update, or between two epochs."""
        place = (self.progress.step, self.progress.epoch)
        saved = place == self._saved_at and not best and (self._saved_finished or not finished)
        if self._saver is None or (saved and not self.processes.distributed):
            return
        # Where bad updates are left out, the weights are good whatever the losses are.
        bad = self._loss_tracker.read() is not None and self._gate_in_use is None
        # A save may have failed on some ranks only, and all of them must make the next one together.
        due, bad = map(bool, self.processes.reduce([float(not saved), float(bad)], "max"))
        if not due:
            return
        if bad:
            self._log()
        self._check_weights()
        facts = self._facts(best=best, finished=finished)
        self._wait_for_saver()
        try:
            self._saver.save(self.progress.step, self._state, facts)
            self._saved_at, self._saved_finished = place, finished
        except CheckpointError as error:
            self._report_failed_save(error)

    def _facts(self, *, best: bool, finished: bool) -> dict[str, Any]:
        """Return what the manifest of a checkpoint says of the run."""
        return {
            "epoch": self.progress.epoch,
            "identity": self._identity(),
            "environment": environment(),
            "planned": self._planned(),
            "best": best,
            "finished": finished,
            "stopped": self._stop_reason,
        }

    def _planned(self) -> dict[str, int | None]:
        """Return how long the run is to be."""
        assert self.run_config is not None
        return {"steps": self.run_config.max_num_train_steps, "epochs": self.run_config.num_epochs}

    def _check_weights(self) -> None:
        """Refuse to keep weights that are not finite, which a bad gradient leaves before any loss shows it.

        Raises:
            NonFiniteError: They are not.
            RollBack: They are not, and the run may go back.
        """
        if not self.progress.step or self._weights_are_finite():
            return
        if self.on_nonfinite == "rollback":
            raise RollBack(self.progress.step, math.nan)
        raise NonFiniteError(f"the weights are not finite after step {self.progress.step}; {REMEDY}")

    def _weights_are_finite(self) -> bool:
        norm = self.parallel.norm_of_weights()
        if norm is not None:
            return bool(torch.isfinite(norm))
        weights = [parameter.detach() for parameter in self.model.parameters() if parameter.is_floating_point()]
        return not weights or bool(torch.isfinite(norm_of(weights)))

    def _report_failed_save(self, error: CheckpointError) -> None:
        self._saved_at = None
        if self.checkpoint_policy.on_error == "raise":
            raise error
        self.print(f"going on without a checkpoint: {error}")

    def _come_back(self) -> None:
        """Have the loop look at what is due after the next step; called from other threads and signal handlers."""
        self._next_due = 0

    def _wait_for_saver(self) -> None:
        """Wait for a checkpoint being written; if it failed, that is reported and costs no other."""
        assert self._saver is not None
        try:
            self._saver.wait()
        except CheckpointError as error:
            self._report_failed_save(error)

    def _check_saver(self) -> None:
        if self._saver is not None:
            try:
                self._saver.check()
            except CheckpointError as error:
                self._report_failed_save(error)

    def _judgements(self) -> int:
        name = self.checkpoint_policy.best
        return 0 if name is None else len(self.run_history.get_metric_values(name))

    def _improved(self, *, evaluated: bool) -> bool:
        """Whether there is a new value of the metric that checkpoints are judged by, and it is the best so far.

        Args:
            evaluated: Whether an evaluation has just ended, which should have reported it.

        Raises:
            UnknownMetricError: An evaluation ended and did not report it.
        """
        name = self.checkpoint_policy.best
        if name is None or self._saver is None:
            return False
        values = self.run_history.get_metric_values(name)
        if evaluated and not values:
            self.run_history.get_latest_metric(name)
        judged, self._judged = self._judged, len(values)
        best = find_best(name, values, greater_is_better=self.checkpoint_policy.greater_is_better)
        own = len(values) > judged and best is not None and best.position == len(values) - 1
        # A metric of the user's own may differ from rank to rank, and all of them must save together or not at all.
        return bool(self.processes.share(own))

    def _finish_run(self, *, stopped: bool) -> None:
        """Save the end of the run and wait until it is on disk; one that was cut inside an epoch is saved there."""
        if not stopped:
            self._check_weights()
        if self._saver is None:
            return
        best = self._improved(evaluated=False)
        for first in (True, False):
            # Twice, for a failure of the save before this one is only found now.
            if not self._cut:
                self._save(best=best and (first or self._saved_at is None), finished=not self._pauses)
            self._wait_for_saver()

    @contextmanager
    def _closing_run(self) -> Iterator[None]:
        """Close what the run opened, however it ends."""
        waits = True
        try:
            yield
        except BaseException as error:
            # Whoever interrupts a second time wants to be gone; and after a failure other ranks may be dead.
            waits = not isinstance(error, KeyboardInterrupt)
            if self._saver is not None:
                self._saver.abandon(PATIENCE_AFTER_FAILURE if waits else 0)
            raise
        finally:
            self._looping = False
            try:
                self._close_streams()
            finally:
                self._close_run(waits=waits)

    def _close_run(self, *, waits: bool) -> None:
        """Close the files of the run; a checkpoint being written is completed, here or when the process ends."""
        if self._saver is not None and waits:
            try:
                self._saver.wait()
            except CheckpointError as error:
                self.print(str(error))
        if self._metrics_file is not None:
            self.storage.flush()
            self._metrics_file.close()
        self.storage.on_flush = None
        actions, self._afterwards = self._afterwards, []
        for action in actions:
            action()

    def afterwards(self, action: Callable[[], None]) -> None:
        """Have `action` called once the files of this run are complete and closed, however the run ends."""
        self._afterwards.append(action)

    # Loops of the user's ----------------------------------------------------------------------------------

    def _note_foreign_epoch(self) -> None:
        """Take note that the epoch was a loop of the user's, and say once what that means for what is due by steps."""
        self._foreign_epoch = True
        cadences = {"eval_every": self.settings.eval_every, "save_every": self.settings.save_every}
        by_steps = {"eval_every": self._eval_steps, "save_every": self._save_steps}
        rounded = [f"{name}='{cadence}'" for name, cadence in cadences.items() if by_steps[name]]
        if rounded and not self._told_of_rounding:
            self.print(f"{' and '.join(rounded)} round up to the end of an epoch: its loop is your own")
            self._told_of_rounding = True

    def _came_in_foreign_epoch(self, every: int, before: int) -> bool:
        """Whether a time by steps came in an epoch of the user's, which began after `before` of them."""
        return self._foreign_epoch and every > 0 and self.progress.step // every > before // every

    def _evaluation_is_due(self, before: int) -> bool:
        """Whether it is time to evaluate after the epoch that began after `before` steps."""
        cadence = self.settings.eval_every
        by_epoch = cadence is not None and cadence.due_after_epoch(self.progress.epoch + 1)
        return by_epoch or self._came_in_foreign_epoch(self._eval_steps, before)

    # Leaving and rolling back -----------------------------------------------------------------------------

    def _leaving(self) -> AbstractContextManager[Any]:
        """Return the context in which signals ask the run to save itself and leave."""
        self._leave_request = 0
        return LeavingRequests(self._request_leave) if self.run_dir is not None else nullcontext()

    def _request_leave(self, number: int) -> None:
        self._leave_request = number
        self._come_back()

    def _leave_if_asked(self) -> None:
        """Save and leave if a signal asked any process to; every process must come here together.

        Raises:
            KeyboardInterrupt: It was SIGINT.
            PreemptedExit: It was SIGTERM or SIGUSR1.
        """
        if self._saver is None:
            return
        number = int(self.processes.reduce([float(self._leave_request)], "max")[0])
        if number:
            self._save()
            self._saver.wait()
            self._leave_request = 0
            message = f"saved step {self.progress.step} in {self.run_dir}; start the same command to go on"
            self.print(message)
            leave(number, message)

    def _roll_back(self, request: RollBack) -> None:
        """Go back to the last checkpoint before the bad step, whose data will be skipped.

        Raises:
            NonFiniteError: There is no such checkpoint, or it happened too often.
        """
        assert self._saver is not None, "a trainer that rolls back has a folder"
        if len(self._poisoned.steps) >= self.max_rollbacks:
            raise NonFiniteError(f"{request}, after {self.max_rollbacks} rollbacks; lower the learning rate")
        self._saver.wait()
        store = self._saver.store
        good = store.newest_good(before=request.step) if self.processes.is_main else None
        step: int | None = self.processes.share(good)
        if step is None:
            raise NonFiniteError(f"{request}, before the first checkpoint; lower the learning rate or save_every")
        if self.processes.is_main:
            store.discard_after(step)
        self.processes.barrier()
        shared = self._read_shared(store, step)
        shared["tracked"]["poisoned"] = {"steps": sorted({*self._poisoned.steps, request.step})}
        self._restored = (shared, shared if self.processes.is_main else store.read(step))
        self._saved_at = None
        self._resume()
        self._next_due = 0
        self.print(f"{request}: back to step {step}, and the data of step {request.step} is skipped")


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
