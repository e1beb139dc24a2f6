"""What the mean of a cross-entropy is over: the weights of the targets that count, and not the samples."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from treadle.data import Batch
from treadle.errors import LossError
from treadle.ops.linear_cross_entropy import linear_cross_entropy
from treadle.ops.losses import default_loss, read_targets
from treadle.ops.model_loss import ITEMS, label_rule
from treadle.precision.loss_scaling import widest_float

COUNTED = "counted_targets"
"""Where the output of a loss verb says what its loss is a mean over, for the gradient alone."""
IGNORED = -100
"""The target that torch leaves out unless it is told of another one."""
FUNCTIONS: tuple[Any, ...] = (F.cross_entropy, F.nll_loss)


class Counted(NamedTuple):
    """What the loss of a micro-batch is a mean over.

    Attributes:
        items: The sum of the weights of the targets that are not ignored, on the device.
        whole: How many targets there are; the same, where none is ignored and all weigh one.
        assumed: Whether the model computes its loss itself, and over which targets follows from its kind.
    """

    items: Tensor
    whole: int
    assumed: bool = False

    def recorded(self, size: Any) -> Any:
        """Return what the loss counts in the mean of an epoch: its samples, or nothing where no target counts."""
        return (self.items > 0) * size


class Criterion(NamedTuple):
    """A cross-entropy that is a mean, as far as its targets are concerned."""

    weight: Tensor | None
    ignore_index: int

    def items_of(self, targets: Tensor) -> Tensor:
        """Return the sum of the weights of the targets that are not ignored, on their device."""
        counts = targets != self.ignore_index
        # In double precision, and rounded once at the end: where all targets count alike the bits are those of counting
        # samples. MPS has no doubles.
        exact = widest_float(targets.device)
        if self.weight is None:
            return counts.sum().to(exact)
        weights = self.weight.detach().to(targets.device, exact)
        # An ignored target, usually -100, is no index: it looks up class 0 and is multiplied away, and nothing is read.
        return (weights[torch.where(counts, targets, 0).long()] * counts).sum()


def find_criterion(loss_func: Any) -> Criterion | None:
    """Return what a loss function does with its targets, if it is the mean of one of torch's cross-entropies."""
    if isinstance(loss_func, (nn.CrossEntropyLoss, nn.NLLLoss)):
        own = type(loss_func).forward in (nn.CrossEntropyLoss.forward, nn.NLLLoss.forward)
        if not own or loss_func.reduction != "mean":
            return None
        return Criterion(loss_func.weight, loss_func.ignore_index)
    if any(loss_func is one for one in FUNCTIONS):
        return Criterion(None, IGNORED)
    if isinstance(loss_func, partial) and loss_func.func in FUNCTIONS and not loss_func.args:
        return _criterion_in(loss_func.keywords)
    return None


def _criterion_in(arguments: Mapping[str, Any]) -> Criterion | None:
    if arguments.get("reduction", "mean") != "mean" or any(
        arguments.get(name) is not None for name in ("reduce", "size_average")
    ):
        return None
    return Criterion(arguments.get("weight"), int(arguments.get("ignore_index", IGNORED)))


def items_in(loss_func: Any, targets: Tensor) -> Tensor | int:
    """Return over what `loss_func(outputs, targets)` is a mean, to be returned as `num_items_in_batch`.

    Of a cross-entropy of torch's, a module or a function, that is the sum of the class weights of the targets that are
    not ignored, on their device; of any other loss, and of targets that are probabilities, the number of samples.

    >>> items_in(nn.CrossEntropyLoss(ignore_index=0), torch.tensor([2, 0, 1])).item()
    2.0
    """
    criterion = find_criterion(loss_func)
    if criterion is None or targets.is_floating_point():
        return len(targets)
    return criterion.items_of(targets)


def own_loss(model: nn.Module, batch: Batch) -> dict[str, Any]:
    """Return the loss that a model computes itself, with over how many labels it is a mean where its kind is known."""
    found = count_labels(model, batch)
    if found is None:
        return default_loss(model, None, batch)
    counted, told = found
    return with_counted(default_loss(model, None, told), counted)


def count_labels(model: nn.Module, batch: Any) -> tuple[Counted, dict[str, Any]] | None:
    """Return over how many labels the loss of a model of transformers is a mean, and the batch that tells it so.

    None of any other model, and of a batch without labels that are classes.
    """
    rule = label_rule(model)
    targets = None if rule is None else rule.targets(batch)
    if rule is None or targets is None:
        return None
    counted = Counted(Criterion(None, IGNORED).items_of(targets), targets.numel(), assumed=True)
    # Its own labels and not those of the window: what it returns stays a mean, whatever it adds to its cross-entropy.
    return counted, {**batch, ITEMS: counted.items.clamp_min(1)} if rule.takes_items else dict(batch)


def with_counted(output: dict[str, Any], counted: Counted) -> dict[str, Any]:
    """Return what a loss verb does, with what its loss is a mean over; a loss of no label at all becomes zero."""
    # The mean over nothing is nan, and a weight of zero would not take it out of the gradient: nan times zero is nan.
    loss = torch.where(counted.items > 0, output["loss"], 0.0)
    return {**output, "loss": loss, COUNTED: counted}


