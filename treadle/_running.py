"""Keeping a run: its checkpoints, its end, leaving it in good order and going back in it."""

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch.optim import Optimizer

from treadle._opening import Opening
from treadle.errors import CheckpointError, NonFiniteError
from treadle.fingerprint import environment
from treadle.gradients import norm_of
from treadle.kept import kept_by
from treadle.leaving import EvaluationLeft, LeavableEvaluation
from treadle.loop.cadence import AGREEMENT_STEPS
from treadle.nonfinite import REMEDY, RollBack
from treadle.parallel import local_updates
from treadle.progress import AFTER_STEP
from treadle.result import find_best
from treadle.run_lock import held_here

PATIENCE_AFTER_FAILURE = 10.0
"""Seconds that the last checkpoint of a run that failed waits for the parts of other ranks."""


class Running(Opening):
    """What a trainer with a run folder does around the loop; without one it does nothing."""

    how_to_resume = "start the same command to go on"
    """What a run that was asked to leave says after where it is saved."""
    leaves_by_itself = True
    """Whether `train` leaves where a signal came at its end; a door that has more to do then leaves after that."""

    @property
    def is_cut_short(self) -> bool:
        """Whether the limit of steps ended the epoch under way before its data did."""
        return self._cut

    def _stay_stopped(self, reason: str) -> str:
        """Say that the run was over when it was started, and why; return that."""
        self.this_run.stop.stopped = True
        self.print(f"the run is over: {reason}; it goes on with a larger num_epochs or max_steps")
        return reason

    def _note_start(self) -> None:
        """Forget the state that was loaded: the run is where it was, and moves on.

        A run that begins is saved at once: what it was built and seeded with may differ when it is started again.
        """
        fresh = self._restored is None
        self._restored = None
        self._judged = self._judgements()
        if self._started_at is None:
            self._started_at = self.progress.step
            lock = None if self.run_dir is None else held_here(self.run_dir)
            if lock is not None:
                lock.note_begin()
            self._write_manifest()
            if fresh:
                self._save()

    def _tell_of_untracked(self) -> None:
        """Say which optimizers the trainer keeps that no checkpoint will hold."""
        if self._saver is None:
            return
        given = list(self.optimizers().values())
        for name, value in kept_by(self):
            if isinstance(value, Optimizer) and not any(value is one for one in given):
                given.append(value)
                if not self._tracked.holds(value):
                    called = name.rpartition(".")[2]
                    self.print(
                        f"{called}, of type {type(value).__name__}, is not saved with the run, and begins anew when it "
                        "is resumed; call trainer.track(name=...) with it and with what it trains"
                    )

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
        # Those of the first rank are written: whoever goes on from here, now or after a kill, goes on with the same.
        self.parallel.share_buffers(self.model)
        facts = self._facts(best=best, finished=finished)
        self._wait_for_saver()
        try:
            self._saver.save(self.progress.step, self._state, facts, after=self.file_writer())
            self._saved_at, self._saved_finished = place, finished
        except CheckpointError as error:
            self._report_failed_save(error)

    def file_writer(self) -> threading.Thread | None:
        """Return the thread that writes a file which the state of the run counts on; None where there is none."""
        return None

    def _facts(self, *, best: bool, finished: bool) -> dict[str, Any]:
        """Return what the manifest of a checkpoint says of the run."""
        return {
            "epoch": self.progress.epoch,
            "identity": self._identity(),
            "environment": environment(),
            "planned": self._planned(),
            "best": best,
            "finished": finished,
            "stopped": self.this_run.stop.over,
            "made of": self._made_of,
        }

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
        self._save_failure = str(error)
        self.print(f"going on without a checkpoint: {error}")

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
                self._save(best=best and (first or self._saved_at is None), finished=not self.this_run.stop.pauses)
            self._wait_for_saver()
        if self._saved_at is None:
            self._note_unsaved()

    def _note_unsaved(self) -> None:
        """Say that the end of the run is lost when the process is, and have the status of the run say so too."""
        self._unsaved = f"the run came to its end, step {self.progress.step}, which is not saved: {self._save_failure}"
        self.print(self._unsaved)
        lock = None if self.run_dir is None else held_here(self.run_dir)
        if lock is not None:
            lock.note_unsaved(self._unsaved)

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
            self.this_run.stop.looping = False
            with ExitStack() as last_first:
                last_first.callback(self.this_run.execution.close)
                last_first.callback(self._close_run, waits=waits)
                last_first.callback(self._close_streams)

    def _close_run(self, *, waits: bool) -> None:
        """Close the files of the run; a checkpoint being written is completed, here or when the process ends."""
        if self._saver is not None and waits:
            try:
                self._saver.wait()
            except CheckpointError as error:
                self.print(str(error))
        self._keep_folder_while_writing()
        if self._metrics_file is not None:
            self.storage.flush()
            self._metrics_file.close()
            # What is saved of the trainer from now on is of no file.
            self._tracked.remove("metrics_file")
        self.storage.on_flush = None
        actions, self._afterwards = self._afterwards, []
        for action in actions:
            action()

    def _keep_folder_while_writing(self) -> None:
        """Let nobody else into the folder while a checkpoint is still being written into it."""
        writer = None if self._saver is None else self._saver.writer()
        lock = None if self.run_dir is None else held_here(self.run_dir)
        if writer is not None and lock is not None:
            lock.hold_for(writer)

    def afterwards(self, action: Callable[[], object]) -> None:
        """Have `action` called once the files of this run are complete and closed, however the run ends."""
        self._afterwards.append(action)

    def _evaluate_run(self, when: int) -> None:
        """Evaluate in the middle of the run; one that is asked to leave does, and evaluates when it goes on."""
        length = getattr(self._eval_dataloader, "length", None)
        with self._in_evaluation(when, length), local_updates() if when == AFTER_STEP else nullcontext():
            self._run_eval_epoch(self._eval_dataloader, **({"is_intermediate": True} if when == AFTER_STEP else {}))

    @contextmanager
    def _in_evaluation(self, when: int, length: int | None = None) -> Iterator[None]:
        """Let the evaluation in the block be broken off when the run is asked to leave, and be made when it goes on."""
        self.progress.evaluation = when
        self.parallel.share_buffers(self.model)
        if self._saver is not None:
            asked = self.this_run.stop.is_asked_to_leave
            self._leavable = LeavableEvaluation(asked, self.processes, length, AGREEMENT_STEPS)
        try:
            yield
        except EvaluationLeft:
            self._leave_evaluation()
        finally:
            self._leavable = None
        self.progress.evaluation = 0

    def _fire_update_end(self) -> None:
        try:
            self.fire("on_update_end")
        except EvaluationLeft:
            # A callback's own evaluation, which knows that it is to be made again.
            self._leave_evaluation()

    def _leave_evaluation(self) -> None:
        # What was saved at this step knows nothing of the evaluation; a cut epoch goes on where it was saved.
        self._saved_at = self._saved_at if self._cut and self.progress.evaluation else None
        self._leave_if_asked()

    # Leaving and rolling back -----------------------------------------------------------------------------

    def _leave_if_asked(self) -> None:
        """Save and leave if a signal asked any process to; every process must come here together.

        Raises:
            KeyboardInterrupt: It was SIGINT.
            PreemptedExit: It was SIGTERM or SIGUSR1.
        """
        if self._saver is None:
            return
        number = self.this_run.stop.agree_to_leave()
        if number:
            self._save()
            self._saver.wait()
            message = f"saved step {self.progress.step} in {self.run_dir}; {self.how_to_resume}"
            self.print(message)
            self.this_run.stop.leave(number, message)

    def leave_after_end(self) -> None:
        """Leave if a signal came when the run was at its end already: whoever sent it wants the process to go.

        Raises:
            KeyboardInterrupt: It was SIGINT.
            PreemptedExit: It was SIGTERM or SIGUSR1.
        """
        self.this_run.stop.leave_after_end(
            f"the run in {self.run_dir} had come to its end, at step {self.progress.step}"
        )

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
        self._restore()
        self.this_run.wake()
        self.print(f"{request}: back to step {step}, and the data of step {request.step} is skipped")
