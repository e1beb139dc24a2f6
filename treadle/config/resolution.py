"""From what a config asks for to the numbers of a run: batch sizes, iterations, warm-up, milestones, periods.

All of it is arithmetic on plain numbers. One iteration is one optimizer step.
"""

import copy
import logging
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from treadle.console.lines import DETAIL
from treadle.errors import ConfigError

logger = logging.getLogger(__name__)


class BatchSizes(NamedTuple):
    """How many samples a step takes: `global_batch_size = micro * accumulation * data_parallel_size`."""

    train_micro_batch_size: int
    global_batch_size: int
    num_accumulation_steps: int


def resolve_batch_sizes(
    micro: int | None, global_: int | None, accumulation: int | None, data_parallel_size: int
) -> BatchSizes:
    """Return all three batch sizes from those that are given.

    >>> resolve_batch_sizes(8, 64, None, data_parallel_size=2)
    BatchSizes(train_micro_batch_size=8, global_batch_size=64, num_accumulation_steps=4)
    >>> resolve_batch_sizes(None, 64, 2, data_parallel_size=4).train_micro_batch_size
    8

    Args:
        micro: `train_micro_batch_size`, the samples of one forward pass on one rank.
        global_: `global_batch_size`, the samples of one step on all ranks.
        accumulation: `num_accumulation_steps`, the forward passes of one step; 1 where nothing says otherwise.
        data_parallel_size: how many ranks see different samples.

    Raises:
        ConfigError: neither `micro` nor `global_` is given, or the numbers do not fit together.
    """
    _require_whole("train_micro_batch_size", micro)
    _require_whole("global_batch_size", global_)
    _require_whole("num_accumulation_steps", accumulation)
    _require_whole("data_parallel_size", data_parallel_size)
    if micro is None and global_ is None:
        raise ConfigError("give train_micro_batch_size or global_batch_size, or both; neither is set")
    if global_ is None:
        assert micro is not None
        accumulation = accumulation or 1
        return BatchSizes(micro, micro * data_parallel_size * accumulation, accumulation)
    if micro is None:
        accumulation = accumulation or 1
        return BatchSizes(_micro(global_, accumulation, data_parallel_size), global_, accumulation)
    return BatchSizes(micro, global_, _accumulation(micro, global_, accumulation, data_parallel_size))


def _micro(global_: int, accumulation: int, data_parallel_size: int) -> int:
    passes = accumulation * data_parallel_size
    if global_ % passes:
        raise ConfigError(
            f"global_batch_size={global_} is no multiple of num_accumulation_steps={accumulation} times "
            f"data_parallel_size={data_parallel_size}, which is {passes}"
        )
    return global_ // passes


def _accumulation(micro: int, global_: int, given: int | None, data_parallel_size: int) -> int:
    at_once = micro * data_parallel_size
    if global_ % at_once:
        raise ConfigError(
            f"global_batch_size={global_} is no multiple of train_micro_batch_size={micro} times "
            f"data_parallel_size={data_parallel_size}, which is {at_once}"
        )
    if given is not None and given * at_once != global_:
        raise ConfigError(
            f"train_micro_batch_size={micro} times data_parallel_size={data_parallel_size} times "
            f"num_accumulation_steps={given} is {given * at_once}, but global_batch_size={global_}; set "
            f"num_accumulation_steps={global_ // at_once}, or leave it out"
        )
    return global_ // at_once


def resolve_iterations(train_iter: int, train_epoch: float, dataset_length: int | None, global_batch_size: int) -> int:
    """Return how many iterations to train: as many as both `train_iter` and `train_epoch` ask for.

    >>> resolve_iterations(100, 3, dataset_length=1000, global_batch_size=32)
    100
    >>> resolve_iterations(10, 3, dataset_length=1000, global_batch_size=32)
    94

    Args:
        train_iter: the least number of iterations; 0 leaves it to the epochs.
        train_epoch: the least number of passes over the data; 0 leaves it to the iterations.
        dataset_length: the samples of one pass; None if the data has no length.
        global_batch_size: the samples of one iteration.

    Raises:
        ConfigError: nothing is asked for, a number is below 0, or epochs are asked for of data without a length.
    """
    _require_whole("train_iter", train_iter, least=0)
    _require_whole("global_batch_size", global_batch_size)
    _require_number("train_epoch", train_epoch)
    if not train_iter and not train_epoch:
        raise ConfigError(f"train_iter={train_iter} and train_epoch={train_epoch}: there is nothing to train")
    if not train_epoch:
        return train_iter
    samples = Fraction(str(train_epoch)) * _length(dataset_length, f"train_epoch={train_epoch}")
    return max(train_iter, math.ceil(samples / global_batch_size))


def resolve_warmup(ratio: float, iterations: int) -> int:
    """Return how many iterations the warm-up takes: `ratio` of all, rounded up.

    The ratio counts as it is written, in decimals: 0.07 of 100 iterations is 7, though as floating-point numbers
    their product is a little more.

    >>> resolve_warmup(0.07, 100), resolve_warmup(0.071, 100), resolve_warmup(0, 100)
    (7, 8, 0)

    Args:
        ratio: `warmup_ratio`, from 0 up to but not including 1.
        iterations: how many iterations there are in all.

    Raises:
        ConfigError: the ratio lies outside.
    """
    return math.ceil(_share("warmup_ratio", ratio) * iterations)


