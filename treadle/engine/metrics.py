"""What a step reports: its losses, what the model reports besides, and how long it waited for data."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as distributed
from torch import Tensor

from treadle.engine import dist
from treadle.errors import LossError
from treadle.events import get_event_storage
from treadle.events.names import DATA_TIME


def find_scalars(outputs: Any) -> dict[str, Any]:
    """Return the numbers among what a model returned, detached; a bare tensor is called "loss"."""
    named = outputs if isinstance(outputs, Mapping) else {"loss": outputs}
    found: dict[str, Any] = {}
    for name, value in named.items():
        if isinstance(value, Tensor) and value.numel() == 1:
            found[name] = value.detach().reshape(())
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            found[name] = value
    return found


def total_loss(outputs: Any) -> Tensor:
    """Return the sum of what a model returned under names that contain "loss".

    >>> total_loss({"mlm_loss": torch.tensor(1.0), "sop_loss": torch.tensor(0.5), "accuracy": torch.tensor(9.0)})
    tensor(1.5000)

    Raises:
        LossError: No name contains it.
    """
    if isinstance(outputs, Tensor):
        return outputs
    names = list(outputs) if isinstance(outputs, Mapping) else []
    losses = [outputs[name] for name in names if "loss" in name]
    if not losses:
        kind = f"a dict with {names}" if isinstance(outputs, Mapping) else f"a {type(outputs).__name__}"
        raise LossError(f"the model returned {kind}; return a dict in which the name of each loss contains 'loss'")
    total: Tensor = sum(losses[1:], losses[0])
    return total


def sum_outputs(outputs: Any) -> Tensor:
    """Return the sum of all that a model returned, whatever the names, but for what its losses are means over.

    >>> sum_outputs({"box": torch.tensor(1.0), "mask": torch.tensor(0.5)})
    tensor(1.5000)

    Raises:
        LossError: It returned no losses.
    """
    if isinstance(outputs, Tensor):
        return outputs
    named = outputs if isinstance(outputs, Mapping) else {}
    losses = [value for name, value in named.items() if name != "num_items_in_batch"]
    if not losses or not all(isinstance(loss, Tensor) for loss in losses):
        raise LossError(
            f"the model returned {outputs!r:.80}; a SimpleTrainer adds up all values of a dict of losses, or takes one "
            "tensor: leave everything else out, or put it into the storage"
        )
    total: Tensor = sum(losses[1:], losses[0])
    return total


def mean_over_window(parts: Sequence[tuple[Any, Mapping[str, Any]]]) -> dict[str, Any]:
    """Return the mean of each number over the micro-batches of a window, each with its weight."""
    if len(parts) == 1:
        return dict(parts[0][1])
    names = list(dict.fromkeys(name for _, numbers in parts for name in numbers))
    means = {}
    for name in names:
        weighed = [(weight, numbers[name]) for weight, numbers in parts if name in numbers]
        total = sum(weight for weight, _ in weighed)
        # A window without a label that counts is a mean over nothing: its losses are zeros, and not nan.
        divisor = total.clamp_min(1) if isinstance(total, Tensor) and not total.is_floating_point() else total
        means[name] = sum(value * weight for weight, value in weighed) / divisor
    return means


def zero_without_items(numbers: Mapping[str, Any], items: Tensor) -> dict[str, Any]:
    """Return numbers that are means over `items`, as zeros where there are none of them.

    >>> zero_without_items({"loss": torch.tensor(float("nan"))}, torch.tensor(0))
    {'loss': tensor(0.)}
    """
    return {name: torch.where(items > 0, value, 0.0) for name, value in numbers.items()}


def write_metrics(loss_dict: Any, data_time: float | None, prefix: str = "", *, weight: Any = 1.0) -> None:
    """Put `total_loss`, `data_time` and, if there are several numbers, each of them into the storage of the run.

    Nothing is read from the device. With several processes, all of them must come here: losses are their mean, each
    with its `weight`, `data_time` is their maximum.

    Args:
        loss_dict: What the model returned.
        data_time: Seconds that the step waited for its data; None leaves it out.
        prefix: What the names of the metrics begin with.
        weight: What the losses are means over, as samples or tokens: a number, or a tensor on the device.
    """
    put_numbers(find_scalars(loss_dict), data_time, prefix, weight=weight)


def put_numbers(
    numbers: dict[str, Any], data_time: float | None, prefix: str = "", *, weight: Any = 1.0, add_all: bool = False
) -> None:
    """Put what `find_scalars` returned into the storage of the run, as `write_metrics` does.

    Args:
        numbers: The numbers by name.
        data_time: Seconds that the step waited for its data; None leaves it out.
        prefix: What the names of the metrics begin with.
        weight: What the losses are means over.
        add_all: Whether `total_loss` is the sum of all numbers, whatever their names.
    """
    waited: Any = data_time
    if dist.get_world_size() > 1:
        numbers, waited = _over_processes(numbers, weight, data_time or 0.0)
    storage = get_event_storage()
    if data_time is not None:
        storage.put_scalar(DATA_TIME, waited)
    losses = [value for name, value in numbers.items() if add_all or "loss" in name]
    if losses:
        storage.put_scalar(f"{prefix}total_loss", sum(losses[1:], losses[0]))
    if len(numbers) > 1:
        for name, value in numbers.items():
            storage.put_scalar(f"{prefix}{name}", value)


def _over_processes(numbers: dict[str, Any], weight: Any, data_time: float) -> tuple[dict[str, Any], Tensor]:
    """Return the weighed mean of `numbers` and the maximum of `data_time`, with one collective and without waiting."""
    device = next((value.device for value in numbers.values() if isinstance(value, Tensor)), torch.device("cpu"))
    names = sorted(numbers)
    # A fill is queued; a copy of a host number would wait for the device.
    row = [_on(device, numbers[name]) for name in names] + [_on(device, weight), _on(device, data_time)]
    own = torch.stack([value.float() for value in row])
    rows = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    distributed.all_gather(rows, own)
    table = torch.stack(rows)
    shares = table[:, -2] / table[:, -2].sum()
    means = (table * shares.unsqueeze(1)).sum(dim=0)
    return {name: means[place] for place, name in enumerate(names)}, table[:, -1].max()


def _on(device: torch.device, value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else torch.full((), float(value), device=device)
