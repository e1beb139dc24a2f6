"""The core trainer of searches that weigh all candidates against each other."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from treadle.data import Batch, Stream, fold_seed
from treadle.errors import ConfigError
from treadle.nas.oneshot.core import (
    ARCHITECTURE,
    WEIGHTS,
    OneShotCore,
    PairedStream,
    longer_stream,
    restart,
    step_by_step,
)
from treadle.nas.oneshot.mixed_op import MixedOp
from treadle.nas.oneshot.supernet import CandidateWeights, Rows, Supernet, find_rows
from treadle.nas.oneshot.trainer import Found, OneShotTrainer, ranked_architectures
from treadle.nas.space.model_space import Space
from treadle.phase import Phase

# The gradient of an architecture through one step of the weights


PERTURBATION = 0.01
"""How far the weights are moved, in norm, to see how a gradient changes."""
SMALLEST = 1e-12


class VirtualStep:
    """Weights that are moved to where an optimizer would move them, and put back to the last bit.

    Args:
        optimizer: The optimizer of the weights, which is not stepped.
        weights: The weights that it would move.
        model: Whose buffers are put back too.
        rates: The learning rate of each group of the optimizer, on the device.
    """

    def __init__(
        self, optimizer: Optimizer, weights: Sequence[nn.Parameter], model: nn.Module, rates: Sequence[Tensor]
    ) -> None:
        self._optimizer, self._rates = optimizer, rates
        self._weights: list[Tensor] = list(weights)
        self._before = [weight.detach().clone() for weight in self._weights]
        self._buffers = [buffer for buffer in model.buffers() if buffer is not None]
        self._buffers_before = [buffer.clone() for buffer in self._buffers]
        groups = enumerate(optimizer.param_groups)
        self._groups = {id(parameter): place for place, group in groups for parameter in group["params"]}

    @torch.no_grad()
    def move(self, gradients: Sequence[Tensor]) -> None:
        """Move the weights as the optimizer would with these gradients: momentum and weight decay included."""
        for weight, gradient in zip(self._weights, gradients, strict=True):
            group, rate = self._settings(weight)
            direction, _ = _direction(self._optimizer, group, weight, gradient)
            weight.sub_(direction * rate)

    @torch.no_grad()
    def displace(self, directions: Sequence[Tensor], factor: Tensor) -> None:
        """Put the weights at a distance from where they were."""
        steps = torch._foreach_mul(list(directions), factor)
        torch._foreach_copy_(self._weights, torch._foreach_add(self._before, steps))

    @torch.no_grad()
    def scaled(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Return gradients, each times how far its weight moves for a gradient of one."""
        found = []
        for weight, gradient in zip(self._weights, gradients, strict=True):
            group, rate = self._settings(weight)
            _, gain = _direction(self._optimizer, group, weight, gradient)
            found.append(gradient * (rate * gain))
        return found

    @torch.no_grad()
    def put_back(self, *, weights: bool = True) -> None:
        """Put the buffers back, and the weights."""
        if self._buffers:
            torch._foreach_copy_(self._buffers, self._buffers_before)
        if weights:
            torch._foreach_copy_(self._weights, self._before)

    def _settings(self, weight: Tensor) -> tuple[dict[str, Any], Tensor]:
        place = self._groups[id(weight)]
        return self._optimizer.param_groups[place], self._rates[place]


def _direction(optimizer: Optimizer, group: dict[str, Any], weight: Tensor, gradient: Tensor) -> tuple[Tensor, float]:
    """Return where an optimizer would move a weight, for a rate of one, and by how much for each unit of gradient.

    Of SGD it is exactly its next step. Of others it is a step down the gradient with weight decay: what they make of a
    gradient depends on the gradients before.
    """
    direction = gradient + group.get("weight_decay", 0.0) * weight.detach()
    momentum = group.get("momentum", 0.0)
    if not isinstance(optimizer, SGD) or not momentum:
        return direction, 1.0
    buffer = optimizer.state.get(weight, {}).get("momentum_buffer")
    gain = 1.0 if buffer is None else 1.0 - group["dampening"]
    moving = direction if buffer is None else buffer * momentum + direction * gain
    if group["nesterov"]:
        return direction + moving * momentum, 1.0 + momentum * gain
    return moving, gain


