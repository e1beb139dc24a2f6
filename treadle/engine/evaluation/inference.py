"""A model over a data set, once, without gradients."""

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from treadle.console.lines import DETAIL
from treadle.data import Stream, make_loader
from treadle.data.batch import map_leaves
from treadle.engine.batch_arguments import bind_placement, call_arguments
from treadle.engine.evaluation.evaluators import DatasetEvaluator
from treadle.engine.trainers.graph import Graph
from treadle.ops.eval_mode import eval_mode
from treadle.parallel import Processes, Strategy, in_step, strategy_of
from treadle.runs.preemption import after_evaluated_batch

logger = logging.getLogger(__name__)


inference_context = eval_mode
"""What LiBai and detectron2 call it."""


@torch.no_grad()
def inference_on_dataset(
    model: Any,
    data_loader: Any,
    batch_size: Any = 32,
    eval_iter: float = 1e5,
    get_batch: Callable[..., Any] | None = None,
    input_placement_device: str | None = None,
    evaluator: DatasetEvaluator | None = None,
    *,
    device: torch.device | str | None = None,
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> dict[str, Any]:
    """Run `model` over the data, each sample once, and return what `evaluator` makes of it.

    With several processes each takes its share; no sample is padded or repeated. All of them look at one model: the
    buffers that passes of training move, such as the statistics of batch norms, are those of the first process.

    Args:
        model: What to evaluate.
        data_loader: A loader, a data set, or an iterable of batches.
        batch_size: Samples per batch, where a loader has to be made; or an evaluator, as detectron2's programs give it
            in this place: the model is called with each batch as it is then.
        eval_iter: The most batches that a process looks at.
        get_batch: Turns a batch into the arguments of the model.
        input_placement_device: Where `get_batch` should put them.
        evaluator: What the outputs are for; by default nothing.
        device: Where the model is; by default the device of this process.
        autocast: Returns the context of each forward pass.
    """
    as_it_is = hasattr(batch_size, "process")
    if as_it_is:
        evaluator, batch_size = batch_size, 32
    processes = Processes(device)
    evaluator = DatasetEvaluator() if evaluator is None else evaluator
    prepare = _unchanged if as_it_is else _prepared(get_batch, input_placement_device)
    whole = model.model if isinstance(model, Graph) else model
    strategy = strategy_of(whole)
    (processes if strategy is None else strategy).share_buffers(whole)
    stream = _rank_share(data_loader, batch_size, processes, strategy)
    evaluator.reset()
    began = time.perf_counter()
    batches = 0
    with inference_context(model):
        for batch, counts in in_step(islice(stream.rest(), int(eval_iter)), processes, strategy):
            batches += counts
            inputs = prepare(batch)
            with autocast():
                outputs = _outputs(model, (inputs,) if as_it_is else inputs, strategy)
            if counts or not evaluator.local:
                _hand_over(evaluator, processes, (inputs, outputs) if counts else None)
            after_evaluated_batch()
        if strategy is not None:
            strategy.after_eval(whole)
        if processes.distributed and not evaluator.local:
            _wait_for_others(evaluator, processes)
    results = evaluator.evaluate() or {}
    logger.info("evaluated %d batches in %.1f s", batches, time.perf_counter() - began, extra=DETAIL)
    return results


def _unchanged(batch: Any) -> Any:
    return batch


def _outputs(model: Any, inputs: Any, strategy: Strategy | None) -> Any:
    args, kwargs = call_arguments(inputs)
    if strategy is not None and strategy.is_pipeline:
        return strategy.call(model, args, kwargs)
    return model(*args, **kwargs)


def _prepared(get_batch: Callable[..., Any] | None, device: str | None) -> Callable[[Any], Any]:
    if get_batch is None:
        return lambda batch: batch if isinstance(batch, (Mapping, tuple, list)) else (batch,)
    return bind_placement(get_batch, device)


def _rank_share(data: Any, batch_size: int, processes: Processes, strategy: Strategy | None) -> Stream:
    sized = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    if sized and not isinstance(data, (DataLoader, list, tuple)):
        data = make_loader(data, shuffle=False, batch_size=batch_size)
    rank, size = (processes.rank, processes.size) if strategy is None else (strategy.data_rank, strategy.data_size)
    stream = Stream(data, device=processes.device, rank=rank, size=size, evaluation=True, name="test")
    stream.begin(0)
    return stream


def _hand_over(evaluator: DatasetEvaluator, processes: Processes, own: tuple[Any, Any] | None) -> None:
    """Give one batch to the evaluator, joined with those of the other processes unless it is local."""
    if own is not None and (not processes.distributed or evaluator.local):
        evaluator.process(*own)
        return
    for theirs in _batches_of_all(processes, on_host(own)):
        evaluator.process(*theirs)


def _wait_for_others(evaluator: DatasetEvaluator, processes: Processes) -> None:
    """Take part in the exchanges of processes that have more batches than this one."""
    while others := _batches_of_all(processes, None):
        for theirs in others:
            evaluator.process(*theirs)


def _batches_of_all(processes: Processes, own: Any) -> list[Any]:
    """Return the batches that the processes bring, in rank order; those that bring none are left out."""
    return [batch for batch in processes.gather_objects(own) if batch is not None]


def on_host(value: Any) -> Any:
    """Return `value` with its tensors on the host."""
    return map_leaves(lambda leaf: leaf.cpu() if isinstance(leaf, Tensor) else leaf, value)
