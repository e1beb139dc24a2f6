"""The trainer of models that are fitted in one go."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from treadle.recsys.config.core_options import NO_BATCHES, OF_UPDATES
from treadle.recsys.trainers.loop.core import Losses
from treadle.recsys.trainers.trainer import Trainer


class TraditionalTrainer(Trainer):
    """Fits a model that counts or solves: one epoch, without gradients, and one evaluation.

    A model with a method `fit` is fitted by that, on the data for training. One without, which RecBole's models of this
    kind are, has done its work when it was built, or does it in `calculate_loss`, which is called for every batch.
    """

    def __init__(self, config: Any, model: Any) -> None:
        super().__init__(config, model)
        self.epochs = self.eval_step = 1

    def _refused_options(self) -> Mapping[str, str]:
        return {**dict.fromkeys(OF_UPDATES, "fits a model in one go, without gradients"), **NO_BATCHES}

    @torch.no_grad()
    def _train_epoch(
        self,
        train_data: Any,
        epoch_idx: int,
        loss_func: Callable[[Any], Any] | None = None,
        show_progress: bool = False,
    ) -> Losses:
        """Fit the model, and return zero."""
        fit = getattr(self.model, "fit", None)
        if fit is not None:
            fit(train_data.dataset)
            return 0.0
        for interaction in train_data:
            self.model.calculate_loss(interaction.to(self.device))
        return 0.0
