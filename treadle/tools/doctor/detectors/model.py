"""Modules that train in the mode for evaluation, or the other way round."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from treadle.errors import some_of
from treadle.tools.doctor.detectors.base import Detector
from treadle.tools.doctor.findings import Finding

# A loss that is given something else than it takes


TAKES_SCORES = (nn.CrossEntropyLoss, nn.BCEWithLogitsLoss, nn.MultiLabelSoftMarginLoss)
SAME_SHAPE = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.BCELoss, nn.BCEWithLogitsLoss)


class LossInputs(Detector):
    """Looks at what a loss of torch's is called with."""

    def begin(self) -> None:
        """Listen to the loss, where it is a module."""
        self._found: dict[str, Finding] = {}
        self._probabilities = self._calls = 0
        loss = self.trainer.loss_func
        self._handle = loss.register_forward_pre_hook(self._look) if isinstance(loss, nn.Module) else None

    def _look(self, loss: nn.Module, inputs: Any) -> None:
        if len(inputs) < 2 or not all(isinstance(one, Tensor) for one in inputs[:2]):
            return
        outputs, targets = (one.detach() for one in inputs[:2])
        self._calls += 1
        self._probabilities += isinstance(loss, TAKES_SCORES) and are_probabilities(loss, outputs)
        if isinstance(loss, SAME_SHAPE) and outputs.shape != targets.shape:
            self._found["shape"] = Finding(
                "loss_inputs",
                f"{type(loss).__name__} compares outputs of shape {tuple(outputs.shape)} with targets of shape "
                f"{tuple(targets.shape)}, each with several of the others; give both the same shape",
            )

    def findings(self) -> Iterable[Finding]:
        """Return what the loss should not have been given."""
        if self._handle is not None:
            self._handle.remove()
        if self._calls and self._probabilities == self._calls:
            name = type(self.trainer.loss_func).__name__
            self._found["probabilities"] = Finding(
                "loss_inputs",
                f"{name} takes scores, but is given probabilities, and squeezes them a second time; return scores from "
                "the model, and apply softmax or sigmoid where they are used",
            )
        return self._found.values()


def are_probabilities(loss: nn.Module, outputs: Tensor) -> bool:
    """Whether outputs are numbers from 0 to 1 that, for classes of which one is right, add up to 1."""
    if not outputs.is_floating_point() or not outputs.numel() or outputs.min() < 0 or outputs.max() > 1:
        return False
    if not isinstance(loss, nn.CrossEntropyLoss):
        return True
    sums = outputs.sum(1 if outputs.dim() > 1 else 0)
    return bool(torch.allclose(sums.float(), torch.ones_like(sums, dtype=torch.float32), atol=1e-3))


MODAL = (_DropoutNd, _NormBase, nn.MultiheadAttention, nn.RNNBase)
"""Modules that do something else in each of the modes."""


class TrainingMode(Detector):
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
                f"{some_of(list(self._training))} trained in evaluation mode; somebody called eval() after the "
                "trainer had called train(): in the forward pass, or in a callback",
            )
        if self._evaluating:
            yield Finding(
                "wrong_mode",
                f"{some_of(list(self._evaluating))} was evaluated in training mode; somebody called train() after "
                "the trainer had called eval()",
            )


def _is_frozen_norm(module: nn.Module) -> bool:
    """Whether a norm is kept as it is on purpose: its weights do not learn either."""
    return isinstance(module, _NormBase) and not any(one.requires_grad for one in module.parameters())
