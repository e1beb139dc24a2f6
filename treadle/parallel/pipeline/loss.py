"""How a batch goes into the stages of a pipeline, and what comes of it at their end."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from treadle.data import Batch
from treadle.errors import DataError
from treadle.ops.loss_items import IGNORED, Criterion, MeansOverItems, MeansSeen
from treadle.ops.losses import TARGET_KEYS, model_inputs, read_targets
from treadle.ops.model_loss import ITEMS, label_rule

TARGETS = "targets"


class Entry(NamedTuple):
    """What a batch is to the modules of a pipeline.

    Attributes:
        args: What the first module is called with.
        kwargs: What is handed, by name, to each module whose `forward` names it.
        ending: What the end of the pipeline takes besides: tensors by name.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    ending: dict[str, Any]


class StageLoss:
    """The loss of the last stage: `loss_func(outputs, targets)`, or the last module's own.

    Args:
        loss_func: Called with outputs and targets; None if the last module takes targets and returns the loss, or a
            dict with it as "loss".
        criterion: What `loss_func` does with its targets, if it is a cross-entropy.

    Attributes:
        means: Told over what the losses are means, where somebody wants to know; None otherwise.
    """

    means: MeansOverItems | None = None

    def __init__(self, loss_func: Any, criterion: Criterion | None = None) -> None:
        self._loss_func, self._criterion = loss_func, criterion

    def enter(self, batch: Batch) -> Entry:
        """Return what `batch` is to the modules."""
        return Entry(*model_inputs(batch), {TARGETS: read_targets(batch)})

    def looked_at(self, last: nn.Module, hidden: Tensor, ending: Mapping[str, Any]) -> dict[str, Any]:
        """Return what `finish` does, and tell `means` of a loss that does not say over what it is a mean."""
        if self.means is None:
            return self.finish(last, hidden, ending)
        with MeansSeen() as seen:
            found = self.finish(last, hidden, ending)
        if "num_items_in_batch" not in found:
            self.means.take(seen, "the last stage")
        return found

    def finish(self, last: nn.Module, hidden: Tensor, ending: Mapping[str, Any]) -> dict[str, Any]:
        """Return the "loss" of what came out of the modules before the `last` one, which this calls.

        A loss that is a mean over something else than samples says over how many, as "num_items_in_batch".
        """
        targets = ending[TARGETS]
        if self._loss_func is not None:
            loss = self._loss_func(last(hidden), targets)
            if self._criterion is None or targets.is_floating_point():
                return {"loss": loss}
            items = self._criterion.items_of(targets).to(torch.promote_types(loss.dtype, torch.float32))
            return {"loss": torch.where(items > 0, loss, 0.0), "num_items_in_batch": items}
        outputs = last(hidden, targets)
        if not isinstance(outputs, Mapping):
            return {"loss": outputs}
        return {name: outputs[name] for name in ("loss", "num_items_in_batch") if name in outputs}


class NamedLoss(StageLoss):
    """The loss of a model of transformers, whose last module takes the batch by name.

    Args:
        model: The model.
        loss_func: Called with scores and targets; None if the model computes its loss itself.
        criterion: What `loss_func` does with its targets, if it is a cross-entropy.
        route: Returns what arguments of the model are to its modules.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_func: Any,
        criterion: Criterion | None,
        route: Callable[[Mapping[str, Any]], Entry],
    ) -> None:
        super().__init__(loss_func, criterion)
        self._route, self._rule = route, label_rule(model)

    def enter(self, batch: Batch) -> Entry:
        """Return what `batch` is to the modules.

        Raises:
            DataError: It has no names.
        """
        if not isinstance(batch, Mapping):
            raise DataError(
                f"Plan: pipeline: a batch is a {type(batch).__name__}; give a model of transformers a dict of tensors "
                "by the names that it takes"
            )
        return self._route(batch)

    def finish(self, last: nn.Module, hidden: Tensor, ending: Mapping[str, Any]) -> dict[str, Any]:
        """Return the loss, and over how many labels it is a mean where that is known."""
        if self._loss_func is not None:
            inputs = {name: value for name, value in ending.items() if name not in TARGET_KEYS}
            scores = last(hidden, **inputs)["logits"]
            found = super().finish(_Made(scores), hidden, {TARGETS: read_targets(ending)})
            return {**found, "logits": scores}
        rule = self._rule
        targets = None if rule is None else rule.targets(ending)
        if rule is None or targets is None:
            return _told(last(hidden, **ending))
        items = Criterion(None, IGNORED).items_of(targets)
        found = _told(last(hidden, **{**ending, ITEMS: items.clamp_min(1)} if rule.takes_items else ending))
        return {**found, "loss": torch.where(items > 0, found["loss"], 0.0), ITEMS: items}


class _Made(nn.Module):
    """What a module has returned already, for whoever would call it."""

    def __init__(self, made: Tensor) -> None:
        super().__init__()
        self._made = made

    def forward(self, *args: Any) -> Tensor:
        return self._made


def _told(outputs: Any) -> dict[str, Any]:
    """Return of what a model returned its loss, its scores, and what the loss is a mean over."""
    if not isinstance(outputs, Mapping):
        return {"loss": outputs}
    return {name: outputs[name] for name in ("loss", "logits", ITEMS) if outputs.get(name) is not None}


def as_one(entries: Sequence[Entry]) -> Entry:
    """Return the micro-batches of a window as one."""
    args = tuple(_cat(column) for column in zip(*(entry.args for entry in entries), strict=True))
    kwargs, ending = (
        {name: _cat([part[name] for part in parts]) for name in parts[0]}
        for parts in ([entry.kwargs for entry in entries], [entry.ending for entry in entries])
    )
    return Entry(args, kwargs, ending)


def in_parts(batch: Mapping[str, Tensor], count: int) -> list[dict[str, Tensor]]:
    """Return tensors by name in so many parts, each by name."""
    parts = {name: value.tensor_split(count) for name, value in batch.items()}
    return [{name: cut[place] for name, cut in parts.items()} for place in range(count)]


def _cat(values: Sequence[Any]) -> Tensor:
    if not all(isinstance(value, Tensor) for value in values):
        kind = type(values[0]).__name__
        raise DataError(f"Plan: pipeline: a batch holds a {kind}; stages take batches of tensors")
    if not all(value.dim() for value in values):
        raise DataError("Plan: pipeline: a batch holds a single number; stages take tensors with a row for each sample")
    return values[0] if len(values) == 1 else torch.cat(list(values))