def resolve_milestones(milestones: Sequence[float], iterations: int) -> list[int]:
    """Return the iterations at which the rate drops.

    >>> resolve_milestones([0.6, 0.8], 1000)
    [600, 800]
    >>> resolve_milestones([600, 800], 1000)
    [600, 800]

    Args:
        milestones: shares of the run, from 0 up to but not including 1, or iterations, whole numbers from 1 up.
        iterations: how many iterations there are in all.

    Raises:
        ConfigError: they are neither, or do not rise.
    """
    given = list(milestones)
    if given and all(isinstance(value, int) and not isinstance(value, bool) and value >= 1 for value in given):
        steps = [int(value) for value in given]
    else:
        steps = [math.floor(_share("milestones", value) * iterations) for value in given]
    if steps != sorted(set(steps)):
        raise ConfigError(f"milestones={given} of {iterations} iterations lie at {steps}; they must rise")
    return steps


def resolve_period(
    name: str, epochs: int | None, period: int, dataset_length: int | None, global_batch_size: int
) -> int:
    """Return after how many iterations something happens that is asked for every so many epochs.

    An epoch counts at least as one iteration, however small the data.

    >>> resolve_period("eval_after_n_epoch", 2, 5000, dataset_length=1000, global_batch_size=32)
    62
    >>> resolve_period("eval_after_n_epoch", None, 5000, dataset_length=None, global_batch_size=32)
    5000

    Args:
        name: the key that asks for it, for messages.
        epochs: every how many epochs; None leaves it at `period`.
        period: every how many iterations.
        dataset_length: the samples of one epoch; None if the data has no length.
        global_batch_size: the samples of one iteration.

    Raises:
        ConfigError: `epochs` is no whole number above 0, or the data has no length.
    """
    if epochs is None:
        return period
    _require_whole(name, epochs)
    return max(1, _length(dataset_length, f"{name}={epochs}") // global_batch_size) * epochs


def resolve_train(train: Any, *, data_parallel_size: int, dataset_length: int | None) -> Any:
    """Return a copy of a `train` config in which every number that can be worked out is there.

    Batch sizes, `train_iter`, the two periods that may be given in epochs, and the scheduler's `max_iter`,
    `warmup_iter` and `milestones` are filled in, and logged. Resolving the result once more changes nothing.

    Args:
        train: a config with the keys of `common/train.py`.
        data_parallel_size: how many ranks see different samples.
        dataset_length: the samples of one pass over the training data; None if it has no length.

    Raises:
        ConfigError: numbers that do not fit together.
    """
    resolved = copy.deepcopy(train)
    sizes = resolve_batch_sizes(
        train.train_micro_batch_size, train.global_batch_size, train.num_accumulation_steps, data_parallel_size
    )
    resolved.update(sizes._asdict())
    batch = sizes.global_batch_size
    iterations = resolve_iterations(train.train_iter, train.train_epoch, dataset_length, batch)
    resolved.train_iter = iterations
    evaluation, saving = train.evaluation, train.checkpointer
    resolved.evaluation.eval_period = resolve_period(
        "eval_after_n_epoch", evaluation.eval_after_n_epoch, evaluation.eval_period, dataset_length, batch
    )
    resolved.checkpointer.period = resolve_period(
        "save_model_after_n_epoch", saving.save_model_after_n_epoch, saving.period, dataset_length, batch
    )
    _fit_scheduler(resolved.scheduler, iterations, resolve_warmup(train.warmup_ratio, iterations))
    warmup = resolve_warmup(train.warmup_ratio, iterations)
    logger.info("%s, train_iter=%d, warm-up of %d", sizes, iterations, warmup, extra=DETAIL)
    return resolved


def _fit_scheduler(scheduler: Any, iterations: int, warmup: int) -> None:
    if scheduler is None:
        return
    scheduler.max_iter = iterations
    scheduler.warmup_iter = warmup
    if scheduler.get("milestones") is not None:
        scheduler.milestones = resolve_milestones(scheduler.milestones, iterations)


def _share(name: str, value: float) -> Fraction:
    _require_number(name, value)
    if not 0 <= value < 1:
        raise ConfigError(f"{name}={value!r} must be from 0 up to, but not including, 1: a share of the whole run")
    return Fraction(str(value))


def _length(dataset_length: int | None, wanted_for: str) -> int:
    if dataset_length is None:
        raise ConfigError(f"{wanted_for} needs data with a length, and this has none; count in iterations instead")
    _require_whole("the length of the data", dataset_length)
    return dataset_length


def _require_whole(name: str, value: Any, *, least: int = 1) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name}={value!r} must be a whole number from {least} up")


def _require_number(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise ConfigError(f"{name}={value!r} must be a number from 0 up")
