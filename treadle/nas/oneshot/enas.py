"""ENAS: a controller that learns from the rewards of the architectures it draws."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from treadle.data import Batch, fold_seed, size_of
from treadle.errors import ConfigError
from treadle.nas.costs.penalty import Penalty
from treadle.nas.oneshot.controller import Controller
from treadle.nas.oneshot.core import ARCHITECTURE, WEIGHTS, restart
from treadle.nas.oneshot.single_path import SinglePathCore, SinglePathTrainer
from treadle.nas.oneshot.supernet import Supernet, gumbel_noise
from treadle.nas.oneshot.trainer import Found
from treadle.nas.space.decisions import Architecture
from treadle.nas.space.model_space import Space
from treadle.ops.eval_mode import eval_mode
from treadle.ops.losses import model_inputs
from treadle.phase import Phase
from treadle.search.assignment import key_of

Reward = Callable[[Any, Any], Any]
SAMPLED = 64
"""Of how many architectures the mean cost is what penalties without a target are relative to."""


class EnasCore(SinglePathCore):
    """Trains the weights on architectures that a controller draws, and the controller on their rewards."""

    reward: Reward | None = None
    entropy_weight = 1e-4
    skip_weight = 0.8
    baseline_decay = 0.999
    aggregate = 20
    controller_steps: int | None = None
    costs: list[tuple[Penalty, float]] = []

    @property
    def controller(self) -> Controller:
        """What draws architectures."""
        assert isinstance(self.model.architecture, Controller)
        return self.model.architecture

    def updates_per_epoch(self) -> tuple[int | None, int | None]:
        """Return how many updates of the weights an epoch has, and how many in all."""
        weights, _ = super().updates_per_epoch()
        validation = self.streams["validation"].length
        drawn = None if validation is None else -(-validation // self.aggregate)
        controller = self.controller_steps if self.controller_steps is not None else drawn
        return weights, None if weights is None or controller is None else weights + controller

    def phases(self, epoch: int) -> Iterable[Phase]:
        """Yield the weights over all training data, then the controller over all validation data."""
        train, validation = self.streams["train"], self.streams["validation"]
        yield self.weights_phase(train)
        if epoch < self.plan.warmup_epochs:
            return
        phase = self.architecture_phase(train, validation)
        phase.accumulation = self.aggregate
        if self.controller_steps is None:
            phase.steps = None
            yield phase
            return
        for _ in range(self.controller_steps):
            restart(validation)
            yield phase

    def before_update(self, phase: Phase) -> None:
        """Draw the architecture that the weights are trained in; the controller draws one for each micro-batch."""
        self._drawn = 0
        if phase.name != WEIGHTS and not self.progress.visit_step:
            # Rewards are of one model: statistics that each process moved by its own batches are the first one's.
            self.parallel.share_buffers(self.model)
        if phase.name == WEIGHTS:
            with torch.no_grad():
                places = self.controller.draw(self._noise(0)).places
            self.choose(self.controller.decoded(places.tolist()))

    def _noise(self, number: int) -> Tensor:
        """Return the noise of a draw: the same on every device and process for the same seed and step."""
        seed = fold_seed(self.search.seed, "enas", self.progress.step, number)
        shape = (len(self.controller.tokens), self.controller.most)
        return gumbel_noise(shape, seed).to(self.controller.baseline)

    def architecture_loss(self, batch: Batch) -> dict[str, Any]:
        """Return the loss of the controller: how likely it draws an architecture that is worse than expected."""
        with torch.autocast(self.device.type, enabled=False):
            drawn = self.controller.draw(self._noise(self._drawn))
        self._drawn += 1
        architecture = self.controller.decoded(drawn.places.tolist())
        outputs = self._outputs(architecture, batch)
        self.report_metrics(outputs, batch)
        reward = self._shared(self.score(outputs, batch, self.reward), batch) - self._price(architecture)
        self.report("reward", reward)
        reward = reward + self.entropy_weight * drawn.entropy.detach()
        advantage = reward - self.controller.expect(reward, self.baseline_decay)
        loss = -drawn.log_probability * advantage + self.skip_weight * drawn.skip_penalty
        return {"loss": loss, "model_outputs": outputs, "batch_size": size_of(batch)}

    @torch.no_grad()
    def _outputs(self, architecture: Architecture, batch: Batch) -> Any:
        """Return the outputs of one architecture as it would be used: evaluated, with nothing in it moving."""
        self.choose(architecture)
        args, kwargs = model_inputs(batch)
        with eval_mode(self.model.space):
            return self.model.space(*args, **kwargs)

    def _shared(self, reward: Tensor, batch: Batch) -> Tensor:
        """Return the mean reward over the batches of all processes."""
        if not self.processes.distributed:
            return reward
        size = float(size_of(batch))
        parts = self.processes.gather(torch.stack([reward * size, reward.new_tensor(size)]).unsqueeze(0))
        return parts[:, 0].sum() / parts[:, 1].sum()

    def _price(self, architecture: Architecture) -> float:
        return sum(penalty.of(architecture, reference) for penalty, reference in self.costs)

    def eval_epoch_start(self) -> None:
        """Evaluate the most likely architecture."""
        super().eval_epoch_start()
        self.choose(self.controller.best(1)[0][1])

    def architecture_metrics(self) -> dict[str, float]:
        """Return how likely each candidate is, and what reward is expected."""
        return {**super().architecture_metrics(), "baseline": float(self.controller.baseline)}

    def candidate_rows(self) -> dict[str, tuple[Any, ...]]:
        """Return the candidates of each draw that a decision begins with."""
        return self.controller.rows()

    def probabilities(self) -> dict[str, list[float]]:
        """Return how likely each candidate is, where everything before it was decided as it is likeliest."""
        return self.controller.probabilities()


class EnasTrainer(SinglePathTrainer):
    """Trains the architectures that a controller draws, and the controller by their rewards (ENAS, REINFORCE).

    An epoch is a pass over the training data, in each step with another architecture, and then a pass over the
    validation data, in which every update of the controller has the rewards of several architectures, one for each
    batch. Networks are evaluated as they would be used: batch norms do not see validation data.

    Args:
        model: The space.
        loss: Called as `loss(outputs, targets)`.
        metrics: Called as `metrics(outputs, targets)` for each batch of validation data.
        reward_function: Called as `reward_function(outputs, targets)`: the larger the better. By default the loss,
            negated.
        optimizer: The optimizer of the weights.
        num_epochs: Passes over the data.
        dataset: What to train on; without `validation_dataset`, half of it is validated on.
        entropy_weight: How much the controller is rewarded for being undecided.
        skip_weight: How much it pays for taking too many or too few tensors where it may take any number.
        baseline_decay: How slowly the expected reward follows the rewards.
        ctrl_lr: The learning rate of the controller.
        ctrl_steps_aggregate: How many architectures are rewarded in one update of the controller.
        ctrl_kwargs: Arguments of the controller: `hidden_size`, `num_layers`, `tanh_constant`, `skip_target`.
        controller_steps: Updates of the controller in an epoch; None is one pass over the validation data.
        kwargs: As for every one-shot trainer. Penalties lower the reward.
    """

    core: EnasCore
    core_type = EnasCore

    def __init__(
        self,
        model: nn.Module,
        loss: Any,
        metrics: Any = None,
        reward_function: Reward | None = None,
        optimizer: Any = None,
        num_epochs: int = 50,
        dataset: Any = None,
        *,
        entropy_weight: float = 1e-4,
        skip_weight: float = 0.8,
        baseline_decay: float = 0.999,
        ctrl_lr: float = 3.5e-4,
        ctrl_steps_aggregate: int = 20,
        ctrl_kwargs: dict[str, Any] | None = None,
        controller_steps: int | None = None,
        **kwargs: Any,
    ) -> None:
        if not 0 <= baseline_decay < 1:
            raise ConfigError(f"EnasTrainer: baseline_decay={baseline_decay} must lie between 0 and 1")
        self._ctrl_lr, self._ctrl_kwargs = ctrl_lr, dict(ctrl_kwargs or {})
        super().__init__(model, loss, metrics, optimizer, num_epochs, dataset, **kwargs)
        core = self.core
        core.reward, core.entropy_weight, core.skip_weight = reward_function, entropy_weight, skip_weight
        core.baseline_decay, core.aggregate = baseline_decay, ctrl_steps_aggregate
        core.controller_steps = controller_steps
        drawn = [self._space.sample(seed) for seed in range(SAMPLED)]
        core.costs = [(one, sum(map(one.cost.of, drawn)) / SAMPLED) for one in self.penalties]

    def _make_controller(self, space: Space) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            if self._seed is not None:
                torch.manual_seed(fold_seed("controller", self._seed))
            return Controller(space, **self._ctrl_kwargs)

    def _make_optimizers(self, supernet: Supernet) -> dict[str, Optimizer]:
        assert supernet.architecture is not None
        return {ARCHITECTURE: Adam(supernet.architecture.parameters(), lr=self._ctrl_lr)}

    def _architecture_clip(self) -> float | None:
        return 5.0

    def _ranked(self, most: int) -> list[Found]:
        """Return the architectures that the controller draws most likely."""
        found: dict[str, Found] = {}
        for score, architecture in self.core.controller.best(most):
            if self._space.allows(architecture):
                found.setdefault(key_of(architecture), Found(architecture, score))
        if not found:
            raise ConfigError("the constraints refuse every architecture that the controller finds likely")
        return list(found.values())[:most]
