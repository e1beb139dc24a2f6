"""The core trainer of searches that weigh all candidates against each other."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from treadle.data import Batch, Stream
from treadle.nas.oneshot._core import ARCHITECTURE, WEIGHTS, SearchCore, step_by_step
from treadle.nas.oneshot.streams import Pairs, begin_again, longer_of
from treadle.nas.oneshot.unrolled import VirtualStep, displacement, second_order
from treadle.phase import Phase


class WeighingCore(SearchCore):
    """Trains the weights of candidates by the gradient of the validation loss.

    Args:
        unrolled: Whether that gradient goes through the step that the weights are about to make.
    """

    def __init__(self, *args: Any, unrolled: bool = False, **kwargs: Any) -> None:
        self.unrolled = unrolled
        super().__init__(*args, **kwargs)
        self._rates: list[Tensor] = []
        self._written: list[float] = []

    def _names(self) -> list[str]:
        return list(self.model.weights.rows)

    @step_by_step
    def weights_loss(self, batch: Batch) -> dict[str, Any]:
        """Return the loss of a batch of the training data; no gradient reaches the weights of candidates."""
        weights = self.model.weights
        weights.learning = False
        try:
            return super().weights_loss(batch)
        finally:
            weights.learning = True

    def weighed_rows(self) -> dict[str, tuple[Any, ...]]:
        """Return the candidates of each row."""
        return dict(self.model.weights.rows)

    def probabilities(self) -> dict[str, list[float]]:
        """Return the weight of every candidate; nothing is random in them."""
        weights = self.model.weights
        with torch.no_grad():
            return weights.named(weights.probabilities())

    # Through a step of the weights --------------------------------------------------------------------------

    def phases(self, epoch: int) -> Iterable[Phase]:
        """Yield the phases; unrolled, the architecture sees the batch that the weights are trained on next."""
        if not self.unrolled or epoch < self.plan.warmup_epochs:
            yield from super().phases(epoch)
            return
        train, validation = self.streams["train"], self.streams["validation"]
        longer = longer_of(train, validation)
        weights = self.weights_phase(train, steps=1, reuse=True)
        architecture = self.architecture_phase(train, validation)
        architecture.stream = Pairs(train, validation)  # type: ignore[assignment]
        while longer.has_next():
            begin_again(train, validation)
            yield architecture
            yield weights

    def before_update(self, phase: Phase) -> None:
        """Bring the learning rates of the weights to the device, where the step that is looked ahead to reads them."""
        super().before_update(phase)
        if not self.unrolled:
            return
        rates = [float(group["lr"]) for group in self.optimizers()[WEIGHTS].param_groups]
        if len(self._rates) != len(rates) or self._rates[0].device != self.device:
            self._rates = [torch.zeros((), device=self.device) for _ in rates]
            self._written = [0.0] * len(rates)
        for place, rate in enumerate(rates):
            if rate != self._written[place]:
                self._rates[place].fill_(rate)
                self._written[place] = rate

    def calculate_gradients(self, phase: Phase, window: list[Batch]) -> None:
        """Accumulate the gradient; unrolled, that of the architecture through a step of the weights."""
        if not self._looks_ahead(phase):
            super().calculate_gradients(phase, window)
            return
        train, validation = [pair[0] for pair in window], [pair[1] for pair in window]
        weights, alphas = self.weight_parameters, self.architecture_parameters
        step = VirtualStep(self.optimizers()[WEIGHTS], weights, self.model, self._rates)
        step.move(self._gradient(self._helping(train=True, parameters=weights), train))
        step.put_back(weights=False)
        judging = self._helping(train=False, parameters=[*alphas, *weights])
        gradients = self._gradient(judging, validation)
        first, directions = gradients[: len(alphas)], step.scaled(gradients[len(alphas) :])
        eps = displacement(directions)
        looking = self._helping(train=True, parameters=alphas)
        sides = []
        for side in (eps, -eps):
            step.put_back(weights=False)
            step.displace(directions, side)
            sides.append(self._gradient(looking, train))
        step.put_back()
        for alpha, gradient in zip(alphas, second_order(first, sides[0], sides[1], eps), strict=True):
            alpha.grad = gradient
        self.this_run.updater.phase = phase

    def _looks_ahead(self, phase: Phase) -> bool:
        return self.unrolled and phase.name == ARCHITECTURE

    def _helping(self, *, train: bool, parameters: list[Any]) -> Phase:
        """Return a phase for a pass over training or validation data; of the latter the loss is recorded."""
        stream: Stream = self.streams["train" if train else "validation"]
        loss = self.training_loss if train else self.architecture_loss
        name = "virtual" if train else "judging"
        return Phase(name, stream, loss, self.optimizers()[WEIGHTS], parameters=parameters, silent=train)

    def training_loss(self, batch: Batch) -> dict[str, Any]:
        """Return the loss of a batch of the training data, as a function of weights and architecture."""
        return self.calculate_train_batch_loss(batch)

    def _gradient(self, phase: Phase, window: list[Batch]) -> list[Tensor]:
        """Return the gradient of what `phase` trains, over all ranks, and leave none behind."""
        super().calculate_gradients(phase, window)
        if self.this_run.updater.scale.pending or self.this_run.shared_loss.module is not None:
            super().normalise_gradients(phase)
        found = [torch.zeros_like(one) if one.grad is None else one.grad for one in phase.trained]
        for one in phase.trained:
            one.grad = None
        return found

    def normalise_gradients(self, phase: Phase) -> None:
        """Divide by the window's weight; unrolled, that was done pass by pass."""
        if not self._looks_ahead(phase):
            super().normalise_gradients(phase)
        else:
            self.exchange.note(phase.optimizer)
