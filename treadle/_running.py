"""Keeping a run: its checkpoints, its end, leaving it in good order and going back in it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from torch.optim import Optimizer

from treadle._setup import SetUp
from treadle.checkpoint.checkpointer import RunCheckpointer
from treadle.kept import kept_by
from treadle.leaving import EvaluationLeft
from treadle.loop import Log


class Running(SetUp):
    """What a trainer with a run folder does around the loop; without one it does nothing."""

    how_to_resume = "start the same command to go on"
    """What a run that was asked to leave says after where it is saved."""
    leaves_by_itself = True
    """Whether `train` leaves where a signal came at its end; a door that has more to do then leaves after that."""

    @property
    def is_cut_short(self) -> bool:
        """Whether the limit of steps ended the epoch under way before its data did."""
        return self.this_run.epoch_is_cut

    def _stay_stopped(self, reason: str) -> str:
        """Say that the run was over when it was started, and why; return that."""
        self.this_run.stop.stopped = True
        self.print(f"the run is over: {reason}; it goes on with a larger num_epochs or max_steps")
        return reason

    def create_checkpointer(self, folder: Path) -> RunCheckpointer:
        """Return what keeps the run that begins in its folder."""
        own: Any = self
        return RunCheckpointer(own, self.this_run.state, folder)

    def create_log(self) -> Log:
        """Return what reads losses from the device and acts on those that are not finite."""
        own: Any = self
        return Log(own)

    def _open_run(self) -> None:
        """Open the run's folder and find out whether to go on from a checkpoint in it."""
        self.storage.on_flush = None
        self.tracked.remove("metrics_file")
        if self.run_dir is not None:
            self.this_run.checkpointer = self.create_checkpointer(self.run_dir)
        self.this_run.checkpointer.open()

    def _note_start(self) -> None:
        """Take note that the run moves on from where it is."""
        run = self.this_run
        fresh = run.state.restored is None
        run.checkpointer.begin(first=run.state.begin(), fresh=fresh)

    def _tell_of_untracked(self) -> None:
        """Say which optimizers the trainer keeps that no checkpoint will hold."""
        if not self.this_run.checkpointer.saves:
            return
        given = list(self.optimizers().values())
        for name, value in kept_by(self):
            if isinstance(value, Optimizer) and not any(value is one for one in given):
                given.append(value)
                if not self.tracked.holds(value):
                    called = name.rpartition(".")[2]
                    self.print(
                        f"{called}, of type {type(value).__name__}, is not saved with the run, and begins anew when it "
                        "is resumed; call trainer.track(name=...) with it and with what it trains"
                    )

    def _finish_run(self, *, stopped: bool) -> None:
        """Make sure that the end of the run is a good one, and keep it."""
        if not stopped:
            self.this_run.log.check_weights()
        self.this_run.checkpointer.finish()

    @contextmanager
    def _closing_run(self) -> Iterator[None]:
        """Close what the run opened, however it ends."""
        waits = True
        try:
            yield
        except BaseException as error:
            # Whoever interrupts a second time wants to be gone; and after a failure other ranks may be dead.
            waits = not isinstance(error, KeyboardInterrupt)
            self.this_run.checkpointer.abandon(waits=waits)
            raise
        finally:
            self.this_run.stop.looping = False
            with ExitStack() as last_first:
                last_first.callback(self.this_run.execution.close)
                last_first.callback(self.this_run.checkpointer.close, waits=waits)
                last_first.callback(self.this_run.streams.close)

    def afterwards(self, action: Callable[[], object]) -> None:
        """Have `action` called once the files of this run are complete and closed, however the run ends."""
        self.this_run.checkpointer.afterwards(action)

    def _fire_update_end(self) -> None:
        try:
            self.fire("on_update_end")
        except EvaluationLeft:
            # A callback's own evaluation, which knows that it is to be made again.
            self.this_run.evaluator.leave()

    # Leaving and rolling back -----------------------------------------------------------------------------

    def leave_if_asked(self) -> None:
        """Save and leave if a signal asked any process to; every process must come here together.

        Raises:
            KeyboardInterrupt: It was SIGINT.
            PreemptedExit: It was SIGTERM or SIGUSR1.
        """
        keeper = self.this_run.checkpointer
        if not keeper.saves:
            return
        number = self.this_run.stop.agree_to_leave()
        if number:
            keeper.save()
            keeper.wait()
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
