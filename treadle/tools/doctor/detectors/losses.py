"""What losses of torch's are called with, in whatever way: as modules, or as functions in a step of your own."""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from treadle.tools.doctor.detectors.base import Detector, running_line
from treadle.tools.doctor.findings import Finding

CLASSES = ("cross_entropy", "nll_loss")
SAME_SHAPE = (
    *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"),
    *("binary_cross_entropy", "binary_cross_entropy_with_logits"),
)
LOGITS = ("cross_entropy", "binary_cross_entropy_with_logits", "multilabel_soft_margin_loss")
BINARY = ("binary_cross_entropy", "binary_cross_entropy_with_logits")
NAMES = frozenset({*CLASSES, *SAME_SHAPE, *LOGITS})
Place = tuple[str, int] | None


class LossInputs(Detector):
    """Looks at what losses of torch's are called with in the steps of training."""

    def begin(self) -> None:
        """Know nothing yet."""
        self._listening = False
        self._found: dict[tuple[str, Place], Finding] = {}
        self._calls: Counter[tuple[str, Place]] = Counter()
        self._doubtful: dict[str, Counter[tuple[str, Place]]] = {"probabilities": Counter(), "log": Counter()}

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Listen in the passes of an update."""
        self._listening = True
        try:
            yield
        finally:
            self._listening = False

    def asked(self, name: str, func: Any, args: Any, options: dict[str, Any]) -> None:
        """Look at what a loss is called with."""
        if self._listening and name in NAMES and getattr(func, "__module__", "") == "torch.nn.functional":
            given = [*args, *(options[key] for key in ("input", "target") if key in options)][:2]
            if len(given) == 2 and all(isinstance(one, Tensor) for one in given):
                self._look(name, given[0].detach(), given[1].detach(), options, running_line())

    def _look(self, name: str, outputs: Tensor, targets: Tensor, options: dict[str, Any], place: Place) -> None:
        self._calls[name, place] += 1
        if name in LOGITS and are_probabilities(outputs, of_classes=name == "cross_entropy"):
            self._doubtful["probabilities"][name, place] += 1
        if name == "nll_loss" and outputs.is_floating_point() and not _are_log_probabilities(outputs):
            self._doubtful["log"][name, place] += 1
        if name in SAME_SHAPE and outputs.shape != targets.shape:
            self._tell(
                "loss_inputs",
                f"{name} compares outputs of shape {tuple(outputs.shape)} with targets of shape "
                f"{tuple(targets.shape)}, each with several of the others",
                "give both the same shape, by outputs.squeeze(1) or targets[:, None]",
                place,
            )
        if name in CLASSES and not targets.is_floating_point():
            self._look_at_classes(name, outputs, targets, options, place)
        if name in BINARY and targets.numel() and (float(targets.min()) < 0 or float(targets.max()) > 1):
            self._tell(
                "bad_labels",
                f"{name} takes targets from 0 to 1, and is given {float(targets.min()):g} to {float(targets.max()):g}",
                "write the two classes as 0.0 and 1.0",
                place,
            )

    def _look_at_classes(
        self, name: str, outputs: Tensor, targets: Tensor, options: dict[str, Any], place: Place
    ) -> None:
        count = outputs.shape[1] if outputs.dim() > 1 else len(outputs)
        labels = targets[targets != options.get("ignore_index", -100)]
        if labels.numel() and (int(labels.min()) < 0 or int(labels.max()) >= count):
            self._tell(
                "bad_labels",
                f"labels go from {int(labels.min())} to {int(labels.max())}, but the model has {count} scores, for "
                f"labels from 0 to {count - 1}",
                "number the classes from 0, and give the last layer one output a class",
                place,
            )
        elif count == 1:
            self._tell(
                "loss_inputs",
                f"{name} is given one score a sample, for one class, so that the loss is 0 whatever the model does",
                "give the last layer one output a class, or use BCEWithLogitsLoss for yes or no",
                place,
            )

    def _tell(self, kind: str, message: str, remedy: str, place: Place) -> None:
        self._found.setdefault((kind, place), Finding(kind, message, remedy, *(place or ("", 0))))

    def findings(self) -> Iterable[Finding]:
        """Return what losses should not have been given."""
        for (name, place), count in self._doubtful["probabilities"].items():
            if count == self._calls[name, place]:
                self._tell(
                    "loss_inputs",
                    f"{name} expects logits, but is given probabilities: softmax or sigmoid is applied twice",
                    "return the model's scores as they are, and apply softmax or sigmoid only where probabilities are "
                    "wanted",
                    place,
                )
        for (name, place), count in self._doubtful["log"].items():
            if count == self._calls[name, place]:
                self._tell(
                    "loss_inputs",
                    f"{name} expects log-probabilities, but is given other numbers",
                    "use cross_entropy, or apply log_softmax before",
                    place,
                )
        return self._found.values()


def are_probabilities(outputs: Tensor, *, of_classes: bool) -> bool:
    """Whether outputs are numbers from 0 to 1 that, for classes of which one is right, add up to 1.

    A softmax over the wrong dimension, that of the samples, counts as well.
    """
    if not outputs.is_floating_point() or not outputs.numel() or outputs.min() < 0 or outputs.max() > 1:
        return False
    if not of_classes:
        return True
    return any(_is_one(outputs.sum(dim)) for dim in range(min(outputs.dim(), 2)))


def _are_log_probabilities(outputs: Tensor) -> bool:
    return _is_one(outputs.exp().sum(1 if outputs.dim() > 1 else 0))


def _is_one(sums: Tensor) -> bool:
    return bool(torch.allclose(sums.float(), torch.ones_like(sums, dtype=torch.float32), atol=1e-3))
