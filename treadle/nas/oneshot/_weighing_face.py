"""What users see of trainers that weigh all candidates against each other."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Adam, Optimizer

from treadle.data import fold_seed
from treadle.errors import ConfigError
from treadle.nas.oneshot._core import ARCHITECTURE
from treadle.nas.oneshot._face import OneShotTrainer
from treadle.nas.oneshot._weighing import WeighingCore
from treadle.nas.oneshot.exporting import Found, ranked_architectures
from treadle.nas.oneshot.mixed import Mixed
from treadle.nas.oneshot.supernet import Supernet
from treadle.nas.oneshot.weights import CandidateWeights, rows_of
from treadle.nas.space import Space

MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]
BETAS = (0.5, 0.999)
DECAY = 1e-3


class WeighingTrainer(OneShotTrainer):
    """A trainer that learns a weight for every candidate.

    Args:
        args: As for every one-shot trainer.
        arc_learning_rate: The learning rate of the weights of candidates.
        arc_optimizer: A function that makes their optimizer, in the place of Adam.
        kwargs: As for every one-shot trainer.
    """

    core: WeighingCore
    betas = BETAS
    decay = DECAY

    def __init__(
        self, *args: Any, arc_learning_rate: float = 3e-4, arc_optimizer: MakeOptimizer | None = None, **kwargs: Any
    ) -> None:
        self._arc_learning_rate, self._arc_optimizer = arc_learning_rate, arc_optimizer
        super().__init__(*args, **kwargs)
        self.core.penalties = [penalty.bound(self.supernet.weights.rows).to(self.device) for penalty in self.penalties]

    def _make_weights(self, rows: dict[str, tuple[Any, ...]]) -> CandidateWeights:
        return CandidateWeights(rows, None if self._seed is None else fold_seed("alpha", self._seed))

    def _make_supernet(self, space: Space) -> Supernet:
        rows = rows_of(space, type(self).__name__)
        return Supernet(space, Mixed(rows), self._make_weights(rows))

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
        assert isinstance(chooser, Mixed)
        # A call of the bare space shows the mixture as it ended.
        chooser.weights, chooser.picked = weights.probabilities().detach(), None
