"""One attempt at an update: left out where its data is bad, cut finer where memory runs out."""

import torch

from treadle._updating import Updating
from treadle.data import Batch, size_of
from treadle.errors import StopTrainingError
from treadle.execution.inputs import PlacedWindow
from treadle.losses import describe_batch, name_of
from treadle.micro_batches import BeforeAttempt
from treadle.phase import Phase


class Attempting(Updating):
    """What stands between the loop and an update that may not work out."""

    def _attempt(self, phase: Phase, window: list[Batch]) -> None:
        """Make one update; leave it out if its data was found to be bad, cut it finer if memory runs out."""
        if self.skipped.steps:
            bad = self.progress.step + 1 in self.skipped.steps
            self.update_applied = torch.tensor(not bad, dtype=torch.float32, device=self.device)
            if bad:
                self._pass_over(phase, window)
                return
        before = None if self.microbatch == "fixed" else BeforeAttempt(self.model, self._loss_tracker)
        try:
            parts = window if before is None else self._splits.cut(window)
            self.this_run.execution.update(phase, parts)
        except torch.OutOfMemoryError:
            if before is None or not self._may_cut_finer(window):
                raise
            before.restore()
            self._cut_finer()
            self._attempt(phase, window)
        except StopTrainingError:
            raise
        except Exception as error:
            error.add_note(self._place_of(phase, window))
            raise

    def _pass_over(self, phase: Phase, window: list[Batch]) -> None:
        """Leave the data of a bad step out: it counts, and the schedule moves, but nothing is learnt from it."""
        self._phase = phase
        # There is no gradient to tell of; that of the step before is not this one's.
        self.gradient_norm = None
        self._window_samples = sum(map(size_of, window))
        if phase.scheduler is not None and self.scheduled_by_step:
            self.scheduler_step()

    def _may_cut_finer(self, window: list[Batch]) -> bool:
        # Alone only: another process would not know that this one makes more backward passes.
        alone = not self.processes.distributed
        return alone and not self._updated and self._splits.parts < max(map(size_of, window))

    def _cut_finer(self) -> None:
        """Halve the micro-batches after memory ran out."""
        self._splits.halve()
        for optimizer in self._optimizers:
            optimizer.zero_grad()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        self.print(f"memory ran out: each micro-batch is cut into {self._splits.parts}, the batch stays the same")

    def _place_of(self, phase: Phase, window: list[Batch]) -> str:
        place = f"at step {self.progress.step + 1}, epoch {self.progress.epoch + 1}, in {name_of(phase.loss)}"
        # To gather batches now might fail as well, on a device that has failed.
        batches = window.made if isinstance(window, PlacedWindow) else window
        return f"{place}, for batches of {'; '.join(map(describe_batch, batches))}" if batches else place
