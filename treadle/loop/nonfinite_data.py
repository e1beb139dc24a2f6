"""Whether the data of a step whose loss is not finite was finite itself: looked at when the run ends for it."""

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from treadle.data import Batch
from treadle.loop.interfaces import RunningTrainer

logger = logging.getLogger(__name__)


def find_nonfinite_data(trainer: RunningTrainer, step: int) -> str | None:
    """Return which values of the batches of a step are nan or infinite; None if there are none, or nobody can tell.

    The batches are read again, beside the run, where the data can be entered anywhere: that costs a step nothing, and
    is done once, before an error.
    """
    try:
        batches = _batches_of(trainer, step)
    except Exception:  # it is the user's data set that is read, and another error is about to be raised
        logger.debug("the data of step %d cannot be read again", step, exc_info=True)
        return None
    for name, tensor in (found for batch in batches for found in _tensors_in(batch)):
        bad = int((~torch.isfinite(tensor)).sum())
        if bad:
            return f"{bad} of the {tensor.numel()} values in its {name} are nan or infinite"
    return None


def _batches_of(trainer: RunningTrainer, step: int) -> list[Batch]:
    run, stream = trainer.this_run, trainer.this_run.data.training
    if stream is None or stream.sampler is None or trainer.overrides("phases") or trainer.has_custom_loop:
        return []
    size = trainer.settings.gradient_accumulation_steps
    windows = -(-stream.drawn // size)
    window = windows - 1 - (run.progress.step - step)
    if window < 0:
        return []
    beside = stream.aside()
    beside.begin(stream.epoch, window * size)
    try:
        return beside.window(size)
    finally:
        beside.close()


def _tensors_in(batch: Batch) -> Iterator[tuple[str, Tensor]]:
    if isinstance(batch, Mapping):
        named: list[tuple[str, Any]] = [(repr(key), value) for key, value in batch.items()]
    elif isinstance(batch, (list, tuple)):
        names = ("inputs", "targets") if len(batch) == 2 else tuple(f"part {place}" for place in range(len(batch)))
        named = list(zip(names, batch, strict=True))
    else:
        named = [("inputs", batch)]
    for name, value in named:
        if isinstance(value, Tensor) and value.is_floating_point():
            yield name, value
