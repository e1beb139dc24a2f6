"""Reports how fast a run goes, and how much of the devices' peak it uses."""

import copy
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from treadle.callbacks.throughput_monitor import peak_memory
from treadle.data import size_of
from treadle.data.batch import map_leaves
from treadle.engine.hooks.base import HookBase
from treadle.errors import ConfigError
from treadle.events import EventStorage
from treadle.events.names import MFU, PEAK_MEMORY_MIB, SAMPLES_PER_SECOND, STEPS_PER_SECOND, TOKENS_PER_SECOND
from treadle.parallel import strategy_of

# What devices are capable of: operations per second, dense, by number format


TERA = 1e12

PEAKS: dict[str, dict[str, float]] = {
    "B200": {"half": 2250 * TERA, "fp32": 75 * TERA},
    "H200": {"half": 989 * TERA, "fp32": 67 * TERA},
    "H100 PCIe": {"half": 756 * TERA, "fp32": 51 * TERA},
    "H100": {"half": 989 * TERA, "fp32": 67 * TERA},
    "A100": {"half": 312 * TERA, "fp32": 19.5 * TERA},
    "L40S": {"half": 362 * TERA, "fp32": 91.6 * TERA},
    "L4": {"half": 121 * TERA, "fp32": 30.3 * TERA},
    "A10": {"half": 125 * TERA, "fp32": 31.2 * TERA},
    "V100": {"half": 125 * TERA, "fp32": 15.7 * TERA},
    "T4": {"half": 65 * TERA, "fp32": 8.1 * TERA},
}
"""By a part of the device's name; the first that fits is taken. Half is bf16 and fp16 with tensor cores."""


def device_peak_flops(device: torch.device, precision: str) -> float | None:
    """Return the operations per second that `device` is capable of; None if nobody has written it down.

    Args:
        device: The device of this process.
        precision: "fp32", "bf16" or "fp16"; fp32 means without TF32.
    """
    if device.type != "cuda":
        return None
    return peak_by_name(torch.cuda.get_device_name(device), precision)


def peak_by_name(name: str, precision: str) -> float | None:
    """Return the peak of the device called `name`.

    >>> peak_by_name("NVIDIA H200", "bf16") / TERA
    989.0
    """
    for part, peaks in PEAKS.items():
        if part.lower() in name.lower():
            return peaks["fp32" if precision == "fp32" else "half"]
    return None


# How many operations a model makes for one sample, counted in a pass that computes nothing


FORWARD_AND_BACKWARD = 3
"""A backward pass makes two products for each of the forward pass."""

TOKEN_INPUTS = ("input_ids", "tokens", "token_ids", "encoder_input_ids", "ids", "idx")
"""The names of inputs that are (samples, length) of tokens."""


