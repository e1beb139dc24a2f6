"""What outputs and targets mean to a metric: classes, answers of yes or no, or values, by their shapes and the loss."""

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from treadle.errors import ConfigError
from treadle.ops.loss_items import IGNORED, find_criterion
from treadle.ops.losses import function_name
from treadle.ops.model_loss import label_rule
from treadle.precision.loss_scaling import widest_float
from treadle.runs.interfaces import TrainerLike

LOGITS: tuple[Any, ...] = (nn.BCEWithLogitsLoss, F.binary_cross_entropy_with_logits)
PROBABILITIES: tuple[Any, ...] = (nn.BCELoss, F.binary_cross_entropy)


class Measured(NamedTuple):
    """What a metric sees of a batch.

    Attributes:
        outputs: What the model returned; of an output with logits, these.
        targets: The targets of the batch.
        size: How many samples it has.
        trainer: Whose batch it is, whose loss says how outputs are meant.
        metric: The name of the metric, for messages.
    """

    outputs: Any
    targets: Any
    size: int
    trainer: TrainerLike
    metric: str = ""

    @property
    def device(self) -> torch.device:
        """Where the outputs are."""
        return self.outputs.device if isinstance(self.outputs, Tensor) else self.trainer.device

    def refusal(self, reason: str, instead: str = "") -> ConfigError:
        """Return the error that says why the metric cannot read the batch, and what to write."""
        instead = instead or "a function of (outputs, targets) that returns a tensor, or a torchmetrics object"
        return ConfigError(
            f"the metric {self.metric!r} cannot read outputs of {_described(self.outputs)} with targets of "
            f"{_described(self.targets)}: {reason}; pass {instead} in its place"
        )


class Classes(NamedTuple):
    """Scores of classes, a row for each target that there is.

    Attributes:
        scores: The scores, in single precision.
        labels: Which class is right.
        counts: Whether the target counts, or is ignored.
    """

    scores: Tensor
    labels: Tensor
    counts: Tensor


class YesOrNo(NamedTuple):
    """Questions with two answers.

    Attributes:
        scores: How much speaks for yes, in single precision.
        answers: Whether the model says yes.
        truth: Whether it is.
        counts: Whether the target counts, or is ignored.
    """

    scores: Tensor
    answers: Tensor
    truth: Tensor
    counts: Tensor


def read_classes(measured: Measured) -> Classes:
    """Return scores and labels of a choice between classes.

    Raises:
        ConfigError: It is none.
    """
    outputs, targets = _tensors(measured)
    outputs, targets = _aligned(measured, outputs, targets)
    loss = measured.trainer.loss_func
    if targets.is_floating_point() and targets.shape == outputs.shape and _is_cross_entropy(loss):
        # Targets that are probabilities, as mixing samples makes them: the class with the largest share is right.
        targets = targets.argmax(1)
    if targets.is_floating_point() or outputs.dim() < 2:
        raise measured.refusal("a choice between classes has a score for each class, and a whole number as its target")
    place = _class_dim(measured, outputs, targets)
    classes = outputs.shape[place]
    if classes < 2:
        raise measured.refusal("there is one class only")
    criterion = find_criterion(loss)
    ignored = IGNORED if criterion is None else criterion.ignore_index
    scores = outputs.detach().movedim(place, -1).reshape(-1, classes).float()
    labels = targets.reshape(-1).long()
    return Classes(scores, labels, labels != ignored)


def read_answers(measured: Measured, *, needs_answers: bool = True) -> Classes | YesOrNo:
    """Return what the model answered: a choice between classes, or yes or no.

    Raises:
        ConfigError: It is neither, or nobody can tell which outputs mean yes.
    """
    outputs, targets = _tensors(measured)
    same = _as_shaped(outputs, targets)
    bound = _bound_of(measured.trainer.loss_func)
    if same is None or (bound is None and _is_choice(measured, outputs, targets)):
        return read_classes(measured)
    if bound is None and needs_answers:
        raise measured.refusal(
            f"the loss, {function_name(measured.trainer.loss_func)}, does not tell whether they are logits or "
            "probabilities",
            "a function such as lambda outputs, targets: ((outputs > 0) == targets.bool()).float().mean()",
        )
    scores, truth = outputs.detach().reshape(-1).float(), same.reshape(-1) > 0.5
    return YesOrNo(scores, scores > (bound or 0.0), truth, torch.ones_like(truth))


