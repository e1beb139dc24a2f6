"""What a run reads from the device now and then: its losses, and whether its numbers are finite."""

import math

import torch

from treadle.errors import DataError, NonFiniteError
from treadle.events import NonFinite
from treadle.events.names import PEAK_MEMORY_MIB
from treadle.loop.interfaces import RunningTrainer
from treadle.loop.nonfinite import REMEDY, RollBack, nonfinite_error
from treadle.loop.nonfinite_data import find_nonfinite_data
from treadle.memory.device import peak_device_memory
from treadle.optim.gradients import joint_norm
from treadle.precision.fallback import fell_back


class Log:
    """Brings to the host what was put into the storage, and acts on numbers that are not finite.

    A door that reports in another way gives its trainer a subclass by `create_log`.

    Args:
        trainer: Whose run it is.
    """

    def __init__(self, trainer: RunningTrainer) -> None:
        self.trainer = trainer
        self._told_of_metrics = False

    def write(self) -> None:
        """Bring what was put since the last time to the host, reduce the loss over ranks, tell the callbacks.

        Raises:
            NonFiniteError: A loss is not finite, and ends the run.
            RollBack: A loss is not finite, and the run may go back.
        """
        trainer = self.trainer
        # The host waits for the device here and not in a step: all losses since the last log come together.
        total, count, nonfinite = self.take_losses()
        if trainer.processes.distributed:
            total, count = trainer.processes.reduce([total, count])
            nonfinite = self._agree_on_nonfinite(nonfinite)
        # Before on_nonfinite: fp16 has changed no weight, and in a wider format the same loss may be finite.
        if fell_back(trainer, None if nonfinite is None else f"loss is {nonfinite.value} at step {nonfinite.step}"):
            nonfinite = None
        if nonfinite is not None and trainer.on_nonfinite == "rollback":
            # Without telling the callbacks: these steps are made again, and would be logged twice.
            raise RollBack(nonfinite.step, nonfinite.value)
        self.put_state_of_updates()
        if trainer.on_nonfinite == "skip":
            nonfinite = None
        skipped = trainer.this_run.updater.skipped.steps
        if skipped:
            trainer.storage.put_scalar("skipped_steps", len(skipped), smoothing_hint=False)
        if count:
            trainer.storage.put_scalar("train_loss", total / count)
        # Told before the error is raised, so that writers have the numbers of the step that ended the run.
        trainer.fire("on_log", scalars=trainer.storage.flush(), nonfinite=nonfinite)
        if nonfinite is not None:
            data = find_nonfinite_data(trainer, nonfinite.step)
            raise nonfinite_error(nonfinite, trainer.settings.gradient_accumulation_steps, data)

    def record_epoch_loss(self, metric_name: str) -> None:
        """Record the mean loss of the epoch, over the samples of all processes, under a name."""
        trainer, losses = self.trainer, self.trainer.this_run.losses
        total, count = trainer.processes.reduce([losses.total_loss, losses.running_count])
        if count:
            trainer.run_history.update_metric(metric_name, total / count)
        elif metric_name != "train_loss_epoch":
            raise DataError(
                f"{metric_name} cannot be recorded: no loss was given to _update_loss_tracker; check the data"
            )

    def record_metrics(self) -> None:
        """Record what was measured over the batches of the epoch, over the samples of all processes."""
        trainer, metrics = self.trainer, self.trainer.this_run.metrics
        if not metrics.kept:
            return
        found = metrics.compute(trainer.processes)
        for name, value in found.items():
            trainer.run_history.update_metric(name, value)
        if not found and not self._told_of_metrics:
            self._told_of_metrics = True
            trainer.print(
                f"train_metrics={metrics.names()} saw no batch: they follow calculate_train_batch_loss; where batches "
                "are trained on in another way, call self.update_metrics(batch, output) there"
            )

    def take_losses(self) -> tuple[float, float, NonFinite | None]:
        """Read the losses since the last log: their sum, what it is over, and the first that is not finite."""
        self.trainer.this_run.updater.means.check()
        return self.trainer.this_run.losses.take()

    def put_state_of_updates(self) -> None:
        """Put what is known of the updates as such: how many were left out, the scale of the loss, the memory."""
        trainer = self.trainer
        gate = trainer.this_run.updater.gate
        if gate is not None:
            trainer.storage.put_scalar("skipped_steps", gate.skipped.clone(), smoothing_hint=False)
        if trainer.precision.scaler is not None:
            trainer.storage.put_scalar("loss_scale", trainer.precision.scaler.scale_now, smoothing_hint=False)
        peak = peak_device_memory(trainer.device)
        if peak is not None:
            trainer.storage.put_scalar(PEAK_MEMORY_MIB, peak / 2**20, smoothing_hint=False)

    def _agree_on_nonfinite(self, own: NonFinite | None) -> NonFinite | None:
        """Return the first bad loss of any process, so that all of them act on it together."""
        first = self.trainer.processes.reduce([math.inf if own is None else float(own.step)], "min")[0]
        if first == math.inf:
            return None
        return own if own is not None and own.step == first else NonFinite(int(first), math.nan, None)

    # Before a save ------------------------------------------------------------------------------------------

    @property
    def sees_bad_loss(self) -> bool:
        """Whether a loss since the last log is not finite and may have spoilt the weights."""
        # Where bad updates are left out, the weights are good whatever the losses are.
        trainer = self.trainer
        return trainer.this_run.losses.read() is not None and trainer.this_run.updater.guard_in_use is None

    def check_weights(self) -> None:
        """Refuse to keep weights that are not finite, which a bad gradient leaves before any loss shows it.

        Raises:
            NonFiniteError: They are not.
            RollBack: They are not, and the run may go back.
        """
        trainer = self.trainer
        if not trainer.progress.step or self._weights_are_finite():
            return
        if trainer.on_nonfinite == "rollback":
            raise RollBack(trainer.progress.step, math.nan)
        raise NonFiniteError(f"the weights are not finite after step {trainer.progress.step}; {REMEDY}")

    def _weights_are_finite(self) -> bool:
        # Any nan or inf among the weights is in their norm: a single number is read for all of them.
        norm = self.trainer.parallel.norm_of_weights()
        if norm is not None:
            return bool(torch.isfinite(norm))
        weights = [one.detach() for one in self.trainer.model.parameters() if one.is_floating_point()]
        return not weights or bool(torch.isfinite(joint_norm(weights)))