def second_order(
    first: Sequence[Tensor], above: Sequence[Tensor], below: Sequence[Tensor], eps: Tensor
) -> list[Tensor]:
    """Return the gradient of an architecture at moved weights, corrected for how the move depends on it.

    Args:
        first: The gradient of the validation loss at the moved weights.
        above: That of the training loss with the weights displaced along the direction.
        below: The same, displaced the other way.
        eps: By what multiple of the direction they were displaced.
    """
    change = torch._foreach_sub(list(above), list(below))
    return list(torch._foreach_sub(list(first), torch._foreach_div(change, 2 * eps)))


class DifferentiableCore(OneShotCore):
    """Trains the weights of candidates by the gradient of the validation loss."""

    unrolled = False
    """Whether that gradient goes through the step that the weights are about to make."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
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

    def candidate_rows(self) -> dict[str, tuple[Any, ...]]:
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
        longer = longer_stream(train, validation)
        weights = self.weights_phase(train, steps=1, reuse=True)
        architecture = self.architecture_phase(train, validation)
        architecture.stream = PairedStream(train, validation)  # type: ignore[assignment]
        while longer.has_next():
            restart(train, validation)
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
        eps = PERTURBATION / torch.nn.utils.get_total_norm(directions).clamp_min(SMALLEST)
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


# What users see of trainers that weigh all candidates against each other


MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]
BETAS = (0.5, 0.999)
DECAY = 1e-3


class DifferentiableTrainer(OneShotTrainer):
    """A trainer that learns a weight for every candidate.

    Args:
        args: As for every one-shot trainer.
        arc_learning_rate: The learning rate of the weights of candidates.
        arc_optimizer: A function that makes their optimizer, in the place of Adam.
        kwargs: As for every one-shot trainer.
    """

    core: DifferentiableCore
    core_type = DifferentiableCore
    betas = BETAS
    decay = DECAY

    def __init__(
        self, *args: Any, arc_learning_rate: float = 3e-4, arc_optimizer: MakeOptimizer | None = None, **kwargs: Any
    ) -> None:
        self._arc_learning_rate, self._arc_optimizer = arc_learning_rate, arc_optimizer
        super().__init__(*args, **kwargs)
        self.core.penalties = [penalty.bound(self.supernet.weights.rows).to(self.device) for penalty in self.penalties]

    @property
    def _weights_seed(self) -> int | None:
        """What the first weights of candidates are drawn with."""
        return None if self._seed is None else fold_seed("alpha", self._seed)

    def _make_weights(self, rows: Rows) -> CandidateWeights:
        return CandidateWeights(rows, self._weights_seed)

    def _make_supernet(self, space: Space) -> Supernet:
        rows = find_rows(space, type(self).__name__)
        return Supernet(space, MixedOp(rows), self._make_weights(rows))

    def _make_optimizers(self, supernet: Supernet) -> dict[str, Optimizer]:
        parameters = list(supernet.weights.parameters())
        if self._arc_optimizer is None:
            rate = self._arc_learning_rate
            made: Optimizer = Adam(parameters, lr=rate, betas=self.betas, weight_decay=self.decay)
        else:
            made = self._arc_optimizer(parameters)
        if not isinstance(made, Optimizer):
            raise ConfigError(f"arc_optimizer returned a {type(made).__name__}; return an optimizer")
        return {ARCHITECTURE: made}

    def _ranked(self, most: int) -> list[Found]:
        weights = self.supernet.weights
        with torch.no_grad():
            scores = weights.named(weights.probabilities().double().log())
        return ranked_architectures(self._space, scores, most)

    def _finished(self) -> None:
        weights, chooser = self.supernet.weights, self.supernet.chooser
        assert isinstance(chooser, MixedOp)
        # A call of the bare space shows the mixture as it ended.
        chooser.weights, chooser.picked = weights.probabilities().detach(), None