def read_sides(measured: Measured, *, needs_answers: bool = True) -> Classes | YesOrNo:
    """Return what the model answered, where it makes a difference which of two classes is the one that is looked for.

    Of two classes that is the second one, as scikit-learn has it.

    Raises:
        ConfigError: There are several labels for each sample, or it is no classification.
    """
    found = read_answers(measured, needs_answers=needs_answers)
    if isinstance(found, Classes):
        if found.scores.shape[1] > 2:
            return found
        margin = found.scores[:, 1] - found.scores[:, 0]
        return YesOrNo(margin, margin > 0, found.labels == 1, found.counts)
    outputs = measured.outputs
    if outputs.dim() == 2 and outputs.shape[1] > 1:
        raise measured.refusal(
            "these are several labels for each sample, which can be averaged in several ways",
            f"torchmetrics' object for task='multilabel' with num_labels={outputs.shape[1]}",
        )
    return found


def read_values(measured: Measured) -> tuple[Tensor, Tensor]:
    """Return outputs and targets as values, in the widest format of their device.

    Raises:
        ConfigError: Their shapes differ by more than a last dimension of one.
    """
    outputs, targets = _tensors(measured)
    same = _as_shaped(outputs, targets)
    if same is None:
        raise measured.refusal("there must be one output for each target")
    wide = widest_float(outputs.device)
    return outputs.detach().to(wide), same.detach().to(wide)


def _tensors(measured: Measured) -> tuple[Tensor, Tensor]:
    outputs, targets = measured.outputs, measured.targets
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor):
        raise measured.refusal("both must be tensors; override update_metrics to choose them, or")
    if not outputs.is_floating_point() or not outputs.dim():
        raise measured.refusal("the outputs must be floating-point numbers, in a row for each sample")
    return outputs, targets


def _aligned(measured: Measured, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return what belongs together where a model of transformers computes its own loss with labels that it shifts."""
    rule = label_rule(measured.trainer.model) if measured.trainer.loss_func is None else None
    if rule is None or not rule.shifted or targets.shape != outputs.shape[:-1]:
        return outputs, targets
    return outputs[..., :-1, :], targets[..., 1:]


def _class_dim(measured: Measured, outputs: Tensor, targets: Tensor) -> int:
    first = targets.shape == outputs.shape[:1] + outputs.shape[2:]
    last = targets.shape == outputs.shape[:-1]
    if first and (not last or outputs.dim() == 2 or _is_cross_entropy(measured.trainer.loss_func)):
        return 1
    if last and (not first or label_rule(measured.trainer.model) is not None):
        return -1
    reason = "the classes may be in the second dimension or in the last" if first else "no dimension fits the targets"
    raise measured.refusal(reason)


def _is_choice(measured: Measured, outputs: Tensor, targets: Tensor) -> bool:
    """Whether outputs that are shaped like their targets are scores of classes all the same: for targets of shares."""
    return targets.is_floating_point() and outputs.dim() > 1 and _is_cross_entropy(measured.trainer.loss_func)


def _as_shaped(outputs: Tensor, targets: Tensor) -> Tensor | None:
    """Return targets in the shape of the outputs, where the two differ by a last dimension of one at most."""
    if outputs.shape == targets.shape:
        return targets
    one_more = outputs.shape == (*targets.shape, 1) or targets.shape == (*outputs.shape, 1)
    return targets.reshape(outputs.shape) if one_more else None


def _bound_of(loss_func: Any) -> float | None:
    """Return from where on an output means yes; None if the loss does not tell."""
    plain = loss_func.func if isinstance(loss_func, partial) else loss_func
    for bound, kinds in ((0.0, LOGITS), (0.5, PROBABILITIES)):
        if any(plain is kind or (isinstance(kind, type) and isinstance(plain, kind)) for kind in kinds):
            return bound
    return None


def _is_cross_entropy(loss_func: Any) -> bool:
    plain = loss_func.func if isinstance(loss_func, partial) else loss_func
    return isinstance(plain, (nn.CrossEntropyLoss, nn.NLLLoss)) or plain in (F.cross_entropy, F.nll_loss)


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"shape {tuple(value.shape)} and type {str(value.dtype).removeprefix('torch.')}"
    return f"type {type(value).__name__}"
