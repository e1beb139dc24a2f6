"""The trainers of programs in the manner of detectron2's: a model that takes a batch and returns its losses."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from treadle.engine.core import CoreOptions, StepPlan
from treadle.engine.metrics import find_scalars, put_numbers, sum_outputs
from treadle.engine.trainers.eager import EagerTrainer, is_core_step
from treadle.errors import ConfigError
from treadle.precision import LossScaling

PRECISIONS = {torch.float16: "fp16", torch.bfloat16: "bf16"}


class SimpleTrainer(EagerTrainer):
    """One iteration is one optimizer step by one batch: the model is called with the batch, and returns its losses.

    They are a dict, all of whose values are added up, or a single tensor. An iteration never waits for the device:
    numbers are read when they are written, and a loss that is not finite is found out then, with its iteration.

    Args:
        model: What to train; `model(batch)` returns the losses.
        data_loader: Where batches come from, epoch after epoch.
        optimizer: What updates the weights.
        gather_metric_period: Losses are reported, as means over the processes, every so many iterations.
        zero_grad_before_forward: Gradients are always zero before the forward pass; it changes nothing.
        async_write_metrics: No iteration waits for its numbers in any case; it changes nothing.
    """

    def __init__(
        self,
        model: nn.Module,
        data_loader: Any,
        optimizer: Optimizer,
        gather_metric_period: int = 1,
        zero_grad_before_forward: bool = False,
        async_write_metrics: bool = False,
    ) -> None:
        if gather_metric_period < 1:
            raise ConfigError(f"gather_metric_period={gather_metric_period} must be at least 1")
        super().__init__(model, data_loader, optimizer)
        model.train()
        self.gather_metric_period = gather_metric_period
        self.zero_grad_before_forward = zero_grad_before_forward
        self.async_write_metrics = async_write_metrics

    def step_plan(self, get_batch: Callable[[Any], Any], foreign: Callable[[int], None] | None) -> StepPlan:
        """Return what one iteration is made of: the model gets the batch as it is."""
        return replace(
            super().step_plan(lambda batch: (batch,), foreign),
            total=sum_outputs,
            adds_all=True,
            report_period=self.gather_metric_period,
        )

    def _write_metrics(
        self, loss_dict: Mapping[str, Tensor] | Tensor, data_time: float, prefix: str = "", iter: int | None = None
    ) -> None:
        """Report the losses of a `run_step` of your own, if it is time."""
        if ((self.iter if iter is None else iter) + 1) % self.gather_metric_period == 0:
            self.write_metrics(loss_dict, data_time, prefix=prefix)

    @staticmethod
    def write_metrics(
        loss_dict: Mapping[str, Tensor] | Tensor, data_time: float, cur_iter: int | None = None, prefix: str = ""
    ) -> None:
        """Put `total_loss`, which is the sum of all losses, `data_time` and each loss into the storage of the run.

        Args:
            loss_dict: The losses by name, or one.
            data_time: Seconds that the step waited for its data.
            cur_iter: The iteration, which is that of the run in any case.
            prefix: What the names of the metrics begin with.
        """
        put_numbers(find_scalars(loss_dict), data_time, prefix, add_all=True)


class AMPTrainer(SimpleTrainer):
    """A `SimpleTrainer` in mixed precision, on GPUs and on the CPU.

    In fp16 the loss is scaled as `treadle.precision.LossScaling` says. A `run_step` of your own does all of that
    itself, by `self.grad_scaler`.

    Args:
        model: What to train.
        data_loader: Where batches come from.
        optimizer: What updates the weights.
        gather_metric_period: Losses are reported every so many iterations.
        zero_grad_before_forward: It changes nothing.
        grad_scaler: A torch `GradScaler`, of which the first scale and the growth interval are taken; None chooses.
        precision: `torch.float16` or `torch.bfloat16`.
        log_grad_scaler: Whether the scale is reported with the losses, as `[metric]grad_scaler`.
        async_write_metrics: It changes nothing.
    """

    def __init__(
        self,
        model: nn.Module,
        data_loader: Any,
        optimizer: Optimizer,
        gather_metric_period: int = 1,
        zero_grad_before_forward: bool = False,
        grad_scaler: Any = None,
        precision: torch.dtype = torch.float16,
        log_grad_scaler: bool = False,
        async_write_metrics: bool = False,
    ) -> None:
        if precision not in PRECISIONS:
            raise ConfigError(f"AMPTrainer(precision={precision}): use torch.float16 or torch.bfloat16")
        super().__init__(
            model, data_loader, optimizer, gather_metric_period, zero_grad_before_forward, async_write_metrics
        )
        self.precision, self.log_grad_scaler = precision, log_grad_scaler
        self._given_scaler = grad_scaler
        self._scaling = None if grad_scaler is None else convert_scaler(grad_scaler)
        if self._scaling is not None and precision is not torch.float16:
            raise ConfigError(f"AMPTrainer(grad_scaler=..., precision={precision}): only float16 scales the loss")

    @property
    def grad_scaler(self) -> Any:
        """The scaler for a `run_step` of your own."""
        if self._given_scaler is None:
            device = next(self.model.parameters()).device.type
            self._given_scaler = torch.amp.GradScaler(device, enabled=self.precision is torch.float16)
        return self._given_scaler

    def step_plan(self, get_batch: Callable[[Any], Any], foreign: Callable[[int], None] | None) -> StepPlan:
        """Return what one iteration is made of, with the scale among what it reports if that was asked for."""
        return replace(super().step_plan(get_batch, foreign), reports_scale=self.log_grad_scaler)

    def adapted(self, options: CoreOptions) -> CoreOptions:
        """Return how the core runs, in mixed precision; a step of your own does that itself."""
        if not is_core_step(self):
            return options
        return replace(options, precision=PRECISIONS[self.precision], loss_scaling=self._scaling)


def convert_scaler(scaler: Any) -> LossScaling | None:
    """Return how the loss is scaled by what a torch `GradScaler` knows; None for one that is switched off.

    Raises:
        ConfigError: It is none, or changes its scale by other factors than 2.
    """
    if not hasattr(scaler, "get_growth_factor"):
        raise ConfigError(f"AMPTrainer(grad_scaler={scaler!r}) is no torch GradScaler; leave it out, or give one")
    if not scaler.is_enabled():
        return None
    factors = (scaler.get_growth_factor(), scaler.get_backoff_factor())
    if factors != (2.0, 0.5):
        raise ConfigError(
            f"AMPTrainer: a grad_scaler with growth_factor={factors[0]} and backoff_factor={factors[1]}: the scale is "
            "doubled and halved; leave them out"
        )
    return LossScaling(initial=float(scaler.get_scale()), growth_interval=int(scaler.get_growth_interval()))


def create_ddp_model(model: nn.Module, *, fp16_compression: bool = False, **kwargs: Any) -> nn.Module:
    """Return the model as it is: a trainer shares the gradients over the processes itself, unused parameters included.

    Args:
        model: The model.
        fp16_compression: False; gradients are exchanged as they are.
        **kwargs: Arguments of torch's `DistributedDataParallel`, none of which is needed.

    Raises:
        ConfigError: Gradients were to be compressed.
    """
    if fp16_compression:
        raise ConfigError("create_ddp_model(fp16_compression=True): gradients are exchanged as they are; leave it out")
    return model
