"""What a batch and a model say about the loss when no method is overridden."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from treadle.data import Batch, size_of
from treadle.errors import ConfigError, DataError, LossError

TARGET_KEYS = ("labels", "label", "targets", "target")


def default_loss(model: nn.Module, loss_func: Any, batch: Batch) -> dict[str, Any]:
    """Return loss, outputs and size of `batch`: `loss_func(model(inputs), targets)`, or the model's own loss."""
    if loss_func is None:
        return _models_own_loss(model, batch)
    # The exact type first: `isinstance` of an abstract class is slow, and most batches are lists.
    if type(batch) not in (list, tuple) and isinstance(batch, Mapping):
        outputs = model(**model_inputs(batch)[1])
        targets = read_targets(batch)
        loss = loss_func(getattr(outputs, "logits", outputs), targets)
        return {"loss": loss, "model_outputs": outputs, "batch_size": size_of(batch)}
    inputs, targets = _split_pair(batch)
    try:
        size = len(targets)
    except TypeError as error:
        raise DataError(_no_pair(batch)) from error
    outputs = model(inputs)
    plain = outputs if isinstance(outputs, Tensor) else getattr(outputs, "logits", outputs)
    return {"loss": loss_func(plain, targets), "model_outputs": outputs, "batch_size": size}


def _split_pair(batch: Batch) -> tuple[Any, Any]:
    try:
        if isinstance(batch, Tensor):
            raise TypeError("a tensor is no pair of its first two rows")
        return batch[0], batch[1]
    except (TypeError, IndexError, KeyError) as error:
        raise DataError(_no_pair(batch)) from error


def _no_pair(batch: Batch) -> str:
    return (
        f"a batch of type {type(batch).__name__} has no (inputs, targets); make the data set return pairs, "
        "or override calculate_train_batch_loss and calculate_eval_batch_loss"
    )


def _models_own_loss(model: nn.Module, batch: Batch) -> dict[str, Any]:
    outputs = model(**batch) if isinstance(batch, Mapping) else model(*_as_tuple(batch))
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
    if loss is None:
        raise ConfigError(
            f"loss_func is None and {type(model).__name__} returned a {type(outputs).__name__} without a loss; "
            "pass loss_func=, return an object with .loss, or override calculate_train_batch_loss"
        )
    output = {"loss": loss, "model_outputs": outputs, "batch_size": size_of(batch)}
    items = outputs.get("num_items_in_batch") if isinstance(outputs, Mapping) else None
    return output if items is None else {**output, "num_items_in_batch": items}


def model_inputs(batch: Batch) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and the keyword inputs of a model: a batch without its targets."""
    if isinstance(batch, Mapping):
        return (), {key: value for key, value in batch.items() if key not in TARGET_KEYS}
    if isinstance(batch, (list, tuple)):
        return (batch[0],), {}
    return (batch,), {}


def read_targets(batch: Batch) -> Any:
    """Return the targets of a batch: its second part, or what it holds under a usual name.

    Raises:
        DataError: It holds none of these names, or has no second part.
    """
    if isinstance(batch, Mapping):
        for key in TARGET_KEYS:
            if key in batch:
                return batch[key]
        raise DataError(f"a batch with {sorted(map(str, batch))} has none of {TARGET_KEYS}; override the loss methods")
    return _split_pair(batch)[1]


def _as_tuple(batch: Batch) -> tuple[Any, ...]:
    return tuple(batch) if isinstance(batch, (list, tuple)) else (batch,)


def function_name(verb: Any) -> str:
    """Return what to call a function in messages, a partial one too."""
    return str(getattr(verb, "__name__", None) or getattr(getattr(verb, "func", verb), "__name__", repr(verb)))


def check_loss(output: Any, *, verb: str, graph: bool = True) -> None:
    """Check what a loss method returned.

    Args:
        output: What it returned.
        verb: Its name.
        graph: Whether a gradient must be able to flow through the loss.

    Raises:
        LossError: There is none, it is no scalar, or no gradient can flow through it.
    """
    if not (type(output) is dict or isinstance(output, Mapping)) or "loss" not in output:
        raise LossError(
            f"{verb} returned {_described(output)}; return a dict with 'loss', 'model_outputs', 'batch_size'"
        )
    loss = output["loss"]
    if not isinstance(loss, Tensor):
        raise LossError(f"{verb} returned a loss of type {type(loss).__name__}; return a tensor, not its .item()")
    if loss.dim() != 0 and loss.numel() != 1:
        raise LossError(f"{verb} returned a loss of shape {tuple(loss.shape)}; reduce it with .mean() or .sum()")
    if graph and not loss.requires_grad:
        raise LossError(
            f"{verb} returned a loss without a graph; compute it from the model's outputs with gradients on, "
            "and give at least one parameter requires_grad=True"
        )


def _described(output: Any) -> str:
    return f"a dict with {sorted(map(str, output))}" if isinstance(output, Mapping) else f"a {type(output).__name__}"


def describe_batch(batch: Batch) -> str:
    """Return the shapes and types in a batch, for messages.

    >>> import torch; describe_batch([torch.zeros(2, 3), torch.zeros(2, dtype=torch.long)])
    '[float32 (2, 3), int64 (2,)]'
    """
    if isinstance(batch, Tensor):
        return f"{str(batch.dtype).removeprefix('torch.')} {tuple(batch.shape)}"
    if isinstance(batch, Mapping):
        return "{" + ", ".join(f"{key}: {describe_batch(value)}" for key, value in batch.items()) + "}"
    if isinstance(batch, (list, tuple)):
        return "[" + ", ".join(map(describe_batch, batch)) + "]"
    return type(batch).__name__
