"""Modules that train in the mode for evaluation, or the other way round."""

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from treadle.doctor.detectors.detector import Detector, shortened
from treadle.doctor.finding import Finding

MODAL = (_DropoutNd, _NormBase, nn.MultiheadAttention, nn.RNNBase)
"""Modules that do something else in each of the modes."""


class Modes(Detector):
    """Looks at the mode of every module when a loss has been computed."""

    def begin(self) -> None:
        """Know nothing yet."""
        self._training: dict[str, None] = {}
        self._evaluating: dict[str, None] = {}

    def after_loss(self, batch: Any, output: dict[str, Any]) -> None:
        """Note what was not in the mode for training."""
        for name, module in self.trainer.model.named_modules():
            if isinstance(module, MODAL) and not module.training and not _is_frozen_norm(module):
                self._training[name] = None

    def evaluating(self, batch: Any) -> None:
        """Note what was in the mode for training."""
        for name, module in self.trainer.model.named_modules():
            if isinstance(module, MODAL) and module.training:
                self._evaluating[name] = None

    def findings(self) -> Iterable[Finding]:
        """Return what was in the wrong mode."""
        if self._training:
            yield Finding(
                "wrong_mode",
                f"{shortened(list(self._training))} trained in evaluation mode; somebody called eval() after the "
                "trainer had called train(): in the forward pass, or in a callback",
            )
        if self._evaluating:
            yield Finding(
                "wrong_mode",
                f"{shortened(list(self._evaluating))} was evaluated in training mode; somebody called train() after "
                "the trainer had called eval()",
            )


def _is_frozen_norm(module: nn.Module) -> bool:
    """Whether a norm is kept as it is on purpose: its weights do not learn either."""
    return isinstance(module, _NormBase) and not any(one.requires_grad for one in module.parameters())
