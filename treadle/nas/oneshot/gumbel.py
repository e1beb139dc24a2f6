"""GDAS: candidates drawn by their weights, in a way that gradients go through."""

from typing import Any

import torch
from torch import Tensor

from treadle.data import fold_seed
from treadle.errors import ConfigError
from treadle.nas.oneshot.differentiable import DifferentiableCore, DifferentiableTrainer
from treadle.nas.oneshot.mixed_op import MixedOp
from treadle.nas.oneshot.single_path import compiled_parts, refuse_recording
from treadle.nas.oneshot.supernet import CandidateWeights, Rows, gumbel_noise
from treadle.phase import Phase

TEMPERATURES = (1.0, 0.33)


class GumbelWeights(CandidateWeights):
    """Weights of candidates with noise on them: the softmax is near to drawing one, the more so the colder it is.

    Args:
        rows: The candidates of each row.
        seed: What the first weights are drawn with.
        hard: Whether the one that was drawn counts fully, and gradients are those of the softmax.
    """

    noise: Tensor
    temperature: Tensor

    def __init__(self, rows: Rows, seed: int | None = None, *, hard: bool = False) -> None:
        super().__init__(rows, seed)
        self.hard = hard
        self.register_buffer("noise", torch.zeros_like(self.alpha), persistent=False)
        self.register_buffer("temperature", torch.ones(()), persistent=False)

    def draw(self, seed: int) -> None:
        """Draw the noise of the passes that follow; the same on every device and every process."""
        self.noise.copy_(gumbel_noise(self.noise.shape, seed).to(self.noise.dtype))

    def picked(self) -> list[int]:
        """Return which candidate of each row was drawn; this waits for the device."""
        places: list[int] = (self._logits().detach() + self.noise).argmax(-1).tolist()
        return places

    def mixing(self) -> Tensor:
        """Return the weights of this pass: with noise while training, and without where nobody learns."""
        if not self.training:
            return super().mixing()
        soft = ((self._logits().log_softmax(-1) + self.noise) / self.temperature).softmax(-1)
        if self.hard:
            drawn = torch.zeros_like(soft).scatter_(-1, soft.argmax(-1, keepdim=True), 1.0)
            soft = drawn + soft - soft.detach()
        return soft if self.learning else soft.detach()


class GumbelCore(DifferentiableCore):
    """Draws noise for every update, and cools down from epoch to epoch."""

    temperatures = TEMPERATURES

    def before_update(self, phase: Phase) -> None:
        """Draw the noise of this step."""
        super().before_update(phase)
        weights, chooser = self.model.weights, self.model.chooser
        assert isinstance(weights, GumbelWeights)
        assert isinstance(chooser, MixedOp)
        weights.draw(fold_seed(self.search.seed, "gumbel", self.progress.step))
        if weights.hard:
            chooser.picked = weights.picked()

    def train_epoch_start(self) -> None:
        """Set the temperature of the epoch: from the first to the last, in equal steps."""
        super().train_epoch_start()
        weights = self.model.weights
        assert isinstance(weights, GumbelWeights)
        weights.temperature.fill_(self.temperature_at(self.progress.epoch))

    def temperature_at(self, epoch: int) -> float:
        """Return the temperature of an epoch."""
        first, last = self.temperatures
        epochs = self.settings.num_epochs or 1
        return first + (last - first) * min(1.0, epoch / max(epochs - 1, 1))

    def eval_epoch_start(self) -> None:
        """Evaluate the mixture itself, of all candidates and without noise."""
        super().eval_epoch_start()
        chooser = self.model.chooser
        assert isinstance(chooser, MixedOp)
        chooser.picked = None

    def architecture_metrics(self) -> dict[str, float]:
        """Return the weight of every candidate, and the temperature."""
        return {**super().architecture_metrics(), "temperature": self.temperature_at(self.progress.epoch)}


class GumbelDartsTrainer(DifferentiableTrainer):
    """Sums candidates by weights with Gumbel noise, which cools down until one of them has nearly all (GDAS).

    Choices that share a label share their noise. What is random depends on the seed and the number of the step alone,
    so it is the same on every device and process and in a search that was interrupted.

    Args:
        args: As for every one-shot trainer: model, loss, metrics, optimizer, num_epochs, dataset.
        temperature: That of the first epoch and of the last.
        hard: Whether only the candidate that was drawn is called, and counts fully. It takes the time and memory of one
            candidate; to know it, the host waits for the device once a step, so steps cannot be recorded.
        kwargs: As for every one-shot trainer; and `arc_learning_rate` and `arc_optimizer` for the weights of
            candidates.
    """

    core: GumbelCore
    core_type = GumbelCore

    def __init__(
        self, *args: Any, temperature: tuple[float, float] = TEMPERATURES, hard: bool = False, **kwargs: Any
    ) -> None:
        if not min(temperature) > 0:
            raise ConfigError(f"GumbelDartsTrainer: temperature={temperature} must be two numbers above 0")
        self.temperature, self.hard = temperature, hard
        if hard:
            refuse_recording("GumbelDartsTrainer(hard=True)", kwargs)
        super().__init__(*args, **kwargs)
        self.core.temperatures = temperature

    def _make_weights(self, rows: Rows) -> CandidateWeights:
        return GumbelWeights(rows, self._weights_seed, hard=self.hard)

    def _core_options(self, options: dict[str, Any]) -> dict[str, Any]:
        return compiled_parts(self._space, options) if self.hard else options