class FlopsCounter:
    """Counts the operations of one sample in the first pass of a run.

    The pass is made by a copy of the model on the "meta" device, where tensors have shapes and no numbers: no weight,
    no buffer and no random generator is touched. A model that cannot run there is reported in the log, and not
    counted.

    Attributes:
        flops_per_sample: Operations of a forward and a backward pass; None if they could not be counted.
        tokens_per_sample: The length of the token input; None if there is none.
    """

    def __init__(self) -> None:
        self.flops_per_sample: float | None = None
        self.tokens_per_sample: int | None = None

    def count(self, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Count the operations of `model(*args, **kwargs)`."""
        samples = size_of(kwargs if kwargs else args)
        self.tokens_per_sample = _length_of_tokens(kwargs)
        strategy = strategy_of(model)
        if strategy is not None and strategy.is_pipeline:
            logger.info("mfu is not reported: no process has all of %s; set train.flops_per_sample", _name(model))
            return
        try:
            total = count_forward(model, args, kwargs)
        except Exception as error:
            logger.info("mfu is not reported: the operations of %s cannot be counted (%s)", _name(model), error)
            return
        if total:
            self.flops_per_sample = FORWARD_AND_BACKWARD * total / max(samples, 1)


def count_forward(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    """Return the operations of one forward pass; a multiplication and an addition are two.

    >>> count_forward(nn.Linear(4, 3, bias=False), (torch.zeros(2, 4),), {})
    48
    """
    shadow = copy_to_meta(model)
    counter = FlopCounterMode(display=False)
    # What the model reports in this pass is of no iteration.
    with torch.no_grad(), EventStorage(), counter:
        shadow(*on_meta(args), **on_meta(kwargs))
    return int(counter.get_total_flops())


def copy_to_meta(model: nn.Module) -> nn.Module:
    """Return a copy of `model` whose tensors have no numbers, and whose passes nobody notices."""
    tensors = [*model.parameters(), *model.buffers()]
    # Found in the memo, a tensor is not copied but replaced: no memory of the device is taken.
    shadow = copy.deepcopy(model, {id(tensor): _without_numbers(tensor) for tensor in tensors})
    for module in shadow.modules():
        module._forward_hooks.clear()
        module._forward_pre_hooks.clear()
        # A forward put there afterwards, as for recomputed activations, is that of the original.
        vars(module).pop("forward", None)
    return shadow


def _without_numbers(tensor: Tensor) -> Tensor:
    bare = tensor.detach().to("meta")
    return nn.Parameter(bare, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else bare


def on_meta(value: Any) -> Any:
    """Return `value` with the shapes of its tensors alone."""
    return map_leaves(lambda leaf: leaf.detach().to("meta") if isinstance(leaf, Tensor) else leaf, value)


def _length_of_tokens(kwargs: Mapping[str, Any]) -> int | None:
    for name in TOKEN_INPUTS:
        value = kwargs.get(name)
        if isinstance(value, Tensor) and value.dim() >= 2:
            return int(value.shape[1])
    return None


def _name(model: Callable[..., Any]) -> str:
    return type(model).__name__


logger = logging.getLogger(__name__)


class Throughput(HookBase):
    """Reports samples, tokens and iterations per second, the use of the devices' peak, and the peak of memory.

    The clock is read every so many iterations; the time of evaluations and checkpoints does not count. Iterations
    that warm up do not count either. Samples are those of all processes. Put it before `EvalHook` and the writers.

    Args:
        period: Iterations between two reports.
        warmup_iter: How many iterations at the start of a run are left out.
        tokens_per_sample: Tokens in a sample; None takes the length of the model's token input, if there is one.
        flops_per_sample: Operations of forward and backward pass; None counts them once, in a pass that computes
            nothing.
        peak_flops: Operations per second that one device is capable of; None looks it up in a table.
    """

    def __init__(
        self,
        period: int = 20,
        *,
        warmup_iter: int = 3,
        tokens_per_sample: int | None = None,
        flops_per_sample: float | None = None,
        peak_flops: float | None = None,
    ) -> None:
        if period < 1:
            raise ConfigError(f"Throughput(period={period}) must be at least 1")
        self._period = period
        self._warmup = warmup_iter
        self._tokens = tokens_per_sample
        self._flops = flops_per_sample
        self._peak = peak_flops

    def before_train(self) -> None:
        """Look up the peak, and have the operations of the model counted in its first pass."""
        core = self.trainer.core
        self._progress = core.progress
        self._steps = self._samples = 0
        self._seconds = 0.0
        self._step_began = 0.0
        self._first = self.trainer.iter
        if self._peak is None:
            self._peak = device_peak_flops(core.device, core.precision.kind)
        self._counter = FlopsCounter()
        core.on_first_data = self._counter.count

    def before_step(self) -> None:
        """Start the clock."""
        self._step_began = time.perf_counter()
        self._samples_before = self._progress.samples

    def after_step(self) -> None:
        """Add up the iteration; report if it is time."""
        if self.trainer.iter - self._first >= self._warmup:
            self._seconds += time.perf_counter() - self._step_began
            self._steps += 1
            self._samples += self._progress.samples - self._samples_before
        if (self.trainer.iter + 1) % self._period == 0 and self._steps:
            self._report()

    def _report(self) -> None:
        core, storage = self.trainer.core, self.trainer.storage
        if core.device.type == "cuda":
            # The queue of the device is worked off, so that host time is device time; a flush is due now anyway.
            began = time.perf_counter()
            storage.flush()
            self._seconds += time.perf_counter() - began
        # Processes that work on the same samples, as the stages of a pipeline do, count them once.
        own = self._samples / self._seconds
        all_samples = own * core.parallel.data_size
        storage.put_scalar(SAMPLES_PER_SECOND, all_samples)
        storage.put_scalar(STEPS_PER_SECOND, self._steps / self._seconds)
        tokens = self._tokens or self._counter.tokens_per_sample
        if tokens:
            storage.put_scalar(TOKENS_PER_SECOND, all_samples * tokens)
        flops = self._flops or self._counter.flops_per_sample
        if flops and self._peak:
            storage.put_scalar(MFU, own * flops / self._peak / core.parallel.copies)
        memory = peak_memory(core.device)
        if memory is not None:
            storage.put_scalar(PEAK_MEMORY_MIB, memory / 2**20, smoothing_hint=False)
        self._steps = self._samples = 0
        self._seconds = 0.0
