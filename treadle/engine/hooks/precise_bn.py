"""Computes the statistics of batch normalisation anew."""

import itertools
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from treadle.data.batch import mover
from treadle.engine.hooks.base import HookBase
from treadle.errors import ConfigError
from treadle.events import EventStorage


class PreciseBN(HookBase):
    """Replaces the running statistics of batch normalisation by their exact means over some batches.

    The running averages of training lag behind the weights; evaluations after it see those of the present weights. A
    model without batch normalisation in training mode is left alone. Put it before `EvalHook`.

    Args:
        period: Iterations between two times; 0 does it at the end only.
        model: The model, called with each batch: keywords for a dict, positions for a tuple.
        data_loader: Where batches come from; each time from the start.
        num_iter: How many batches to use.
    """

    together = True

    def __init__(self, period: int, model: nn.Module, data_loader: Iterable[Any], num_iter: int) -> None:
        if num_iter < 1:
            raise ConfigError(f"PreciseBN(num_iter={num_iter}) must be at least 1")
        self._period = period
        self._model = model
        self._loader = data_loader
        self._count = num_iter

    def before_train(self) -> None:
        """Refuse a model that is cut into stages.

        Raises:
            ConfigError: It is.
        """
        if self.trainer.core.parallel.is_pipeline:
            raise ConfigError(
                "PreciseBN calls the model, which no process of a pipeline has all of; leave the hook out, or set "
                "train.dist.pipeline_parallel_size=1"
            )

    def after_step(self) -> None:
        """Compute them if it is time, and after the last iteration."""
        done = self.trainer.iter + 1
        if done == self.trainer.max_iter or (self._period and done % self._period == 0):
            self.update_stats()

    @torch.no_grad()
    def update_stats(self) -> None:
        """Compute the statistics now."""
        layers: list[Any] = [module for module in self._model.modules() if _has_statistics(module)]
        if not layers:
            return
        momenta = [layer.momentum for layer in layers]
        move = mover(self.trainer.device)
        try:
            for layer in layers:
                layer.reset_running_stats()
                # Without a momentum torch takes the plain mean over all batches.
                layer.momentum = None
            # What the model reports in these passes is of no iteration.
            with EventStorage():
                for batch in itertools.islice(self._loader, self._count):
                    self._call(move(batch))
        finally:
            for layer, momentum in zip(layers, momenta, strict=True):
                layer.momentum = momentum

    def _call(self, batch: Any) -> None:
        if isinstance(batch, dict):
            self._model(**batch)
        elif isinstance(batch, (list, tuple)):
            self._model(*batch)
        else:
            self._model(batch)


def _has_statistics(module: nn.Module) -> bool:
    return isinstance(module, _BatchNorm) and module.training and module.track_running_stats