def count_targets(output: dict[str, Any], loss_func: Any, batch: Batch) -> dict[str, Any]:
    """Return the output of the trainer's own loss verb, with what its loss is a mean over if that is not samples.

    A micro-batch without a target that counts has a loss of nothing over nothing: it becomes zero, and weighs nothing.
    """
    criterion = find_criterion(loss_func)
    if criterion is None:
        return output
    targets = read_targets(batch)
    if not isinstance(targets, Tensor) or targets.is_floating_point():
        return output
    return with_counted(output, Counted(criterion.items_of(targets), targets.numel()))


def items_in_window(loss_func: Any, window: Sequence[Batch]) -> Tensor | None:
    """Return over what the losses of all micro-batches of a window are means, if that is not samples."""
    criterion = find_criterion(loss_func)
    targets = [read_targets(batch) for batch in window] if criterion is not None else []
    if criterion is None or any(not isinstance(one, Tensor) or one.is_floating_point() for one in targets):
        return None
    return torch.stack([criterion.items_of(one) for one in targets]).sum() if targets else None


def counted_in(output: Mapping[str, Any]) -> Counted | None:
    """Return what the trainer's own verb has counted, unless a verb around it says better."""
    counted: Counted | None = output.get(COUNTED)
    return counted if counted is not None and output.get("num_items_in_batch") is None else None


def says_items(output: Mapping[str, Any]) -> bool:
    """Whether a loss verb says, in any way, what its loss is a mean over."""
    return COUNTED in output or output.get("num_items_in_batch") is not None


# Loss verbs that are not the trainer's -----------------------------------------------------------------------


class MeansSeen(TorchFunctionMode):
    """While entered, sees which cross-entropies are computed, and whether their means are over all their targets.

    Nothing is read: whether targets were ignored is known on the device.

    Attributes:
        weighted: The name of one with class weights, if there was one.
        ignored: For each ignored target that is possible, whether it was there.
        counts: Over how many targets each was a mean, or a sum.
    """

    def __init__(self) -> None:
        super().__init__()
        self.weighted: str | None = None
        self.ignored: list[tuple[int, Tensor]] = []
        self.counts: list[Tensor] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call `func`, and look at it if it is a cross-entropy that something learns from."""
        result = func(*args, **(kwargs or {}))
        # A cross-entropy that is only reported, under `no_grad`, is nobody's loss.
        if func in (*FUNCTIONS, linear_cross_entropy) and result.requires_grad:
            bound = dict(_loss_signature(func).bind(*args, **(kwargs or {})).arguments)
            if func is linear_cross_entropy:
                # That is the weight of the layer, and not those of classes.
                del bound["weight"]
            criterion = _criterion_in(bound)
            targets = bound.get("target", bound.get("targets"))
            if isinstance(targets, Tensor) and not targets.is_floating_point():
                index = int(bound.get("ignore_index", IGNORED))
                self.counts.append(Criterion(bound.get("weight"), index).items_of(targets))
            if criterion is not None and isinstance(targets, Tensor) and not targets.is_floating_point():
                if criterion.weight is not None:
                    self.weighted = func.__name__
                self.ignored.append((criterion.ignore_index, (targets == criterion.ignore_index).any()))
        return result


@cache
def _loss_signature(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function)


class MeansOverItems:
    """Refuses losses that are means over something else than samples, where they do not say over what.

    Args:
        remedy: What to return or define, in words.
    """

    def __init__(self, remedy: str) -> None:
        self._remedy = remedy
        self._pending: list[tuple[str, int, Tensor]] = []
        self._assumed: list[tuple[str, Tensor, Tensor]] = []

    def take(self, seen: MeansSeen, verb: str) -> None:
        """Take note of what the loss verb called `verb` has computed.

        Raises:
            LossError: One is with class weights.
        """
        if seen.weighted is not None:
            raise LossError(
                f"{verb} computes {seen.weighted} with class weights: that is a mean over the weights of the targets, "
                f"not over samples, and several micro-batches or processes would not make the gradient of one batch; "
                f"{self._remedy}"
            )
        self._pending += [(verb, *one) for one in seen.ignored]

    def compare(self, seen: MeansSeen, assumed: Counted, verb: str) -> None:
        """Take note of what a model has computed beside what its kind lets expect.

        Raises:
            LossError: It computes several losses.
        """
        if len(seen.counts) > 1:
            raise LossError(
                f"the model's own loss has {len(seen.counts)} cross-entropies, each a mean over targets of its own, so "
                "several micro-batches or processes would not make the gradient of one batch; override "
                f"calculate_train_batch_loss, compute the loss there, and {self._remedy}"
            )
        # None is seen of a kernel that computes it at once with the last layer.
        self._assumed += [(verb, assumed.items, count) for count in seen.counts]

    def check(self) -> None:
        """Look at what was noted; this reads the device.

        Raises:
            LossError: Targets were ignored, or a model's loss is over others than its kind lets expect.
        """
        compared, self._assumed = self._assumed, []
        for verb, assumed, count in compared:
            if bool(assumed != count):
                raise LossError(
                    f"the model's own loss, in {verb}, is a mean over {int(count)} targets where its labels have "
                    f"{int(assumed)} that count, so several micro-batches or processes would not make the gradient of "
                    f"one batch; override calculate_train_batch_loss, compute the loss there, and {self._remedy}"
                )
        pending, self._pending = self._pending, []
        for verb, index, there in pending:
            if bool(there):
                raise LossError(
                    f"{verb} computes a cross-entropy in which targets of {index} are ignored: that is a mean over the "
                    "others, not over samples, and several micro-batches or processes would not make the gradient of "
                    f"one batch; {self._remedy}"
                )
