"""Gradients that depend on how a batch is cut into micro-batches."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from treadle.doctor.detectors.detector import Detector
from treadle.doctor.finding import Finding
from treadle.micro_batches import BeforeAttempt, split_batch

TOLERANCE = 1e-3
"""The relative difference of two gradients that rounding does not explain."""


class Accumulation(Detector):
    """Computes the gradient of one window twice, cut in two ways; both must be the same."""

    def begin(self) -> None:
        """Know nothing yet."""
        self._difference: float | None = None
        self._ratio = 1.0

    def before_update(self, phase: Any, window: list[Any]) -> None:
        """Compare, before the first update, and leave everything as it was."""
        if self._difference is not None or phase.reuse or not window:
            return
        parts = [part for batch in window for part in split_batch(batch, 2)]
        if len(parts) == len(window) or self.trainer.this_run.execution.replays or self.trainer.processes.distributed:
            self._difference = 0.0
            return
        as_is, finer = self._gradient(phase, window), self._gradient(phase, parts)
        if as_is is None or finer is None or not as_is.norm():
            self._difference = 0.0
            return
        self._difference = float((as_is - finer).norm() / as_is.norm())
        self._ratio = float(finer.norm() / as_is.norm())

    def _gradient(self, phase: Any, window: list[Any]) -> Tensor | None:
        """Return the gradient of a window, without dropout, as one vector."""
        trainer, model = self.trainer, self.trainer.model
        before, modes = BeforeAttempt(model, trainer._loss_tracker), [(one, one.training) for one in model.modules()]
        generators = torch.get_rng_state()
        calm(model)
        try:
            # Silent: this pass is nobody's business but the doctor's.
            trainer.calculate_gradients(replace(phase, silent=True), window)
            if trainer.this_run.updater.scale.pending or trainer.this_run.shared_loss.module is not None:
                trainer.normalise_gradients(phase)
            found = [one.grad.detach().double().flatten() for one in phase.trained if _is_dense(one.grad)]
            return torch.cat(found).clone() if found else None
        finally:
            trainer.optimizer_zero_grad()
            before.restore()
            torch.set_rng_state(generators)
            for module, mode in modes:
                module.training = mode

    def findings(self) -> Iterable[Finding]:
        """Return whether the gradient depended on the cut."""
        if self._difference is not None and self._difference > TOLERANCE:
            yield Finding(
                "accumulation",
                f"the gradient of a batch changes by {self._difference:.0%} (its norm to {self._ratio:.2f} of it) when "
                "its micro-batches are cut in two. If the loss is a mean over tokens, return their number as "
                "num_items_in_batch from calculate_train_batch_loss; if it is a sum, give loss_reduction='sum'",
            )


def calm(model: nn.Module) -> None:
    """Put everything that is random, or looks at the whole batch, into the mode for evaluation."""
    for module in model.modules():
        if isinstance(module, (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._NormBase)):
            module.training = False


def _is_dense(gradient: Tensor | None) -> bool:
    return gradient is not None and not gradient.is_sparse
